"""The functions of FlashAttention 3 (`flash_attn_interface`), on CPU and CUDA tensors.

They differ from those of FlashAttention 2: no dropout, no ALiBi; `return_attn_probs` returns
(out, softmax_lse), -inf for a row that sees no key; `qv` adds qv v^T to q k^T, and the scale is
then 1 / sqrt(headdim + headdim_v); with `attention_chunk` a query sees the keys of the chunk of its
place alone; v may have another headdim. `num_splits`, `pack_gqa`, `sm_margin` and
`scheduler_metadata` are hints, ignored: the plan decides. Tensors of 8-bit floats, with
`q_descale`, `k_descale` and `v_descale`, are taken by all but `flash_attn_with_kvcache`; out is
then bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import torch as attn_torch
from ..errors import InvalidArgument, Unsupported
from ..torch.float8 import is_float8
from .attend import attend
from .kvcache import attend_with_cache
from .layers.rotary import split_heads

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]


def _no_float8(q: Tensor, **descales: Tensor | None) -> None:
    if is_float8(q):
        raise Unsupported(
            f"q is {q.dtype}; accepted in flash_attn_with_kvcache are float32, bfloat16 and "
            "float16, and 8-bit floats in flash_attn_func and flash_attn_varlen_func"
        )
    for name, descale in descales.items():
        if descale is not None:
            raise Unsupported(f"{name} is given and q is {q.dtype}; accepted is None")


def _scales(
    q: Tensor,
    k: Tensor,
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> dict[str, Tensor]:
    """The factors of rows: a descale is float32 `(batch, nheads_k)`, of q too."""
    scales: dict[str, Tensor] = {}
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    for name, descale, rows, starts in (
        ("q", q_descale, q, cu_seqlens_q),
        ("k", k_descale, k, cu_seqlens_k),
        ("v", v_descale, k, cu_seqlens_k),
    ):
        if descale is None:
            continue
        if not is_float8(q):
            raise Unsupported(f"{name}_descale is given and q is {q.dtype}; accepted is None")
        if descale.dtype != torch.float32 or tuple(descale.shape) != (batch, k.shape[-2]):
            raise InvalidArgument(
                f"{name}_descale is {descale.dtype} {tuple(descale.shape)}; accepted is float32 "
                f"({batch}, {k.shape[-2]})"
            )
        heads = rows.shape[-2]
        if heads % max(k.shape[-2], 1):
            raise InvalidArgument(
                f"q has {heads} heads and k {k.shape[-2]}; accepted is a multiple of those of k"
            )
        scale = descale.repeat_interleave(heads // max(k.shape[-2], 1), -1)
        if batch == 0:
            scales[f"scale_{name}"] = descale.new_ones(rows.shape[:-1])
        elif starts is None:
            scales[f"scale_{name}"] = scale[:, None].expand(rows.shape[:-1])
        else:  # rows behind the last sequence have that of the last
            places = torch.arange(rows.shape[0], dtype=torch.int32, device=rows.device)
            of_rows = torch.searchsorted(starts[1:].contiguous(), places, right=True)
            scales[f"scale_{name}"] = scale[of_rows.clamp(max=batch - 1)]
    return scales


def _with_qv(
    q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor, float | None]:
    """q, k and the scale of a problem whose scores are those with qv."""
    if qv is None:
        return q, k, scale
    if is_float8(q, k, v, qv):
        raise Unsupported(f"q is {q.dtype} and qv is given; accepted is None")
    if scale is None:
        scale = (q.shape[-1] + qv.shape[-1]) ** -0.5
    return torch.cat((q, qv), -1), torch.cat((k, v), -1), scale


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q `(batch, seqlen_q, nheads, d)`, k and v `(batch, seqlen_k, nheads_k, d)`."""
    scales = _scales(q, k, q_descale, k_descale, v_descale)
    q, k, softmax_scale = _with_qv(q, k, v, qv, softmax_scale)
    result = attend(
        q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        softcap=softcap, attention_chunk=attention_chunk, deterministic=deterministic, **scales,
    )  # fmt: skip
    return result if return_attn_probs else result[0]


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_func, of qkv `(batch, seqlen, 3, nheads, d)`, or of
    `(batch, seqlen, num_heads_q + 2 num_heads_k, d)` with num_heads_q.
    """
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        q, k, v = qkv.unbind(2)
    elif qkv.dim() == 4 and num_heads_q is not None:
        q, k, v = split_heads(qkv, num_heads_q)
    else:
        raise InvalidArgument(
            f"qkv has shape {tuple(qkv.shape)} and num_heads_q is {num_heads_q}; accepted is "
            "(batch, seqlen, 3, heads, headdim), or (batch, seqlen, heads, headdim) with it"
        )
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size,
        attention_chunk, softcap, deterministic=deterministic,
        return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention within packed sequences, of which seqused_q and seqused_k rows are in use.

    q `(total_q, nheads, d)`, k and v `(total_k, nheads_k, d)`, cu_seqlens int32 `(batch + 1,)`,
    seqused int32 `(batch,)`.
    """
    scales = _scales(q, k, q_descale, k_descale, v_descale, cu_seqlens_q, cu_seqlens_k)
    q, k, softmax_scale = _with_qv(q, k, v, qv, softmax_scale)
    result = attend(
        q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        softcap=softcap, attention_chunk=attention_chunk, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, max_seqlen_q=int(max_seqlen_q), max_seqlen_k=int(max_seqlen_k),
        seqused_q=seqused_q, seqused_k=seqused_k, deterministic=deterministic, **scales,
    )  # fmt: skip
    return result if return_attn_probs else result[0]


