"""torch.nn.functional.scaled_dot_product_attention, with attn in the place of PyTorch's kernels."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._functorch import config  # noqa: E402
from torch.nn import attention  # noqa: E402
from torch.nn.attention.bias import causal_lower_right  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import attn.torch  # noqa: E402
from attn.torch import hook as sdpa  # noqa: E402
from torch_problems import GPU  # noqa: E402

if not hasattr(attention, "restore_flash_attention_impl"):  # which 2.11 brought, and attn needs
    pytest.skip("this PyTorch does not end an implementation", allow_module_level=True)

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


def tensors(*, dtype=torch.float32, device="cpu", lengths=(20, 24)):
    torch.manual_seed(3)
    n, m = lengths
    return [
        torch.randn(2, 4, length, 16, dtype=dtype, device=device, requires_grad=True)
        for length in (n, m, m)
    ]


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True, "scale": 0.5},
    "bool": {"attn_mask": torch.ones(20, 24, dtype=torch.bool).tril(2)},
    "numbers": {"attn_mask": torch.linspace(-1, 1, 2 * 20 * 24).reshape(2, 1, 20, 24)},
}


def results(options, inputs):
    out = F.scaled_dot_product_attention(*inputs, **options)
    torch.manual_seed(4)
    d_out = torch.randn(out.shape).to(out)
    return [out, *torch.autograd.grad(out, inputs, d_out)]


def check(options, dtype, device, lengths=(20, 24)):
    """attn computes both directions, as exactly as PyTorch's kernels of that device."""

    def drawn():
        return tensors(dtype=dtype, device=device, lengths=lengths)

    names, found = calls(lambda: results(options, drawn()))
    assert names == ["forward", "backward"]
    attention.restore_flash_attention_impl()
    names, theirs = calls(lambda: results(options, drawn()))
    assert names == []
    doubles = [t.detach().double().requires_grad_() for t in drawn()]
    exact = {n: x.double() if n == "attn_mask" and x.dtype == torch.float32 else x
             for n, x in options.items()}  # fmt: skip
    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        out = F.scaled_dot_product_attention(*doubles, **exact)
    torch.manual_seed(4)
    d_out = torch.randn(out.shape).to(device=device, dtype=dtype).double()
    wanted = [out, *torch.autograd.grad(out, doubles, d_out)]
    for x, y, z in zip(found, theirs, wanted, strict=True):
        assert x.device.type == device
        rounding = torch.finfo(dtype).eps * z.abs().max()
        assert (x - z).abs().max() <= 2 * (y - z).abs().max() + rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.usefixtures("_active")
def test_on_the_cpu(options, dtype):
    check(options, dtype, "cpu")


@GPU
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["plain", "causal"])
@pytest.mark.usefixtures("_active")
def test_on_a_gpu(name, dtype):
    """What PyTorch sends to FlashAttention there: 16 bits, no mask, equal lengths where causal."""
    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
        check(OPTIONS[name], dtype, "cuda", (96, 96) if name == "causal" else (80, 96))


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


@pytest.mark.usefixtures("_active")
def test_booleans_for_float64():
    """PyTorch makes numbers of float64 of them."""
    q = torch.randn(1, 2, 8, 4, dtype=torch.float64)
    mask = torch.rand(8, 8) < 0.7
    mask |= torch.eye(8, dtype=torch.bool)
    found = F.scaled_dot_product_attention(q, q, q, mask)
    wanted = torch.softmax((q @ q.mT / 2).masked_fill(~mask, -torch.inf), -1) @ q
    torch.testing.assert_close(found, wanted)


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
    bias = causal_lower_right(20, 24) if causal else None
    wanted = attn.torch.scaled_dot_product_attention(q, k, v, bias, dropout_p=dropout, scale=0.5)
    torch.testing.assert_close(out, wanted)
    for x, y in zip(gradients, torch.autograd.grad(wanted, [q, k, v], d_out), strict=True):
        torch.testing.assert_close(x, y)


FIRST, LAST = 11, 30  # ends of two packed sequences


def one_by_one(q, k, v, window):
    """Attention within each of the sequences."""
    parts = []
    for first, last in ((0, FIRST), (FIRST, LAST)):
        place = torch.arange(last - first, device=q.device)
        distance = place[None] - place[:, None]
        seen = torch.ones_like(distance, dtype=torch.bool)
        if window:
            seen = (distance >= -window[0]) & (distance <= window[1])
        heads_first = (t[first:last].transpose(0, 1) for t in (q, k, v))
        with attention.sdpa_kernel(attention.SDPBackend.MATH):
            parts.append(F.scaled_dot_product_attention(*heads_first, seen).transpose(0, 1))
    return torch.cat(parts)


