"""Attention as FlashAttention documents it, in torch, sequence by sequence, differentiable."""

from __future__ import annotations

import torch


def attend(
    q,
    k,
    v,
    *,
    scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    slopes=None,
    sink=None,
    chunk=0,
    leftpad=0,
    kept=None,
    dropout_p=0.0,
    offset=None,
):
    """(out, lse) of one sequence: q [Sq, H, D], k [Sk, Hk, D], v [Sk, Hk, Dv], slopes [H].

    kept: bool [H, Sq, Sk], of dropout. The last query stands at the last key.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    s = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    i = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    j = torch.arange(k.shape[0])
    if slopes is not None:
        s = s - slopes[:, None, None] * (i - j).abs()
    seen = (j >= leftpad) & (i == i)
    if causal:
        seen &= j <= i
    if window_size[0] >= 0:
        seen &= j >= i - window_size[0]
    if window_size[1] >= 0:
        seen &= j <= i + window_size[1]
    if chunk:
        of_key, of_query = (  # chunks are counted from the first key that counts
            (place - leftpad).div(chunk, rounding_mode="floor") for place in (j, i)
        )
        seen &= of_key == of_query
    s = s.masked_fill(~seen, -torch.inf)
    if sink is not None:
        s = torch.cat((s, sink[:, None, None].expand(-1, s.shape[1], 1)), -1)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - lse.detach().masked_fill(lse == -torch.inf, 0)[..., None])
    p = p / p.sum(-1, keepdim=True).clamp_min(1e-300)
    p = p[..., : k.shape[0]]
    if kept is not None:
        p = p * kept / (1 - round(32768 * dropout_p) / 32768)
    return torch.einsum("hij,jhd->ihd", p, v), lse


def batched(q, k, v, slopes=None, kept=None, **options):
    """(out [B, Sq, H, D], lse [B, H, Sq]); q, k and v: tensors or lists of sequences."""
    found = []
    for b in range(len(q)):
        of_b = slopes[b] if slopes is not None and slopes.dim() == 2 else slopes
        mask = None if kept is None else kept[b, :, : len(q[b]), : len(k[b])]
        found.append(attend(q[b], k[b], v[b], slopes=of_b, kept=mask, **options))
    return found


def stacked(found):
    outs, lses = zip(*found, strict=True)
    return torch.stack(outs), torch.stack(lses)


def packed(found):
    outs, lses = zip(*found, strict=True)
    return torch.cat(outs), torch.cat(lses, 1)


def assert_close(ours, exact, factor=2e-5):
    """Within `factor` of the largest number; infinities at the same places.

    Inputs are of order 1, so that what cancels to less leaves the rounding of numbers near 1.
    """
    assert ours.shape == exact.shape
    infinite = exact.isinf()
    assert torch.equal(ours.isinf(), infinite)
    ours, exact = (t.double().masked_fill(infinite, 0) for t in (ours, exact))
    largest = max(exact.abs().max().item(), 0.1) if exact.numel() else 0
    error = (ours - exact).abs().max().item() if exact.numel() else 0
    assert error <= factor * largest, f"{error} > {factor} * {largest}"
