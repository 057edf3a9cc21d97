"""attn.torch.scaled_dot_product_attention against PyTorch's own, on the CPU."""

from __future__ import annotations

import random
from functools import partial

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import attn  # noqa: E402
import attn.torch  # noqa: E402
from torch_problems import assert_as_exact, leaf, relative_errors  # noqa: E402

# PyTorch's compiler uses what PyTorch calls deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def sdpa_problem(seed, draw, dtype):
    """Random arguments of scaled_dot_product_attention, numbers of dtype in double precision."""
    choose = random.Random(seed)
    torch.manual_seed(100 * seed + draw)
    lead = choose.choice([(), (2,), (3, 2), (1,), (2, 3, 2)])
    heads_k = choose.choice([1, 2, 3])
    groups = choose.choice([1, 1, 2, 4]) if lead else 1
    n, m = choose.choice([(5, 5), (33, 33), (70, 41), (1, 64), (40, 129)])
    d, dv = choose.choice([(8, 8), (16, 16), (20, 12), (64, 64)])
    batch = lead if len(lead) < 2 else lead[:-1]
    q = torch.randn(*batch, heads_k * groups, n, d, dtype=torch.float64)
    k = torch.randn(*batch, heads_k, m, d, dtype=torch.float64)
    v = torch.randn(*batch, heads_k, m, dv, dtype=torch.float64)
    if choose.random() < 0.5:  # as models have them: a transposed view
        q, k, v = (t.transpose(-3, -2).contiguous().transpose(-3, -2) for t in (q, k, v))
    keywords = {"enable_gqa": groups > 1}
    kind = choose.choice(["none", "causal", "bool", "numbers", "broadcast"])
    shape = (*q.shape[:-1], m)
    if kind == "causal":
        keywords["is_causal"] = True
    elif kind == "bool":
        keywords["attn_mask"] = torch.rand(n, m) < 0.7
    elif kind == "numbers":
        keywords["attn_mask"] = torch.randn(shape, dtype=torch.float64)
    elif kind == "broadcast":
        keep = [choose.random() < 0.5 for _ in shape[:-2]]
        sizes = [s if kept else 1 for s, kept in zip(shape, keep, strict=False)]
        keywords["attn_mask"] = torch.randn(*sizes, n, m, dtype=torch.float64)
    if choose.random() < 0.3:
        keywords["scale"] = choose.uniform(0.01, 0.5)
    if kind in ("numbers", "broadcast"):
        keywords["attn_mask"] = keywords["attn_mask"].to(dtype).double()
    return [t.to(dtype).double() for t in (q, k, v)], keywords


