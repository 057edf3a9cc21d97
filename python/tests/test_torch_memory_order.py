"""How results of attn.torch lie in memory: as those of PyTorch's functions, which follow q."""

from __future__ import annotations

from itertools import permutations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.nn import attention  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402

import attn.torch  # noqa: E402
from attn.torch import ops as torch_ops  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

B, H, S, D = 2, 3, 5, 8


def lying(order, shape=(B, H, S, D)):
    """A tensor whose dimensions stand in memory in that order."""
    made = torch.randn([shape[i] for i in order])
    return made.permute([order.index(i) for i in range(len(order))])


def of_qkv():
    """q of a projection to q, k and v: heads and head_dim lie side by side, rows do not."""
    return torch.randn(B, S, 3, H, D)[:, :, 0].transpose(1, 2)


LAYOUTS = {
    "".join("bhsd"[i] for i in order): (lambda order=order: lying(order))
    for order in permutations(range(4))
}
LAYOUTS |= {
    "of qkv": of_qkv,
    "a slice": lambda: torch.randn(B, H, 2 * S, 2 * D)[:, :, ::2, :D],
    "expanded": lambda: torch.randn(B, 1, S, D).expand(B, H, S, D),
    "one batch": lambda: lying((2, 1, 0, 3), (1, H, S, D)),
    "one head": lambda: lying((0, 2, 1, 3), (B, 1, S, D)),
    "one query": lambda: lying((0, 2, 1, 3), (B, H, 1, D)),
}


COMPILED = ["bhsd", "bshd", "hbsd", "of qkv"]


def longer(t):
    """Strides of the dimensions that have more than one element; those of others mean nothing."""
    return [stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1]


def keys(q, length=7, head_dim=D):
    return torch.randn(*q.shape[:2], length, q.shape[3]), torch.randn(
        *q.shape[:2], length, head_dim
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_eager(name):
    q = LAYOUTS[name]()
    k, v = keys(q)
    wanted = F.scaled_dot_product_attention(q, k, v)
    found = attn.torch.scaled_dot_product_attention(q, k, v)
    assert longer(found) == longer(wanted)
    torch.testing.assert_close(found, wanted)
    flex = attn.torch.flex_attention(q, k, v)
    with torch.no_grad():
        wanted = flex_attention(q, k, v)
    if 1 not in q.shape and name not in ("a slice", "expanded"):  # PyTorch's has gaps there
        assert flex.stride() == wanted.stride()
    heads_first = attn.torch.attention(q, k, v, layout="bhsd")
    assert longer(heads_first) == longer(flex)
    rows_first = attn.torch.attention(*(t.transpose(1, 2) for t in (q, k, v)))
    if name != "expanded":  # which is before or after another dimension
        assert longer(rows_first.transpose(1, 2)) == longer(flex)
    assert torch.equal(rows_first.transpose(1, 2), heads_first)


@pytest.mark.parametrize("function", ["attention", "flex_attention", "sdpa"])
def test_heads_are_joined_without_a_copy(function):
    x = torch.randn(B, S, H * D)
    q = x.view(B, S, H, D).transpose(1, 2)
    call = {
        "attention": lambda: attn.torch.attention(q, q, q, layout="bhsd"),
        "flex_attention": lambda: attn.torch.flex_attention(q, q, q),
        "sdpa": lambda: attn.torch.scaled_dot_product_attention(q, q, q, is_causal=True),
    }[function]
    assert call().transpose(1, 2).view(B, S, H * D).shape == x.shape
    q = torch.randn(B, H, S, D)
    assert call().view(B * H, S, D).shape == (B * H, S, D)


@pytest.mark.parametrize("shape", [(S, D), (H, S, D), (2, 3, H, S, D)], ids=str)
def test_other_ranks(shape):
    order = list(range(len(shape)))
    order[-3:-1] = reversed(order[-3:-1])
    q = lying(order, shape) if len(shape) > 2 else torch.randn(shape)
    wanted = F.scaled_dot_product_attention(q, q, q)
    if len(shape) == 3 and wanted.stride() != q.stride():  # PyTorch 2.11
        assert wanted.is_contiguous()
        wanted = q
    found = attn.torch.scaled_dot_product_attention(q, q, q)
    assert found.stride() == wanted.stride()


def strides(tensors):
    return [tuple(t.stride()) for t in tensors]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("head_dim_v", [D, 4, 16])
@pytest.mark.parametrize("name", LAYOUTS)
def test_fake_tensors_lie_as_real_ones(name, head_dim_v, layout):
    q = LAYOUTS[name]()
    k, v = keys(q, head_dim=head_dim_v)
    if layout == "bshd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    q, k, v = map(torch_ops.last_contiguous, (q, k, v))
    call = torch_ops.describe([], "", "", False, layout, "auto", "auto", False, False, "", "")

    def both(q, k, v):
        out, lse = torch.ops.attn.forward(q, k, v, call)
        given = torch.zeros_like(out), torch.zeros_like(lse), q, k, v, out, lse, call, "q,k,v"
        return strides([out, lse, *torch.ops.attn.backward(*given)])

    real = both(q, k, v)
    with FakeTensorMode() as mode:
        assert both(*(mode.from_tensor(t) for t in (q, k, v))) == real
    if 1 not in q.shape:
        assert real[2:] == strides([torch.empty_like(t) for t in (q, k, v)])


@pytest.mark.parametrize(
    ("name", "backend"), [*((n, "aot_eager") for n in COMPILED), ("bshd", "inductor")]
)
def test_compiled(name, backend):
    """The code around attention is compiled for the strides that its fake tensor has."""
    torch._dynamo.reset()
    k, v = (t.requires_grad_() for t in keys(torch.empty(B, H, S, D)))

    def function(q, k, v):
        out = attn.torch.scaled_dot_product_attention(q, k, v)
        return out, (out.transpose(1, 2) * 2).reshape(B, S, H * D)

    q = LAYOUTS[name]().requires_grad_()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    results = [f(q, k, v) for f in (function, compiled)]
    assert results[0][0].stride() == results[1][0].stride()
    gradients = [torch.autograd.grad(joined.square().sum(), (q, k, v)) for _, joined in results]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.skipif(
    not hasattr(attention, "restore_flash_attention_impl"), reason="PyTorch 2.11 brought it"
)
@pytest.mark.parametrize(
    ("name", "backend"), [*((n, "aot_eager") for n in COMPILED), ("bhsd", "inductor")]
)
def test_of_pytorch_s_function(name, backend):
    torch._dynamo.reset()
    q = LAYOUTS[name]().requires_grad_()
    k, v = (t.requires_grad_() for t in keys(q))
    function = torch.compile(F.scaled_dot_product_attention, backend=backend)
    wanted = F.scaled_dot_product_attention(q, k, v)
    attention.activate_flash_attention_impl("attn")
    try:
        found = function(q, k, v)
        gradients = torch.autograd.grad(found.square().sum(), (q, k, v))
    finally:
        attention.restore_flash_attention_impl()
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)
    expected = torch.autograd.grad(wanted.square().sum(), (q, k, v))
    assert strides(gradients) == strides(expected)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
