"""What tests of attn.torch and attn.flex share."""

from __future__ import annotations

import pytest
import torch

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def leaf(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, dtype=dtype, device=device, requires_grad=True)


def dense(q, k, v, score=None, mask=None, sink=None):
    """Attention over all elements of S, layout b n h d, differentiable, in the tensors' dtype."""
    groups = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(groups, 2) for t in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    grids = torch.meshgrid(*map(torch.arange, s.shape), indexing="ij")
    if score is not None:
        s = score(s, *grids)
    if mask is not None:
        s = torch.where(mask(*grids), s, -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink.view(1, -1, 1, 1).expand(*s.shape[:-1], 1)], -1)
    p = s.softmax(-1).nan_to_num()
    return torch.einsum("bhij,bjhd->bihd", p[..., : k.shape[1]], v)


def relative_errors(theirs, exact):
    """The largest error of each result, over the largest number in it; at least 2^-24."""
    return [
        max(((a.double() - e).abs().max() / e.abs().max()).item(), 2**-24)
        for a, e in zip(theirs, exact, strict=True)
    ]


def assert_as_exact(ours, exact, yardsticks):
    """The error rule (docs/numerics.md): at most twice PyTorch's error, and one rounding.

    yardsticks: relative errors of PyTorch in the same dtype, of several draws.
    """
    for i, (a, e, errors) in enumerate(
        zip(ours, exact, zip(*yardsticks, strict=True), strict=True)
    ):
        assert a.shape == e.shape
        largest = e.abs().max()
        error = (a.double() - e).abs().max()
        allowed = (2 * max(errors) + torch.finfo(a.dtype).eps / 2) * largest
        assert error <= allowed, f"result {i}: {error} > {allowed}"


def same(a, b):
    """A comparison of another module, for functions that are traced."""
    return a == b
