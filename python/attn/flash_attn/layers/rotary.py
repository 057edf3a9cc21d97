"""Rotary position embedding: pairs of dimensions of a head turn by an angle of the row's place.

cos and sin are `(seqlen_rotary, rotary_dim / 2)`, rotary_dim at most headdim; dimensions past
rotary_dim stay. Arithmetic is float32, rounded once. Differentiable.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import InvalidArgument

__all__ = [
    "apply_rotary_emb",
    "apply_rotary_emb_func",
    "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_",
    "apply_rotary_emb_torch",
]


def _places(x: Tensor, offsets: int | Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Rows of cos and sin: [seqlen], [batch, seqlen] or, packed, [total]."""
    if cu_seqlens is None:
        rows = torch.arange(x.shape[1], device=x.device)
        return rows + (offsets if isinstance(offsets, int) else offsets.long()[:, None])
    rows = torch.arange(x.shape[0], device=x.device)
    sequence = sequence_of(rows, cu_seqlens)
    rows = rows - cu_seqlens.long()[sequence]
    return rows + (offsets if isinstance(offsets, int) else offsets.long()[sequence])


def sequence_of(rows: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The sequence of each row of a packed tensor, rows past the last one counted to it."""
    found = torch.searchsorted(cu_seqlens[1:].long().contiguous(), rows, right=True)
    return found.clamp_(max=cu_seqlens.shape[0] - 2)


def _check(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor) -> None:
    if cos.shape != sin.shape or cos.dim() != 2 or 2 * cos.shape[1] > x.shape[-1]:
        raise InvalidArgument(
            f"cos and sin have shapes {tuple(cos.shape)} and {tuple(sin.shape)}; accepted are two "
            f"of (seqlen, rotary_dim / 2), rotary_dim at most headdim {x.shape[-1]}"
        )
    # The values of a GPU's tensor cannot be looked at without waiting for it.
    if torch.compiler.is_compiling() or places.is_cuda or places.is_meta or not places.numel():
        return
    first, last = int(places.min()), int(places.max())
    if first < 0 or last >= cos.shape[0]:
        raise InvalidArgument(
            f"cos has {cos.shape[0]} rows and row {first if first < 0 else last} is needed; "
            "accepted are offsets from 0 and at least seqlen plus the offset rows"
        )


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The first dimensions of x, turned; cos and sin: [..., 1, rotary_dim / 2] by rows of x."""
    cos, sin = cos.float(), sin.float()
    turned = x[..., : 2 * cos.shape[-1]].float()
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        pair = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        pair = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return pair.to(x.dtype)


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Turns x by the angles of its rows.

    Args:
        x: `(batch, seqlen, nheads, headdim)`, or `(total, nheads, headdim)` with cu_seqlens.
        cos, sin: `(seqlen_rotary, rotary_dim / 2)`.
        interleaved: Pairs are neighbours; else dimension i and i + rotary_dim / 2.
        inplace: Write into x and return it.
        seqlen_offsets: int or `(batch,)`, the place of each sequence's first row.
        cu_seqlens: int32 `(batch + 1,)`.
        max_seqlen: Not needed.
    """
    places = _places(x, seqlen_offsets, cu_seqlens)
    _check(x, cos, sin, places)
    found = _rotated(x, cos[places].unsqueeze(-2), sin[places].unsqueeze(-2), interleaved)
    rotary_dim = found.shape[-1]
    if inplace:
        x[..., :rotary_dim] = found
        return x
    return found if rotary_dim == x.shape[-1] else torch.cat((found, x[..., rotary_dim:]), -1)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_torch(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> Tensor:
    """apply_rotary_emb of rows from 0 on; cos and sin may be `(batch, seqlen, rotary_dim / 2)`."""
    found = _rotated(x, cos.unsqueeze(-2), sin.unsqueeze(-2), interleaved)
    return torch.cat((found, x[..., found.shape[-1] :]), -1)


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """Q and K turned in place; returns qkv.

    Args:
        qkv: `(batch, seqlen, 3, nheads, headdim)`, or
            `(batch, seqlen, num_heads_q + 2 num_heads_k, headdim)` with num_heads_q.
        cos_k, sin_k: Those of K; None: those of Q.
    """
    if qkv.dim() == 5:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    elif qkv.dim() == 4 and num_heads_q is not None:
        q, k, _ = split_heads(qkv, num_heads_q)
    else:
        raise InvalidArgument(
            f"qkv has shape {tuple(qkv.shape)} and num_heads_q is {num_heads_q}; accepted is "
            "(batch, seqlen, 3, heads, headdim), or (batch, seqlen, heads, headdim) with it"
        )
    apply_rotary_emb(q, cos, sin, interleaved, True, seqlen_offsets)
    cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    apply_rotary_emb(k, cos_k, sin_k, interleaved, True, seqlen_offsets)
    return qkv


def split_heads(qkv: Tensor, num_heads_q: int) -> tuple[Tensor, ...]:
    """q, k and v of `[..., num_heads_q + 2 num_heads_k, headdim]`."""
    rest = qkv.shape[-2] - num_heads_q
    if rest < 2 or rest % 2:
        raise InvalidArgument(
            f"num_heads_q is {num_heads_q} and qkv has {qkv.shape[-2]} heads; accepted is so many "
            "that an even number of 2 or more is left"
        )
    return torch.split(qkv, [num_heads_q, rest // 2, rest // 2], -2)


def apply_rotary_emb_kv_(
    kv: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
) -> Tensor:
    """K of kv `(batch, seqlen, 2, nheads, headdim)` turned in place; returns kv."""
    apply_rotary_emb(kv[:, :, 0], cos, sin, interleaved, True, seqlen_offsets)
    return kv
