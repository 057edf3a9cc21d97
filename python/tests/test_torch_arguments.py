"""Arguments of attn.torch that would mean something else by another way, or a moment later."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import attn.torch  # noqa: E402
from attn.flash_attn import flash_attn_func  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

N = 8
WAYS = ["eager", "a mode", "compiled"]


def through(way, call, *given):
    torch._dynamo.reset()
    if way == "compiled":
        return torch.compile(call, backend="aot_eager", fullgraph=True)(*given)
    with FlopCounterMode(display=False) if way == "a mode" else nullcontext():
        return call(*given)


@pytest.fixture
def qkv():
    torch.manual_seed(1)
    return [torch.randn(1, N, 2, 8) for _ in range(3)]


@pytest.mark.parametrize("way", WAYS)
def test_names_of_formulas_beside_functions(qkv, way):
    """A buffer t0 became what a function reads: another mask, without an error."""
    seen, bias = torch.arange(N, dtype=torch.int32) % 2, torch.randn(N)

    def call(q, k, v, name="t0"):
        mask = attn.Formula(f"{name}[key] != 0", **{name: seen})
        return attn.torch.attention(q, k, v, mask=mask, score=lambda s: s.score + bias[s.key])

    assert torch.equal(through(way, call, *qkv), call(*qkv, "seen"))
    with pytest.raises(Exception, match="buffer '_t0' "):
        through(way, lambda *t: call(*t, "_t0"), *qkv)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_buffers_named_as_q_k_v(qkv, way, name):
    """Their gradients had one name: the buffer got that of Q, K or V."""
    b = torch.ones(N, requires_grad=True)

    def call(q, k, v):
        return attn.torch.attention(
            q, k, v, score=attn.Formula(f"score + {name}[key]", **{name: b})
        )

    with pytest.raises(Exception, match=f"buffer '{name}' of .* has the name of an argument"):
        through(way, call, *qkv)


CHANGED = {
    "mask": (torch.ones(N, N, dtype=torch.bool).tril(), lambda t: {"mask": t}),
    "bias": (torch.ones(N, N), lambda t: {"bias": t}),
    "alibi": (torch.ones(2), lambda t: {"alibi": t}),
    "seqused_k": (torch.tensor([N]), lambda t: {"seqused_k": t}),
    "captured": (torch.ones(N), lambda t: {"score": lambda s: s.score * t[s.key]}),
    "of a formula": (
        torch.ones(N, requires_grad=True),
        lambda t: {"mask": attn.Formula("w[key] > 0", w=t)},
    ),
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("way", WAYS[:2])
def test_what_is_changed_before_backward(qkv, name, way):
    tensor, options = CHANGED[name]
    tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    q = qkv[0].requires_grad_()
    out = through(way, lambda: attn.torch.attention(q, *qkv[1:], **options(tensor)))
    out.sum().backward(retain_graph=True)
    with torch.no_grad():
        tensor.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_of_a_number_of_a_formula(qkv, way):
    w = torch.tensor(2.0, requires_grad=True)

    def call(q, k, v):
        return attn.torch.attention(q, k, v, score=attn.Formula("score * w", w=w))

    with pytest.raises(Exception, match="requires a gradient, which a number would lose"):
        through(way, call, *qkv)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 0.5, "rng": -4}, r"rng is -4 and dropout 0.5; accepted is"),
        ({"causal": "false"}, r"causal is 'false'; accepted is True or False"),
        ({"deterministic": "false"}, r"deterministic is 'false'; accepted is True or False"),
        ({"window": (1, 2, 3)}, r"window is \(1, 2, 3\); accepted is"),
        ({"window": (1,)}, r"window is \(1,\); accepted is"),
    ],
)
def test_refused_by_every_way(qkv, way, options, message):
    with pytest.raises(Exception, match=message):
        through(way, lambda *t: attn.torch.attention(*t, **options), *qkv)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.5, "rng": (2**63 + 5, 2)},
        {"window": (2, None)},
        {"window": (2**40, 1)},
    ],
)
def test_taken_by_every_way(qkv, way, options):
    found = through(way, lambda *t: attn.torch.attention(*t, **options), *qkv)
    assert torch.equal(found, attn.torch.attention(*qkv, **options))


@pytest.mark.parametrize("name", ["mask", "bias"])
def test_arrays_of_numpy_in_a_mode(qkv, name):
    array = np.tril(np.ones((N, N), bool if name == "mask" else np.float32))
    found = through("a mode", lambda: attn.torch.attention(*qkv, **{name: array}))
    assert torch.equal(found, attn.torch.attention(*qkv, **{name: array}))


CHANGING = {
    "scale": lambda q, k, v, n: attn.torch.attention(q, k, v, scale=0.1 * n),
    "window": lambda q, k, v, n: attn.torch.attention(q, k, v, window=(n, None)),
    "rng": lambda q, k, v, n: attn.torch.attention(q, k, v, dropout=0.5, rng=(n, 3)),
    "softmax_scale": lambda q, k, v, n: flash_attn_func(q, k, v, softmax_scale=0.1 * n),
    "softcap": lambda q, k, v, n: flash_attn_func(q, k, v, softcap=0.5 * n),
    "window_size": lambda q, k, v, n: flash_attn_func(q, k, v, window_size=(n, -1)),
}


@pytest.mark.parametrize("name", CHANGING)
def test_numbers_that_change_within_torch_compile(qkv, name):
    torch._dynamo.reset()
    made = torch.compile(CHANGING[name], backend="eager", fullgraph=True)
    for n in (1, 2, 3, 5):
        assert torch.equal(made(*qkv, n), CHANGING[name](*qkv, n))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_prefix_that_all_sequences_share(compiled):
    torch.manual_seed(4)
    q, k, v = torch.randn(2, 9, 4, 16), torch.randn(2, 20, 2, 16), torch.randn(2, 20, 2, 8)
    prefix_k, prefix_v = torch.randn(70, 2, 16), torch.randn(70, 2, 8)

    def call(q, k, v, prefix_k, prefix_v):
        return attn.torch.attention(q, k, v, causal=True, prefix_k=prefix_k, prefix_v=prefix_v)

    if compiled:
        torch._dynamo.reset()
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    all_k, all_v = (
        torch.cat([x.expand(2, *x.shape), y], 1) for x, y in ((prefix_k, k), (prefix_v, v))
    )
    wanted = attn.torch.attention(q, all_k, all_v, causal=True)
    torch.testing.assert_close(call(q, k, v, prefix_k, prefix_v), wanted, rtol=0, atol=2e-6)
    # Nor does a gradient of the prefix alone get lost.
    out = call(q, k, v, prefix_k.requires_grad_(), prefix_v)
    with pytest.raises(Exception, match="seqlen_prefix is 70"):
        out.sum().backward()


def test_a_prefix_in_pages_goes_through_operators():
    torch.manual_seed(5)
    pages_k, pages_v = torch.randn(9, 16, 2, 16), torch.randn(9, 16, 2, 8)
    q, table = torch.randn(2, 5, 4, 16), torch.tensor([[4, 0], [2, 8]], dtype=torch.int32)
    prefix = torch.tensor([7, 1, 5], dtype=torch.int32)

    def call(q, n):
        return attn.torch.attention(
            q, pages_k, pages_v, page_table=table, prefix_page_table=prefix, seqlen_prefix=n
        )

    torch._dynamo.reset()
    made = torch.compile(call, backend="aot_eager", fullgraph=True)
    for n in (43, 42, 17):  # the second time as a number that may change
        torch.testing.assert_close(made(q, n), call(q, n), rtol=0, atol=0)


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_casts_a_prefix_too(compiled):
    q, k, v = torch.randn(2, 9, 4, 16), torch.randn(2, 20, 2, 16), torch.randn(2, 20, 2, 8)
    prefix_k, prefix_v = torch.randn(70, 2, 16), torch.randn(70, 2, 8)

    def call(*given):
        q, k, v, prefix_k, prefix_v = given
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return attn.torch.attention(q, k, v, prefix_k=prefix_k, prefix_v=prefix_v)

    given = (q, k, v, prefix_k, prefix_v)
    wanted = call(*(t.bfloat16() for t in given))
    if compiled:
        torch._dynamo.reset()
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    found = call(*given)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("call", [attn.attention, attn.torch.attention])
@pytest.mark.parametrize("size", [2.0, np.float32(2)])
def test_a_float_is_refused_after_an_equal_integer(call, size):
    """C++ reads the options that are known of an equal call."""
    x = torch.ones(1, 4, 1, 8)
    for _ in range(2):
        call(x, x, x, threads=2)
        with pytest.raises(
            attn.InvalidArgument, match="threads is .*2.0.*; accepted is an integer"
        ):
            call(x, x, x, threads=size)
