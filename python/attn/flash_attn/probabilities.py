"""What `return_attn_probs` returns beside out and lse. For tests: it computes all scores."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..operations import dropout_mask
from .attend import lengths_of, sides_of


def _rounded(n: int) -> int:
    return (n + 127) // 128 * 128


def _exponentials(
    q: Tensor,
    k: Tensor,
    *,
    softmax_scale: float | None,
    causal: bool,
    window_size: Any,
    softcap: float,
    slopes: Tensor | None,
) -> Tensor:
    """exp(score - largest score of the row), float32 [heads_q, seqlen_q, seqlen_k], 0 if masked.

    q: [seqlen_q, heads_q, head_dim], k: [seqlen_k, heads_k, head_dim], slopes: [heads_q].
    """
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = torch.einsum("ihd,jhd->hij", q.float(), k.float()) * scale
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    place = torch.arange(q.shape[0], device=q.device)[:, None] + k.shape[0] - q.shape[0]
    key = torch.arange(k.shape[0], device=q.device)
    if slopes is not None:
        s = s - slopes[:, None, None] * (place - key).abs()
    left, right = sides_of(window_size)
    right = 0 if causal else right
    if right >= 0:
        s = s.masked_fill(key > place + right, -torch.inf)
    if left >= 0:
        s = s.masked_fill(key < place - left, -torch.inf)
    largest = s.amax(-1, keepdim=True) if k.shape[0] else s.new_zeros(*s.shape[:-1], 1)
    return torch.exp(s - largest.masked_fill(largest == -torch.inf, 0))


def dropped_probabilities(
    q: Tensor,
    k: Tensor,
    dropout_p: float,
    rng: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    alibi_slopes: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """S_dmask: exp(score - largest score of the row), negative where dropout drops it.

    Returns:
        Of q's dtype, `[batch, heads_q, seqlen_q, seqlen_k]`, the two lengths rounded up to a
        multiple of 128. Magnitudes are at least the smallest number, so that each has a sign.
    """
    if cu_seqlens_q is None or cu_seqlens_k is None:
        queries, keys = list(q), list(k)
        max_seqlen_q, max_seqlen_k = q.shape[1], k.shape[1]
    else:
        queries = list(torch.split(q, lengths_of(cu_seqlens_q).tolist()))
        keys = list(torch.split(k, lengths_of(cu_seqlens_k).tolist()))
    heads = q.shape[-2]
    shape = (len(queries), heads, max_seqlen_q, max_seqlen_k)
    found = q.new_zeros(*shape[:2], _rounded(max_seqlen_q), _rounded(max_seqlen_k))
    with torch.no_grad():
        for b, (x, y) in enumerate(zip(queries, keys, strict=True)):
            slopes = alibi_slopes
            if slopes is not None and slopes.dim() == 2:
                slopes = slopes[b]
            p = _exponentials(x, y, slopes=slopes, **options)
            found[b, :, : x.shape[0], : y.shape[0]] = p.to(q.dtype)
        information = torch.finfo(q.dtype)
        found.clamp_(min=max(information.tiny * information.eps, 2.0**-126))
        kept = dropout_mask(
            torch.empty(shape, dtype=torch.bool, device=q.device),
            dropout_p,
            rng,
        )
        inner = found[..., :max_seqlen_q, :max_seqlen_k]
        inner.copy_(torch.where(kept, inner, -inner))
    return found
