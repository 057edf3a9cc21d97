"""torch.nn.functional.scaled_dot_product_attention, with attn in the place of PyTorch's kernels."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.nn import attention  # noqa: E402

import attn.torch  # noqa: E402
from attn import sdpa  # noqa: E402

if not hasattr(attention, "activate_flash_attention_impl"):
    pytest.skip("this PyTorch has no list of implementations", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def calls(function):
    """How often attn computes in `function`, and what it gives."""
    from unittest import mock

    names = []

    def spy(name):
        real = getattr(sdpa._attn, name)
        return lambda *args: names.append(name) or real(*args)

    stand_in = mock.Mock(forward=spy("forward"), backward=spy("backward"))
    with mock.patch.object(sdpa, "_attn", stand_in):
        return names, function()


@pytest.fixture
def _active():
    attention.activate_flash_attention_impl("attn")
    yield
    attention.restore_flash_attention_impl()


def tensors(*, heads_k=4, dtype=torch.float32):
    torch.manual_seed(3)
    return [
        torch.randn(2, heads, length, 16, dtype=dtype, requires_grad=True)
        for heads, length in ((4, 20), (heads_k, 24), (heads_k, 24))
    ]


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True, "scale": 0.5},
    "bool": {"attn_mask": torch.ones(20, 24, dtype=torch.bool).tril(2)},
    "numbers": {"attn_mask": torch.linspace(-1, 1, 2 * 20 * 24).reshape(2, 1, 20, 24)},
}


def results(options, dtype):
    q, k, v = tensors(dtype=dtype)
    out = F.scaled_dot_product_attention(q, k, v, **options)
    torch.manual_seed(4)
    return [out, *torch.autograd.grad(out, [q, k, v], torch.randn(out.shape).to(dtype))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.usefixtures("_active")
def test_on_the_cpu(options, dtype):
    names, found = calls(lambda: results(options, dtype))
    assert names == ["forward", "backward"]
    attention.restore_flash_attention_impl()
    names, theirs = calls(lambda: results(options, dtype))
    assert names == []
    exact = {n: x.double() if n == "attn_mask" and x.dtype == torch.float32 else x
             for n, x in options.items()}  # fmt: skip
    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        q, k, v = (t.detach().double().requires_grad_() for t in tensors(dtype=dtype))
        out = F.scaled_dot_product_attention(q, k, v, **exact)
        torch.manual_seed(4)
        d_out = torch.randn(out.shape).to(dtype).double()
        wanted = [out, *torch.autograd.grad(out, [q, k, v], d_out)]
    for x, y, z in zip(found, theirs, wanted, strict=True):
        rounding = torch.finfo(dtype).eps * z.abs().max()
        assert (x - z).abs().max() <= 2 * (y - z).abs().max() + rounding


@pytest.mark.usefixtures("_active")
def test_compiled():
    q, k, v = tensors()

    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum()

    wanted = torch.autograd.grad(function(q, k, v), [q, k, v])
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(q, k, v), [q, k, v])
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y)


def test_the_list():
    assert "attn" in attention.list_flash_attention_impls()
    assert attention.current_flash_attention_impl() is None


# PyTorch's operators of a GPU, called with tensors of the CPU.


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("causal", [False, True])
def test_operators_of_a_gpu(causal, dropout):
    q, k, v = tensors()
    torch.manual_seed(5)
    out, lse, _, _, max_q, max_k, seed, offset, _ = sdpa.dense_forward(
        q.detach(), k.detach(), v.detach(), dropout, causal, scale=0.5
    )
    assert (max_q, max_k) == (20, 24)
    d_out = torch.randn(out.shape)
    gradients = sdpa.dense_backward(
        d_out, q.detach(), k.detach(), v.detach(), out, lse, None, None, max_q, max_k, dropout,
        causal, seed, offset, scale=0.5,
    )  # fmt: skip
    torch.manual_seed(5)
    wanted = attn.torch.scaled_dot_product_attention(
        q, k, v, dropout_p=dropout, is_causal=causal, scale=0.5
    )
    torch.testing.assert_close(out, wanted)
    for x, y in zip(gradients, torch.autograd.grad(wanted, [q, k, v], d_out), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("window", [None, (3, 1)])
def test_varlen_operators_of_a_gpu(window):
    torch.manual_seed(6)
    q, k, v = (torch.randn(30, 4, 16, requires_grad=True) for _ in range(3))
    lengths = torch.tensor([0, 11, 30], dtype=torch.int32)
    left, right = window or (None, None)
    packed = (lengths, lengths, 19, 19, 0.0, False)
    sides = {"window_size_left": left, "window_size_right": right}
    with torch.no_grad():
        out, lse, rng, unused, _ = sdpa.varlen_forward(q, k, v, *packed, False, **sides)
    d_out = torch.randn(out.shape)
    with torch.no_grad():
        found = sdpa.varlen_backward(d_out, q, k, v, out, lse, *packed, rng, unused, **sides)
    parts = []
    for first, last in ((0, 11), (11, 30)):
        place = torch.arange(last - first)
        distance = place[None] - place[:, None]
        seen = torch.ones_like(distance, dtype=torch.bool)
        if window:
            seen = (distance >= -left) & (distance <= right)
        heads_first = (t[first:last].transpose(0, 1) for t in (q, k, v))
        parts.append(F.scaled_dot_product_attention(*heads_first, seen).transpose(0, 1))
    wanted = torch.cat(parts)
    torch.testing.assert_close(out, wanted)
    for x, y in zip(found, torch.autograd.grad(wanted, [q, k, v], d_out), strict=True):
        torch.testing.assert_close(x, y)


def test_the_mask_of_dropout_is_refused():
    q, k, v = (t.detach() for t in tensors())
    with pytest.raises(attn.Unsupported, match="return_debug_mask is True"):
        sdpa.dense_forward(q, k, v, 0.1, False, True)
