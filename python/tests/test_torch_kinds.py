"""Tensors that are more than their memory: each gives what its numbers mean, or is refused by name.

A gradient, a tangent, a transform, a trace or a mask that a call cannot follow would be dropped
without a word if the call read the memory alone.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.masked import masked_tensor  # noqa: E402

import attn  # noqa: E402
import attn.torch  # noqa: E402
from attn.flash_attn import flash_attn_interface as flash  # noqa: E402
from torch_problems import dense  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

X, K, V = (torch.randn(1, 6, 2, 8) for _ in range(3))
LSE = torch.zeros(1, 2, 6)
ENTRIES = {"attention": attn.attention, "torch": attn.torch.attention}


class Subclass(torch.Tensor):
    pass


def freed(t):
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t


def frozen(t):
    with torch.inference_mode():
        return t.clone()


def parameter(t):
    return torch.nn.Parameter(t, requires_grad=False)


# What becomes of k: the tensor, then a part of the refusal of attn.attention, and of attn.torch
# where that differs. None: the result is that of k.
KINDS = {
    "a parameter": (parameter, None),
    "a subclass with memory": (lambda t: t.as_subclass(Subclass), None),
    "of inference mode": (frozen, None),
    "copied on write": (lambda t: t._lazy_clone(), None),
    "the real part": (lambda t: torch.complex(t, t).real, "accepted is stride 1", None),
    "its negative's negative": (lambda t: torch._neg_view(-t), "k has PyTorch's negative bit"),
    "of a conjugate": (
        lambda t: torch.complex(t, -t).conj().imag,
        "k has PyTorch's negative bit",
        None,
    ),
    "complex": (lambda t: torch.complex(t, t).conj(), "k has dtype torch.complex64"),
    "sparse": (lambda t: t.to_sparse(), "k is a Tensor that shows no memory", "torch.sparse_coo"),
    "sparse rows": (
        lambda t: t[0, :, 0].to_sparse_csr(),
        "k is a Tensor that shows no memory",
        "k has the layout torch.sparse_csr; accepted is torch.strided",
    ),
    "of oneDNN": (
        lambda t: t.to_mkldnn(),
        "k is a Tensor that shows no memory",
        "k has the layout torch._mkldnn",
    ),
    "quantised": (
        lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
        "k is a Tensor that shows no memory",
    ),
    "on meta": (lambda t: t.to("meta"), "k is a Tensor that shows no memory"),
    "fake": (
        lambda t: FakeTensorMode().from_tensor(t),
        "k is a FakeTensor without data",
        "k is a FakeTensor, whose class does not take attn's operators",
    ),
    "a zero without memory": (lambda t: torch._efficientzerotensor(t.shape), "without data"),
    "of a freed storage": (freed, "k is a Tensor without data"),
    "nested": (
        lambda t: torch.nested.nested_tensor([t[0]]),
        "k is a Tensor that shows no memory",
        "k is nested, of the layout torch.strided",
    ),
    "nested with offsets": (
        lambda t: torch.nested.nested_tensor([t[0]], layout=torch.jagged),
        "k is a NestedTensor that shows no memory",
        "q has the layout torch.strided beside a nested tensor",
    ),
    "masked": (
        lambda t: masked_tensor(t, t > 0),
        "k is a MaskedTensor without data",
        "k is a MaskedTensor, whose class does not take attn's operators",
    ),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind, entry):
    make, *refusals = KINDS[kind]
    refusal = refusals[-1] if entry == "torch" else refusals[0]
    if refusal is not None:
        with pytest.raises(attn.InvalidArgument) as caught:
            ENTRIES[entry](X, make(K), V)
        assert refusal in str(caught.value)
        return
    out = ENTRIES[entry](X, make(K), V)
    torch.testing.assert_close(out, dense(X, K, V), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", ["sparse", "sparse rows", "of oneDNN", "nested"])
def test_kinds_as_arguments_of_scaled_dot_product_attention(kind):
    tensor = KINDS[kind][0](K)
    for name, given in (
        ("query", (tensor, K, V)),
        ("key", (K, tensor, V)),
        ("value", (K, V, tensor)),
    ):
        with pytest.raises(attn.InvalidArgument, match=f"^{name} .*the layout torch"):
            attn.torch.scaled_dot_product_attention(*given)


def _with(name, tensor, entry):
    """The call that reads the tensor as the argument `name`."""
    call = ENTRIES[entry]
    if name in ("q", "k", "v"):
        return call(**{"q": X, "k": K, "v": V, name: tensor})
    if name in ("_t0", "w"):
        score = attn.Formula("score * w", w=tensor) if name == "w" else lambda s: s.score * tensor
        return call(X, K, V, score=score)
    return call(X, K, V, **{name: tensor})


ONE = torch.tensor(1.0)
ARGUMENTS = {
    "q": X, "k": K, "v": V, "scale": ONE, "softcap": ONE, "bias": torch.zeros(6, 6),
    "alibi": torch.zeros(2), "sink": torch.zeros(2), "_t0": ONE, "w": ONE,
}  # fmt: skip
ALIBI_OF_BATCH = {"alibi": torch.zeros(1, 2)}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_tangents(name, entry):
    value = ARGUMENTS[name]
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(value.clone(), torch.ones_like(value))
        with pytest.raises(attn.Error, match=f"^{name} .*has a tangent of forward-mode"):
            _with(name, dual, entry)
        _with(name, value, entry)  # what has none is taken


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_transforms_of_torch_func(name, entry):
    """Refused by attn.attention; attn.torch refuses them of numbers, and forward mode
    (test_torch_transforms.py has what it takes).
    """
    value = ARGUMENTS[name]

    def function(tensor):
        return _with(name, tensor, entry).sum()

    transforms = {
        "grad": lambda: torch.func.grad(function)(value),
        "jvp": lambda: torch.func.jvp(function, (value,), (value,)),
        "vmap": lambda: torch.func.vmap(function)(value[None]),
    }
    reason = "is within a transform of torch.func"
    if entry == "torch" and name not in ("scale", "softcap"):
        transforms.pop("vmap")()
        if name != "w":
            transforms.pop("grad")()
        reason = "(requires a gradient|has no derivative of forward mode)"
    for call in transforms.values():
        with pytest.raises(attn.Error, match=f"^({name}|attn.torch) .*{reason}"):
            call()
    if name in ALIBI_OF_BATCH and entry == "attention":
        with pytest.raises(attn.Error, match=f"^{name} .*{reason}"):
            torch.func.grad(function)(ALIBI_OF_BATCH[name])


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", ["window", "max_seqlen_q", "causal", "rng"])
def test_vmap_of_numbers(name, entry):
    def call(number):
        value = (number, 0) if name in ("window", "rng") else number
        dropout = {"dropout": 0.5} if name == "rng" else {}
        return ENTRIES[entry](X, K, V, **{name: value}, **dropout)

    with pytest.raises(attn.Error, match=f"^{name} .*is within a transform of torch.func"):
        torch.func.vmap(call)(torch.ones(3, dtype=torch.int64))


def dual(t):
    return forward_ad.make_dual(t.clone(), torch.ones_like(t))


def cached(k_cache, k=None):
    lengths = {} if k is None else {"k": k, "v": V, "cache_seqlens": 3}
    return flash.flash_attn_with_kvcache(X, k_cache, torch.zeros_like(k_cache), **lengths)


RAW = (0.0, 1.0, False, -1, -1, 0.0, None, False)
OTHERS = {
    "backward": lambda: attn.attention_backward(dual(X), X, K, V, X, LSE),
    "backward's lse": lambda: attn.attention_backward(X, X, K, V, X, LSE, d_lse=dual(LSE)),
    "merge": lambda: attn.merge([(dual(X), LSE)]),
    "merge's lse": lambda: attn.merge([(X, dual(LSE))]),
    "plan": lambda: attn.plan(X, K, V)(dual(X), K, V),
    "out": lambda: attn.attention(X, K, V, out=dual(X)),
    "sdpa": lambda: attn.torch.scaled_dot_product_attention(X, dual(K), V),
    "sdpa's mask": lambda: attn.torch.scaled_dot_product_attention(
        X, K, V, attn_mask=dual(torch.zeros(2, 2, dtype=torch.float64))
    ),
    "flex": lambda: attn.torch.flex_attention(X, dual(K), V),
    "flex's score": lambda: attn.torch.flex_attention(X, K, V, lambda s, b, h, i, j: s * dual(ONE)),
    "flash": lambda: flash.flash_attn_func(X, dual(K), V),
    "flash's scale": lambda: flash.flash_attn_func(X, K, V, softmax_scale=dual(ONE)),
    "flash's softcap": lambda: flash.flash_attn_func(X, K, V, softcap=dual(ONE)),
    "flash's slopes": lambda: flash.flash_attn_func(X, K, V, alibi_slopes=dual(torch.zeros(2))),
    "a cache": lambda: cached(dual(K)),
    "new rows of a cache": lambda: cached(torch.zeros(1, 20, 2, 8), dual(K)),
    "flash's forward": lambda: flash._flash_attn_forward(X, dual(K), V, *RAW),
    "flash's backward": lambda: flash._flash_attn_backward(
        dual(X), X, K, V, X, LSE, None, None, None, *RAW
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_tangents_in_other_functions(name):
    with forward_ad.dual_level(), pytest.raises(attn.Error, match="has a tangent of forward-mode"):
        OTHERS[name]()


@pytest.mark.parametrize("return_lse", [False, True])
def test_a_tangent_of_the_gradient_is_refused(return_lse):
    q = X.clone().requires_grad_()
    out = attn.torch.attention(q, q, q, return_lse=return_lse)
    out = out[0] if return_lse else out
    with forward_ad.dual_level(), pytest.raises(attn.Unsupported, match="d_out has a tangent"):
        torch.autograd.grad(out, q, dual(X))


def test_merge_carries_tangents_on():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, K)
        out, _ = attn.torch.merge([(x, LSE), (V, LSE)])
        tangent = forward_ad.unpack_dual(out).tangent
    torch.testing.assert_close(tangent, K / 2)


def test_a_scale_of_flash_attention_that_requires_a_gradient():
    with pytest.raises(attn.InvalidArgument, match="softmax_scale is a Tensor that requires a"):
        flash.flash_attn_func(X, K, V, softmax_scale=ONE.clone().requires_grad_())
    out = flash.flash_attn_func(X, K, V, softmax_scale=ONE)
    assert torch.equal(out, flash.flash_attn_func(X, K, V, softmax_scale=1.0))


TRACES = {
    "make_fx": lambda function, q: make_fx(function, tracing_mode="real")(q),
    "torch.jit.trace": lambda function, q: torch.jit.trace(function, (q,), check_trace=False),
}


@pytest.mark.parametrize("trace", TRACES)
def test_traces(trace):
    """A trace has the call in it, not the result that it had for the traced tensor."""

    def traced(attend):
        return TRACES[trace](lambda q: attend(q, K, V, causal=True) + q, torch.randn_like(X))

    made = traced(attn.torch.attention)
    torch.testing.assert_close(made(X), attn.attention(X, K, V, causal=True) + X)
    with pytest.raises(attn.Unsupported, match="q is a tensor in a trace of PyTorch"):
        traced(attn.attention)


def test_modes_see_an_operator():
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Mode():
        out = attn.torch.attention(X, K, V)
    assert "attn.forward.default" in seen
    assert torch.equal(out, attn.torch.attention(X, K, V))
    with Mode():  # here the library is called, as without a mode
        assert torch.equal(out, attn.attention(X, K, V))


def test_a_tensor_that_was_written_is_no_longer_what_a_gradient_needs():
    out, lse, kept = torch.zeros_like(X), LSE.clone(), torch.ones(1, 2, 6, 6, dtype=torch.uint8)
    weight = torch.ones((), requires_grad=True)
    losses = [(weight * t.float()).sum() for t in (out, lse)]
    attn.attention(X, K, V, out=out, lse=lse)
    for loss in losses:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    before = kept._version
    attn.dropout_mask(kept, 0.5, 1)
    assert kept._version > before


def test_a_window_of_tensors_is_read_at_each_call():
    left = torch.tensor(1)
    narrow = attn.attention(X, K, V, window=(left, 0))
    left.fill_(4)
    wide = attn.attention(X, K, V, window=(left, 0))
    assert torch.equal(narrow, attn.attention(X, K, V, window=(1, 0)))
    assert torch.equal(wide, attn.attention(X, K, V, window=(4, 0)))
    assert not torch.equal(narrow, wide)
    array = np.array(4)
    assert torch.equal(wide, attn.attention(X, K, V, window=(array, 0)))


def test_autocast_and_inference_mode_change_no_result():
    want = attn.attention(X, K, V)
    torch.testing.assert_close(want, dense(X, K, V), rtol=2e-6, atol=2e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attn.attention(X, K, V), want)
    with torch.inference_mode():
        assert torch.equal(attn.attention(X, K, V), want)
        assert torch.equal(attn.torch.attention(X, K, V), want)