def flash_attn_combine(
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention over all keys from attention over disjoint sets of them.

    Args:
        out_partial: float32 `(sets, batch, seqlen, nheads, headdim)` or `(sets, total, ...)`.
        lse_partial: float32 `(sets, batch, seqlen, nheads)` or `(sets, total, nheads)`.
        out: Written, if given.
        out_dtype: Of out; None: that of out_partial.

    Returns:
        (out, lse), lse of the shape of lse_partial[0].
    """
    dtype = out_partial.dtype if out_dtype is None else out_dtype
    found, lse = attn_torch.merge(
        [(o, x.transpose(-1, -2)) for o, x in zip(out_partial, lse_partial, strict=True)]
    )
    found, lse = found.to(dtype), lse.transpose(-1, -2)
    return (found if out is None else out.copy_(found)), lse


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """As flash_attn.flash_attn_with_kvcache, with these arguments beside; no gradient.

    Args:
        qv: Like q, with v's headdim. A cache whose rows hold v and then k (v_cache =
            rows[..., :512], k_cache = rows[..., 512:]) is read where it is; others are copied.
        page_table: What flash_attn calls block_table; cache_batch_idx names its rows.
        cu_seqlens_q, max_seqlen_q: q is packed, `(total_q, nheads, d)`.
        cu_seqlens_k_new: k and v are packed.
        rotary_seqlens: int32 `(batch,)`, places to rotate by; None: cache_seqlens.

    Returns:
        out, or (out, softmax_lse, out_accum, softmax_lse_accum), the last two empty.
    """
    _no_float8(q, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    if softmax_scale is None and qv is not None:
        softmax_scale = (q.shape[-1] + qv.shape[-1]) ** -0.5
    out, lse = attend_with_cache(
        q, k_cache, v_cache, k, v, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved, cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad, page_table=page_table,
        page_table_name="page_table", softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, softcap=softcap, attention_chunk=attention_chunk,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k_new=cu_seqlens_k_new, max_seqlen_q=max_seqlen_q,
        rotary_seqlens=rotary_seqlens, qv=qv,
    )  # fmt: skip
    return (out, lse, q.new_empty(0), q.new_empty(0)) if return_softmax_lse else out


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Tensor:
    """An empty int32 tensor: nothing need be prepared for flash_attn_with_kvcache."""
    return cache_seqlens.new_empty(0, dtype=torch.int32)
