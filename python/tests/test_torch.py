"""attn.torch against PyTorch's own functions, on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import attn  # noqa: E402
import attn.torch  # noqa: E402
from torch_problems import dense, leaf  # noqa: E402

# PyTorch's compiler uses what PyTorch calls deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_gradients_of_all_that_a_score_reads():
    q, k, v = leaf(2, 33, 6, 16), leaf(2, 40, 2, 16), leaf(2, 40, 2, 8)
    bias, slopes, sink = leaf(1, 6, 33, 40), leaf(6), leaf(6)
    table, weight = leaf(5, 6, dtype=torch.float64), leaf()
    place = torch.randint(0, 5, (33, 40))

    def score(s, b, h, i, j):
        return 4 * torch.tanh(s / 4) + weight * table[place[i, j], h]

    def mask(b, h, i, j):
        return j <= i + 10

    out = attn.torch.attention(q, k, v, bias=bias, alibi=slopes, sink=sink, score=score, mask=mask)
    gradient = torch.randn(out.shape)
    wanted = [q, k, v, bias, slopes, sink, table, weight]
    ours = torch.autograd.grad(out, wanted, gradient)

    exact = [t.detach().double().requires_grad_() for t in wanted]
    q64, k64, v64, bias64, slopes64, sink64, table64, weight64 = exact

    def whole(s, b, h, i, j):
        s = s + bias64 - slopes64.view(6, 1, 1) * (i + 7 - j).abs()
        return 4 * torch.tanh(s / 4) + weight64 * table64[place[i, j], h]

    # attn applies alibi, then bias, then the score.
    expected = dense(q64, k64, v64, whole, mask, sink64)
    found = torch.autograd.grad(expected, exact, gradient.double())
    for name, a, b in zip(
        ["q", "k", "v", "bias", "slopes", "sink", "table", "weight"], ours, found, strict=True
    ):
        scale = b.abs().max()
        if name == "weight":  # a sum of the others' products, which may cancel
            scale = (found[6] * table64).abs().sum()
        assert (a - b).abs().max() <= 2e-5 * scale, name
        assert a.shape == b.shape, name
    assert [g.dtype for g in ours] == [t.dtype for t in wanted]


def test_only_what_is_needed_gets_a_gradient():
    q, k, v = torch.randn(1, 5, 2, 8), leaf(1, 5, 2, 8), torch.randn(1, 5, 2, 8)
    out, lse = attn.torch.attention(q, k, v, return_lse=True)
    out.sum().backward()
    assert k.grad is not None
    assert q.grad is None
    with torch.no_grad():
        assert not attn.torch.attention(q, k, v).requires_grad
    assert lse.dtype == torch.float32


@pytest.mark.parametrize("of_out", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_of_lse(compiled, of_out):
    torch._dynamo.reset()
    tensors = [leaf(2, 30, 2, 8) for _ in range(3)]

    def loss(out, lse):
        return lse.square().sum() + (out.sin().sum() if of_out else 0)

    def function(q, k, v):
        return loss(*attn.torch.attention(q, k, v, return_lse=True))

    made = torch.compile(function, backend="aot_eager", fullgraph=True) if compiled else function
    q, k, v = (t.detach().double().requires_grad_() for t in tensors)
    s = torch.einsum("bihd,bjhd->bhij", q, k) / 8**0.5
    want = torch.autograd.grad(loss(dense(q, k, v), s.logsumexp(-1)), [q, k, v], allow_unused=True)
    found = torch.autograd.grad(made(*tensors), tensors)
    for a, b in zip(found, want, strict=True):
        b = torch.zeros_like(a) if b is None else b
        assert (a - b).abs().max() <= 1e-5 * max(b.abs().max(), 1)


def test_arrays_of_other_libraries_are_refused():
    q = torch.ones(1, 3, 2, 8)
    with pytest.raises(TypeError, match="^k is a ndarray; accepted are tensors of PyTorch"):
        attn.torch.attention(q, q.numpy(), q)


def test_a_tensor_changed_before_backward_is_refused():
    q = leaf(1, 5, 2, 8)
    k = (q * 1).clone()
    out = attn.torch.attention(q, k, k)
    with torch.no_grad():
        k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


SECOND = {
    "backward": lambda call, q, k, g: (call(q).sum() + g.square().sum()).backward(),
    "backward to inputs": lambda call, q, k, g: g.square().sum().backward(inputs=[k]),
    "grad": lambda call, q, k, g: torch.autograd.grad((g * q).sum(), q),
    "hessian": lambda call, q, k, g: torch.autograd.functional.hessian(lambda q: call(q).sum(), q),
    "hvp": lambda call, q, k, g: torch.autograd.functional.hvp(lambda q: call(q).sum(), q, q),
}


@pytest.mark.parametrize("way", SECOND)
@pytest.mark.parametrize("kind", ["plain", "return_lse", "sink", "score", "sdpa"])
def test_no_second_derivative(kind, way):
    """A penalty of the gradient's size was dropped: the sum's own gradient needs none."""
    q, k, v = (leaf(1, 5, 2, 8) for _ in range(3))
    options = {
        "return_lse": {"return_lse": True},
        "sink": {"sink": torch.zeros(2)},
        "score": {"score": lambda s: s.score + v[0, s.key, 0, 0]},
    }

    def call(q):
        if kind == "sdpa":
            return attn.torch.scaled_dot_product_attention(q, k, v)
        out = attn.torch.attention(q, k, v, **options.get(kind, {}))
        return out[0] if kind == "return_lse" else out

    out = call(q)
    gradients = torch.autograd.grad(out.sum(), (q, k, v), create_graph=True)
    for a, b in zip(gradients, torch.autograd.grad(out.sum(), (q, k, v)), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(attn.Unsupported, match="^attn.torch has no second derivative; accepted is"):
        SECOND[way](call, q, k, gradients[0])
    weight = leaf(8)  # nothing of the gradients depends on it
    (found,) = torch.autograd.grad((gradients[0] * weight).sum(), weight)
    assert torch.equal(found, gradients[0].sum((0, 1, 2)))


def test_a_second_derivative_by_what_comes_in():
    """The gradients depend on the layer after attention, through the gradient of its input."""
    q, weight = leaf(1, 5, 2, 8), leaf(8)
    out = (attn.torch.attention(q, q.detach(), q.detach()) * weight).sum()
    (gradient,) = torch.autograd.grad(out, q, create_graph=True)
    with pytest.raises(attn.Unsupported, match="^attn.torch has no second derivative"):
        torch.autograd.grad(gradient.sum(), weight)


MASKS = {
    "function": lambda t: {"mask": lambda s: t[s.key] > -0.5},
    "number": lambda t: {"mask": lambda s: s.key * 0.1 > t.mean() - 1},
    "formula": lambda t: {"mask": attn.Formula("t1 [key] > -0.5", t1=t)},
    "formulas": lambda t: {
        "mask": attn.Formula("t1[key] > -0.5", t1=t),
        "score": attn.Formula("score + t11[key]", t11=t.detach().requires_grad_()),
    },
    "bias": lambda t: {
        "mask": lambda s: t[s.key] > -0.5,
        "bias": torch.eye(5, requires_grad=True),
    },
    "slopes": lambda t: {
        "mask": attn.Formula("t1[key] > -0.5", t1=t),
        "alibi": torch.ones(2, requires_grad=True),
    },
    "named slopes": lambda t: {"causal": True, "mask": attn.Formula("slopes[key] > 0", slopes=t)},
}


@pytest.mark.parametrize("way", ["eager", "compiled"])
@pytest.mark.parametrize("name", MASKS)
def test_no_gradient_reaches_what_a_mask_reads(name, way):
    q, k, v = (leaf(1, 5, 2, 8) for _ in range(3))
    t = leaf(5)
    options = MASKS[name](t)

    def call(q, k, v):
        return attn.torch.attention(q, k, v, **options)

    torch._dynamo.reset()
    made = call if way == "eager" else torch.compile(call, backend="aot_eager", fullgraph=True)
    d_out = torch.randn(1, 5, 2, 8)
    *found, none = torch.autograd.grad(made(q, k, v), (q, k, v, t), d_out, allow_unused=True)
    assert none is None or not none.any()
    options |= MASKS[name](t.detach())
    for a, b in zip(found, torch.autograd.grad(call(q, k, v), (q, k, v), d_out), strict=True):
        assert torch.equal(a, b)


def test_a_gradient_of_what_mask_and_score_read():
    q, t = torch.randn(1, 5, 2, 8), leaf(5)
    d_out = torch.randn(1, 5, 2, 8)
    found = []
    for given in (t, t.detach()):
        out = attn.torch.attention(
            q, q, q, mask=lambda s, x=given: x[s.key] > 0, score=lambda s: s.score + t[s.key]
        )
        found += torch.autograd.grad(out, t, d_out)
    assert found[0].any()
    assert torch.equal(*found)


def test_rng_in_a_tensor():
    q, k, v = (leaf(1, 20, 2, 8) for _ in range(3))
    state = torch.tensor([3, 4])
    wanted = attn.torch.attention(q, k, v, dropout=0.4, rng=(3, 4))
    found = attn.torch.attention(q, k, v, dropout=0.4, rng=state)
    assert torch.equal(found, wanted)
    gradients = [torch.autograd.grad(x.square().sum(), [q, k, v]) for x in (found, wanted)]
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)
    out = attn.torch.attention(q, k, v, dropout=0.4, rng=state)
    state += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_merge():
    q, k, v = (leaf(2, 9, 3, 8) for _ in range(3))

    def part(first, last):
        mask = f"key >= {first} && key < {last} && key <= position"
        return attn.torch.attention(q, k, v, mask=mask, return_lse=True)

    whole = attn.torch.attention(q, k, v, mask="key < 7 && key <= position", return_lse=True)
    found = attn.torch.merge([part(0, 2), part(7, 7), part(2, 7)])
    weights = [torch.randn(t.shape) for t in whole]
    expected = torch.autograd.grad(whole, (q, k, v), weights)
    gradients = torch.autograd.grad(found, (q, k, v), weights)
    for a, b in zip((*found, *gradients), (*whole, *expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)
    empty, lse = attn.torch.merge([part(7, 7), part(8, 8)])
    assert (empty == 0).all()
    assert (lse == -torch.inf).all()


def test_autocast():
    q, k, v = (leaf(1, 20, 2, 8) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attn.torch.attention(q, k, v)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32
    low = [t.detach().bfloat16() for t in (q, k, v)]
    assert torch.equal(out, attn.torch.attention(*low))


def test_meta_tensors():
    q, k = torch.randn(2, 5, 4, 8, device="meta"), torch.randn(2, 7, 2, 8, device="meta")
    out, lse = attn.torch.attention(q, k, k, return_lse=True)
    assert out.device.type == "meta"
    assert out.shape == q.shape
    assert lse.shape == (2, 4, 5)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 5, 4, 8), (2, 7, 3, 8), (2, 7, 3, 8)], r"\(2, 7, 3, 8\); .* multiple of these heads"),
        ([(2, 5, 4, 8), (2, 7, 2, 9), (2, 7, 2, 9)], "head_dim of q and k"),
        ([(2, 5, 4, 8), (3, 7, 2, 8), (3, 7, 2, 8)], "of the same batch"),
        ([(2, 5, 4, 8), (2, 7, 2, 8), (2, 6, 2, 8)], "seqlen and heads of k and v"),
        ([(4, 8), (4, 8), (4, 8)], r"\[batch, seqlen, heads, head_dim\]"),
        ([(1, 2, 5, 4, 8)] * 3, r"\[batch, seqlen, heads, head_dim\]"),
    ],
    ids=str,
)
def test_meta_tensors_that_do_not_fit(shapes, message):
    """As the same tensors with memory are refused."""
    for device in ("cpu", "meta"):
        tensors = [torch.randn(shape, device=device) for shape in shapes]
        with pytest.raises(attn.InvalidArgument, match=message if device == "meta" else ""):
            attn.torch.attention(*tensors)


def test_meta_tensors_of_dtypes_that_do_not_fit():
    q = torch.randn(2, 5, 4, 8)
    for dtypes in ((q.dtype, torch.float16, q.dtype), (torch.int32,) * 3):
        for device in ("cpu", "meta"):
            tensors = [q.to(device, dtype) for dtype in dtypes]
            with pytest.raises(attn.InvalidArgument, match="accepted"):
                attn.torch.attention(*tensors)


def test_what_is_no_memory_of_one_device_is_refused():
    q = torch.randn(2, 5, 4, 8)
    with pytest.raises(attn.InvalidArgument, match="q, k and v are on meta, cpu and cpu"):
        attn.torch.attention(q.to("meta"), q, q)
    for attend in (attn.attention, attn.torch.attention):
        with pytest.raises(attn.InvalidArgument, match=r"k has PyTorch's negative bit; accepted"):
            attend(q, torch._neg_view(q), q)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PyTorch's own, where it makes a dual tensor
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "alibi", "sink", "table"])
def test_tangents_are_refused(name):
    """They were lost: the derivative was zero without an error."""
    import torch.autograd.forward_ad as forward_ad

    tensors = {n: torch.randn(1, 5, 4, 8) for n in "qkv"}
    tensors["table"] = torch.randn(5)
    others = {"bias": torch.zeros(5, 5), "alibi": torch.ones(4), "sink": torch.zeros(4)}
    given = {**tensors, **({name: others[name]} if name in others else {})}

    def call(given):
        options = {n: t for n, t in given.items() if n != "table"}
        score = attn.Formula("score + table[key]", table=given["table"])
        return attn.torch.attention(score=score, **options)

    wanted = call(given)
    with forward_ad.dual_level():
        assert torch.equal(call(given), wanted)
        dual = forward_ad.make_dual(given[name], torch.ones_like(given[name]))
        with pytest.raises(attn.Unsupported, match=f"^{name} has a tangent"):
            call({**given, name: dual})
        q = forward_ad.make_dual(given["q"], given["q"])
        with pytest.raises(attn.Unsupported, match="^q has a tangent"):
            attn.torch.scaled_dot_product_attention(q, q, q, is_causal=True)


def test_views_of_any_strides():
    q, k, v = (torch.randn(2, 16, 9, 4) for _ in range(3))
    views = [t.permute(0, 2, 3, 1) for t in (q, k, v)]  # the last dimension is not contiguous
    expected = attn.torch.attention(*[t.contiguous() for t in views])
    assert torch.equal(attn.torch.attention(*views), expected)


def test_an_array_of_a_formula_takes_no_other_name():
    """One that is named as a keyword, or in mask and score, took the place of the other array."""
    q = torch.ones(1, 5, 2, 8, requires_grad=True)
    f = torch.tensor([0.5, 0.25])
    mask = attn.Formula("f[head] > 0.0 || key < 2", f=f)
    with pytest.raises(attn.InvalidArgument, match="buffer 'f'.*one array a name"):
        attn.torch.attention(q, q, q, mask=mask, score=attn.Formula("score + f[head]", f=f + 1))
    attn.torch.attention(q, q, q, mask=mask, score=attn.Formula("score + f[head]", f=f))
    with pytest.raises(attn.InvalidArgument, match="buffer 'sink' of a formula"):
        attn.torch.attention(q, q, q, sink=f, score=attn.Formula("score + sink[head]", sink=f + 1))
    score = attn.Formula("score + slopes[head]", slopes=f + 1)
    with pytest.raises(attn.InvalidArgument, match="buffer 'slopes'.*one array a name"):
        attn.torch.attention(q, q, q, alibi=f, score=score)
