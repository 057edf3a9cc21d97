"""The functions of FlashAttention 2, on CPU and CUDA tensors.

Common arguments: `dropout_p`, of P, drawn from PyTorch's generator; `softmax_scale`, None for
1 / sqrt(headdim); `causal`, aligned bottom-right, so that the last query sees the last key;
`window_size`, keys `(left, right)` of the query's place, -1 for no bound; `softcap`, where above
0: softcap tanh(score / softcap); `alibi_slopes`, float32 `(nheads,)` or `(batch, nheads)`:
score - slope |i + seqlen_k - seqlen_q - j|; `deterministic`: the same bits each time;
`learnable_sink`, an addition: a logit of each query head in the denominator. K and V may have
fewer heads, a divisor of Q's.

Functions return out, shaped as q, or with `return_attn_probs` (out, softmax_lse, S_dmask).
softmax_lse is float32 `(batch, nheads, seqlen_q)`, packed `(nheads, total_q)`, natural, +inf for
a row that sees no key, whose out is 0; it is differentiable. S_dmask is for tests
(probabilities.py).

Errors are attn.Error, which is a RuntimeError; those of arguments are a ValueError too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import InvalidArgument
from ..torch.rng import draw_rng
from .attend import attend, infinite_where_empty, lengths_of
from .kvcache import attend_with_cache
from .probabilities import dropped_probabilities
from .raw import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
    flash_attn_gpu,
)

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "flash_attn_func",
    "flash_attn_gpu",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

USE_TRITON_ROCM = False


def _get_block_size_n(device: Any, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """Keys of a block of S_dmask, each with a scale of its own; here a row has one scale."""
    return 2**30


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_attn_probs: bool,
    learnable_sink: Tensor | None,
    deterministic: bool,
    block_table: Tensor | None = None,
    lengths: dict[str, Any],
    **common: Any,
) -> Any:
    """common: dropout_p to alibi_slopes. lengths: cu_seqlens and max_seqlens of packed tensors."""
    rng = draw_rng(q) if common["dropout_p"] else None
    given = dict(lengths)
    if block_table is not None:
        given["seqused_k"] = lengths_of(given.pop("cu_seqlens_k"))
        given["page_table"] = block_table
    given["deterministic"] = bool(deterministic)
    out, lse = attend(q, k, v, rng=rng, sink=learnable_sink, **common, **given)
    if not return_attn_probs:
        return out
    if rng is None:
        return out, infinite_where_empty(lse), q.new_empty(0)
    if block_table is not None:
        raise InvalidArgument(
            f"return_attn_probs is {return_attn_probs} with dropout_p and block_table; accepted "
            "are two of them"
        )
    return out, infinite_where_empty(lse), dropped_probabilities(q, k, rng=rng, **common, **lengths)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    learnable_sink: Tensor | None = None,
) -> Any:
    """Attention of q `(batch, seqlen_q, nheads, d)` and k, v `(batch, seqlen_k, nheads_k, d)`."""
    return _call(
        q, k, v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes,
        deterministic=deterministic, return_attn_probs=return_attn_probs,
        learnable_sink=learnable_sink, lengths={},
    )  # fmt: skip


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_func, of kv `(batch, seqlen_k, 2, nheads_k, d)`."""
    k, v = _unpacked("kv", kv, 5, 2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_func, of qkv `(batch, seqlen, 3, nheads, d)`."""
    q, k, v = _unpacked("qkv", qkv, 5, 3)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    learnable_sink: Tensor | None = None,
) -> Any:
    """Attention within packed sequences.

    q `(total_q, nheads, d)`, k and v `(total_k, nheads_k, d)`, cu_seqlens int32 `(batch + 1,)`.
    With block_table, int32 `(batch, pages of a sequence)`, k and v are
    `(num_pages, page_size, nheads_k, d)`, and there is no gradient.
    """
    lengths = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": int(max_seqlen_q),
        "max_seqlen_k": int(max_seqlen_k),
    }
    return _call(
        q, k, v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes,
        deterministic=deterministic, return_attn_probs=return_attn_probs,
        learnable_sink=learnable_sink,
        block_table=block_table, lengths=lengths,
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_varlen_func, of kv `(total_k, 2, nheads_k, d)`."""
    k, v = _unpacked("kv", kv, 4, 2)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_varlen_func, of qkv `(total, 3, nheads, d)`."""
    q, k, v = _unpacked("qkv", qkv, 4, 3)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def _unpacked(name: str, packed: Tensor, rank: int, parts: int) -> tuple[Tensor, ...]:
    if packed.dim() != rank or packed.shape[-3] != parts:
        lead = "batch, seqlen" if rank == 5 else "total"
        raise InvalidArgument(
            f"{name} has shape {tuple(packed.shape)}; accepted is ({lead}, {parts}, heads, headdim)"
        )
    return packed.unbind(-3)  # whose gradient is one stack


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention to a cache, after k and v were written into it; no gradient.

    Args:
        q: `(batch, seqlen_q, nheads, d)`.
        k_cache, v_cache: `(batch_cache, seqlen_cache, nheads_k, d)`, or with block_table
            `(num_pages, page_size, nheads_k, d)`, page_size any.
        k, v: `(batch, seqlen_new, nheads_k, d)`, written in place at rows `cache_seqlens` and on.
        rotary_cos, rotary_sin: `(seqlen, rotary_dim / 2)`, need k and v. K is rotated by its row
            of the cache, Q by cache_seqlens + i where causal or a window is set, else all of Q
            by cache_seqlens.
        cache_seqlens: int or int32 `(batch,)`, rows in use before k and v; None: all.
        cache_batch_idx: int32 `(batch,)`, the sequence of the cache of each query.
        cache_leftpad: int32 `(batch,)`, rows of the cache that do not count.
        block_table: int32 `(batch, pages of a sequence)`.
        rotary_interleaved: Pairs are neighbours; else the two halves.
        num_splits: A hint, ignored; the plan decides.

    Returns:
        out, or (out, softmax_lse).
    """
    out, lse = attend_with_cache(
        q, k_cache, v_cache, k, v, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved, cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad, page_table=block_table,
        page_table_name="block_table", softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes,
    )  # fmt: skip
    return (out, infinite_where_empty(lse)) if return_softmax_lse else out