def run_sdpa(function, tensors, keywords, dtype):
    tensors = [t.to(dtype, copy=True).requires_grad_() for t in tensors]
    mask = keywords.get("attn_mask")
    differentiable = list(tensors)
    if mask is not None and mask.is_floating_point():
        mask = mask.to(dtype, copy=True).requires_grad_()
        keywords = {**keywords, "attn_mask": mask}
        differentiable.append(mask)
    out = function(*tensors, **keywords)
    torch.manual_seed(7)
    gradient = torch.randn(out.shape, dtype=torch.float64).to(dtype)
    return [out, *torch.autograd.grad(out, differentiable, gradient)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_scaled_dot_product_attention(seed, dtype):
    theirs = F.scaled_dot_product_attention
    yardsticks = []
    for draw in range(12 if dtype == torch.float32 else 3):
        tensors, keywords = sdpa_problem(seed, draw, dtype)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            exact = run_sdpa(theirs, tensors, keywords, torch.float64)
            yardsticks.append(relative_errors(run_sdpa(theirs, tensors, keywords, dtype), exact))
    ours = run_sdpa(attn.torch.scaled_dot_product_attention, tensors, keywords, dtype)
    assert all(t.dtype == dtype for t in ours)
    if dtype == torch.float32 and tensors[0].shape[-2] == 1:
        # P = exp(score - LSE) has the rounding of one LSE in every element of dV, a sum of one
        # term, and PyTorch's P has not: gradients are up to 2.1 times as far off as PyTorch's.
        ours, exact, yardsticks = ours[:1], exact[:1], [errors[:1] for errors in yardsticks]
    assert_as_exact(ours, exact, yardsticks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("is_hooked", [False, True])
def test_sdpa_rows_of_the_least_number_are_means(dtype, is_hooked):
    """As padding on the left gives them: finfo.min is no -inf in any type, whatever it becomes."""
    q, k, v = (torch.randn(1, 2, 6, 8, dtype=dtype) for _ in range(3))
    mask = torch.zeros(6, 6, dtype=dtype)
    mask[:2] = torch.finfo(dtype).min
    mask[2, :3] = torch.finfo(dtype).min
    mask[3] = -torch.inf
    if is_hooked and not hasattr(torch.nn.attention, "activate_flash_attention_impl"):
        pytest.skip("this PyTorch has no such list")
    if is_hooked:
        torch.nn.attention.activate_flash_attention_impl("attn")
        try:
            found = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
        finally:
            torch.nn.attention.restore_flash_attention_impl()
    else:
        found = attn.torch.scaled_dot_product_attention(q, k, v, mask)
    limit = 1e-2 if dtype == torch.bfloat16 else 1e-6
    mean = v.mean(2, keepdim=True).expand(1, 2, 2, 8)
    torch.testing.assert_close(found[:, :, :2], mean, rtol=limit, atol=limit)
    scores = (q @ k[:, :, 3:].mT / 8**0.5)[:, :, 2:3]
    torch.testing.assert_close(
        found[:, :, 2:3], torch.softmax(scores, -1) @ v[:, :, 3:], rtol=limit, atol=limit
    )
    assert not found[:, :, 3].any()


def test_sdpa_rows_without_keys_are_zero():
    q, k, v = (leaf(1, 2, 6, 8) for _ in range(3))
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    out = attn.torch.scaled_dot_product_attention(q, k, v, mask)
    assert (out[:, :, 2] == 0).all()
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert (gradient[:, :, 2] == 0).all()


SDPA_SHAPES = {
    "without a batch": ((5, 8), (6, 8), (6, 8)),
    "one batch of keys": ((2, 4, 5, 8), (1, 4, 6, 8), (1, 4, 6, 8)),
    "one head of keys": ((2, 4, 5, 8), (2, 1, 6, 8), (2, 4, 6, 8)),
    "no batch of keys": ((2, 3, 4, 5, 8), (4, 6, 8), (3, 4, 6, 8)),
    "one batch of queries": ((1, 1, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8)),
}


def expect_as_in_pytorch(tensors, **options):
    """The result and the gradients of the tensors are those of PyTorch."""
    found, wanted = (
        function(*tensors, **options)
        for function in (attn.torch.scaled_dot_product_attention, F.scaled_dot_product_attention)
    )
    torch.testing.assert_close(found, wanted)
    weights = torch.randn_like(wanted)
    gradients = [torch.autograd.grad(out, tensors, weights) for out in (found, wanted)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SDPA_SHAPES)
def test_sdpa_broadcasts(name):
    tensors = [leaf(*shape) for shape in SDPA_SHAPES[name]]
    expect_as_in_pytorch(tensors)


@pytest.mark.parametrize("mask", [None, (4, 7), (6, 4, 7), (1, 4, 7), (6, 1, 1), "causal"])
@pytest.mark.parametrize("heads", [(3, 3), (1, 1), (6, 6), (2, 3)])
def test_sdpa_of_grouped_heads_without_a_batch(heads, mask):
    tensors = [leaf(6, 4, 8), leaf(heads[0], 7, 8), leaf(heads[1], 7, 5)]
    options = {"enable_gqa": True}
    if mask == "causal":
        options["is_causal"] = True
    elif mask is not None:
        options["attn_mask"] = torch.randn(mask) if mask != (1, 4, 7) else torch.rand(mask) < 0.7
    expect_as_in_pytorch(tensors, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_sdpa_that_drops_all(has_bias, dtype):
    q, k, v = (leaf(1, 2, 6, 8, dtype=dtype) for _ in range(3))
    tensors = [q, k, v, leaf(6, 6, dtype=dtype)] if has_bias else [q, k, v]
    for function in (attn.torch.scaled_dot_product_attention, F.scaled_dot_product_attention):
        out = function(*tensors, dropout_p=1.0)
        gradients = torch.autograd.grad(out, tensors, torch.randn_like(out))
        assert out.shape == q.shape
        for tensor, like in zip((out, *gradients), (q, *tensors), strict=True):
            assert tensor.dtype == like.dtype
            assert tensor.shape == like.shape
            assert (tensor == 0).all()
    made = torch.compile(
        partial(attn.torch.scaled_dot_product_attention, dropout_p=1.0),
        backend="aot_eager",
        fullgraph=True,
    )
    assert (made(q, k, v) == 0).all()
    for probability in (1.5, -0.1, float("nan")):
        with pytest.raises(attn.InvalidArgument, match=r"dropout is .*; accepted is a"):
            attn.torch.scaled_dot_product_attention(q, k, v, dropout_p=probability)
    with pytest.raises(attn.InvalidArgument, match="dropout is 1.0"):
        attn.torch.attention(q, k, v, dropout=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_sdpa_under_autocast(dtype):
    q, k, v = (leaf(1, 2, 6, 8, dtype=dtype) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = (
            function(q, k, v)
            for function in (
                attn.torch.scaled_dot_product_attention,
                F.scaled_dot_product_attention,
            )
        )
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("heads_k", "heads_v"), [(4, 2), (2, 4), (1, 8)])
def test_sdpa_heads_of_values_differ(heads_k, heads_v):
    tensors = [leaf(2, heads, 6, 8) for heads in (8, heads_k, heads_v)]
    weights = torch.randn(2, 8, 6, 8)
    found, wanted = (
        torch.autograd.grad(function(*tensors, enable_gqa=True), tensors, weights)
        for function in (attn.torch.scaled_dot_product_attention, F.scaled_dot_product_attention)
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def _mask(*shape, dtype=torch.float32):
    return {"attn_mask": torch.zeros(shape, dtype=dtype)}


X = torch.randn(1, 4, 3, 8)
REFUSALS = {
    "fewer heads": ((X, X[:, :2], X[:, :2]), {}, "enable_gqa=True"),
    "two masks": (
        (X, X, X),
        {**_mask(3, 3, dtype=torch.bool), "is_causal": True},
        "is one of them",
    ),
    "a vector": ((X[0, 0, 0], X, X), {}, r"query has shape \(8,\); accepted is \[..., seqlen"),
    "a mask of other lengths": ((X, X, X), _mask(4, 3), r"attn_mask is of torch.float32 \(4, 3\)"),
    "a mask of other heads": ((X, X, X), _mask(2, 3, 3), r"scores, \(1, 4, 3, 3\)"),
    "a mask of more dimensions": ((X, X, X), _mask(1, 1, 4, 3, 3), "attn_mask is of torch.float32"),
    "a mask of integers": (
        (X, X, X),
        _mask(3, 3, dtype=torch.int64),
        "attn_mask is of torch.int64",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_sdpa_refusals(name):
    tensors, keywords, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        attn.torch.scaled_dot_product_attention(*tensors, **keywords)


def test_sdpa_of_other_libraries():
    with pytest.raises(TypeError, match="key is a ndarray; accepted are tensors of PyTorch"):
        attn.torch.scaled_dot_product_attention(X, X.numpy(), X)
    with pytest.raises(TypeError, match="attn_mask is a ndarray; accepted are tensors of PyTorch"):
        attn.torch.scaled_dot_product_attention(X, X, X, X[0, 0].numpy())
