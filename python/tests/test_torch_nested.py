"""Jagged nested tensors in attn.torch, against a call for each of their sequences."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import attn  # noqa: E402
import attn.torch  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

LENGTHS = [3, 7, 1]
OTHERS = [2, 5, 4]


def jagged(heads, size, lengths=LENGTHS):
    rows = [torch.randn(n, heads, size) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)


def alike(nested, heads, size):
    """Of the same lengths, which PyTorch knows by the offsets."""
    rows = torch.randn(nested.values().shape[0], heads, size)
    made = torch.nested.nested_tensor_from_jagged(rows, nested.offsets())
    return made.detach().requires_grad_()


OPTIONS = {
    "all keys": {},
    "causal": {"causal": True},
    "a function": {"mask": lambda s: (s.key + s.batch) % 3 != 1, "scale": 0.3},
    "lengths of their own": {"causal": True, "lengths": OTHERS},
}


@pytest.mark.parametrize("through", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", OPTIONS)
def test_sequences(name, through):
    options = dict(OPTIONS[name])
    q = jagged(4, 8)
    lengths = options.pop("lengths", None)
    k = alike(q, 2, 8) if lengths is None else jagged(2, 8, lengths)
    v = alike(k, 2, 5)

    def function(q, k, v):
        return attn.torch.attention(q, k, v, return_lse=True, **options)

    call = function
    if through != "eager":
        call = torch.compile(function, backend=through, fullgraph=True)
    out, lse = call(q, k, v)
    assert out.offsets() is q.offsets() or through != "eager"
    assert out.shape[:3] == q.shape[:3]  # the same jagged dimension, so that they may be added
    found = torch.autograd.grad(out.values().square().sum() + lse.values().sum(), (q, k, v))
    for i in range(len(LENGTHS)):
        one = [t.detach().unbind()[i][None].requires_grad_() for t in (q, k, v)]
        apart = dict(options)
        if "mask" in apart:
            apart["mask"] = lambda s, i=i: (s.key + i) % 3 != 1
        expected, expected_lse = attn.torch.attention(*one, return_lse=True, **apart)
        torch.testing.assert_close(out.unbind()[i], expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lse.unbind()[i], expected_lse[0], rtol=1e-5, atol=1e-6)
        wanted = torch.autograd.grad(expected.square().sum() + expected_lse.sum(), one)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.unbind()[i], b[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
def test_scaled_dot_product_attention(is_causal):
    q = jagged(2, 8)
    heads_first = [t.detach().transpose(1, 2).requires_grad_() for t in (q, alike(q, 2, 8), q)]
    out = attn.torch.scaled_dot_product_attention(*heads_first, is_causal=is_causal)
    assert (out + heads_first[0]).shape == heads_first[0].shape
    found = torch.autograd.grad(out.transpose(1, 2).values().square().sum(), heads_first)
    for i in range(len(LENGTHS)):
        one = [t.detach().unbind()[i][None].double().requires_grad_() for t in heads_first]
        expected = torch.nn.functional.scaled_dot_product_attention(*one, is_causal=is_causal)
        torch.testing.assert_close(out.unbind()[i].double(), expected[0], rtol=1e-5, atol=1e-5)
        wanted = torch.autograd.grad(expected.square().sum(), one)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.unbind()[i].double(), b[0], rtol=1e-4, atol=1e-4)


def narrowed():
    starts, lengths = torch.tensor([0, 1, 2]), torch.tensor([2, 3, 4])
    rows = torch.randn(3, 7, 4, 8)
    return torch.nested.narrow(rows, 1, starts, lengths, layout=torch.jagged)


def test_refusals():
    q, dense = jagged(4, 8), torch.randn(3, 7, 4, 8)
    attend, sdpa = attn.torch.attention, attn.torch.scaled_dot_product_attention
    turned = q.transpose(1, 2)
    single = torch.nested.nested_tensor([torch.randn(3, 8)], layout=torch.jagged)
    holes = narrowed()
    strided = torch.nested.nested_tensor([torch.randn(3, 4, 8)])
    empty = jagged(4, 0).transpose(1, 2)
    for sentence, call in {
        "^k has the layout torch.strided beside a nested": lambda: attend(q, dense, dense),
        "^q has the layout torch.strided beside a nested": lambda: attend(dense, q, q),
        "^q is nested, .* jagged in dimension 2, with layout None": lambda: attend(turned, q, q),
        "^k and v are nested of other lengths": lambda: attend(q, q, jagged(4, 8, OTHERS)),
        "^cu_seqlens_k is given": lambda: attend(q, q, q, cu_seqlens_k=q.offsets()),
        "^q is nested with gaps": lambda: attend(holes, holes, holes),
        "^q is nested, of the layout torch.strided": lambda: attend(strided, strided, strided),
        "^attn_mask is given beside nested": lambda: sdpa(*[turned] * 3, torch.ones(7, 7) > 0),
        "^query is nested with a last dimension of 0": lambda: sdpa(empty, empty, empty),
        "^value is nested with a last dimension of 0": lambda: sdpa(turned, turned, empty),
        "^query is nested, of the layout torch.strided": lambda: sdpa(strided, strided, strided),
        "^query is nested, of 3 dimensions": lambda: sdpa(single, single, single),
    }.items():
        with pytest.raises(attn.InvalidArgument, match=sentence):
            call()


def test_lengths_that_are_not_one_tensor_are_compared_when_compiled_code_runs():
    """K and V that were made apart have offsets of their own, which a compiler cannot read."""

    def made(lengths, heads):
        parts = [torch.randn(n, heads, 8) for n in lengths]
        return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)

    def gradients(function, lengths_k):
        torch.manual_seed(3)
        q, k, v = made([5, 1, 9, 3], 4), made(lengths_k, 2), made([5, 0, 9, 3], 2)
        out = function(q, k, v, causal=True)
        found = torch.autograd.grad(out.values().square().sum(), (q, k, v))
        return [out.values(), *[g.values() for g in found]]

    compiled = torch.compile(attn.torch.attention, backend="aot_eager", fullgraph=True)
    found, wanted = (gradients(f, [5, 0, 9, 3]) for f in (compiled, attn.torch.attention))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="k and v are nested of other lengths"):
        gradients(compiled, [5, 1, 8, 3])  # as many keys in all