def packed(device="cpu", dtype=torch.float32):
    torch.manual_seed(6)
    inputs = [
        torch.randn(LAST, 4, 16, device=device, dtype=dtype, requires_grad=True) for _ in range(3)
    ]
    return inputs, torch.tensor([0, FIRST, LAST], dtype=torch.int32, device=device)


@pytest.mark.parametrize("window", [None, (3, 1)])
def test_varlen_operators_of_a_gpu(window):
    (q, k, v), ends = packed()
    left, right = window or (None, None)
    options = (ends, ends, 19, 19, 0.0, False)
    sides = {"window_size_left": left, "window_size_right": right}
    with torch.no_grad():
        out, lse, rng, unused, _ = sdpa.varlen_forward(q, k, v, *options, False, **sides)
    d_out = torch.randn(out.shape)
    with torch.no_grad():
        found = sdpa.varlen_backward(d_out, q, k, v, out, lse, *options, rng, unused, **sides)
    wanted = one_by_one(q, k, v, window)
    torch.testing.assert_close(out, wanted)
    for x, y in zip(found, torch.autograd.grad(wanted, [q, k, v], d_out), strict=True):
        torch.testing.assert_close(x, y)


@GPU
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.usefixtures("_active")
def test_varlen_attn(causal, dtype):
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    inputs, ends = packed("cuda", dtype)
    newer = "window_size" in varlen.varlen_attn.__annotations__  # PyTorch 2.11
    options = {"window_size": (-1, 0 if causal else -1)} if newer else {"is_causal": causal}

    def ours():
        out = varlen.varlen_attn(*inputs, ends, ends, 19, 19, **options)
        return [out, *torch.autograd.grad(out, inputs, torch.ones_like(out))]

    names, found = calls(ours)
    assert names == ["forward", "backward"]
    wanted = []
    for t in (torch.float64, dtype):
        leaves = [x.detach().to(t).requires_grad_() for x in inputs]
        out = one_by_one(*leaves, (LAST, 0) if causal else None)
        wanted.append([out, *torch.autograd.grad(out, leaves, torch.ones_like(out))])
    for x, exact, low in zip(found, *wanted, strict=True):
        rounding = torch.finfo(dtype).eps * exact.abs().max()
        assert (x - exact).abs().max() <= 2 * (low - exact).abs().max() + rounding


def within_backward(function):
    """Calls `function` as a part of a backward pass of PyTorch."""

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, d_x):
            function()
            return d_x

    x = torch.zeros(1, requires_grad=True)
    Node.apply(x).sum().backward()


def test_dropout_that_is_drawn_again_is_refused():
    """Compiled code computes PyTorch's operators again where a budget of memory asks for it."""
    q, k, v = (t.detach() for t in tensors())
    with config.patch(activation_memory_budget=0.5):
        sdpa.dense_forward(q, k, v, 0.1)
    with pytest.raises(attn.Unsupported, match="dropout_p is 0.1 in a forward pass that"):
        within_backward(lambda: sdpa.dense_forward(q, k, v, 0.1))
    within_backward(lambda: sdpa.dense_forward(q, k, v))


def test_dropout_of_a_checkpoint_is_drawn_again():
    q, k, v = tensors()
    results = []

    def function(q):
        results.append(sdpa.dense_forward(q, k.detach(), v.detach(), 0.5)[0])
        return q.sin()

    checkpoint(function, q, use_reentrant=False).sum().backward()
    assert len(results) == 2
    assert torch.equal(*results)


def test_dropout_of_a_compiled_checkpoint_is_drawn_again():
    """Which sets the generator as it was, with this function of PyTorch."""
    from torch._prims.rng_prims import run_with_rng_state

    q, k, v = (t.detach() for t in tensors())
    state = torch.get_rng_state()
    first = sdpa.dense_forward(q, k, v, 0.5)[0]
    again = []

    def operator(q):
        again.append(sdpa.dense_forward(q, k, v, 0.5)[0])
        return q

    within_backward(lambda: run_with_rng_state(state, operator, q))
    assert torch.equal(*again, first)


def test_the_mask_of_dropout_is_refused():
    q, k, v = (t.detach() for t in tensors())
    with pytest.raises(attn.Unsupported, match="return_debug_mask is True"):
        sdpa.dense_forward(q, k, v, 0.1, False, True)
