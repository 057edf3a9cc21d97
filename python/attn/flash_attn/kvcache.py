"""Attention to a cache of keys and values, with rows appended to it in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import torch as attn_torch
from ..errors import InvalidArgument
from . import cache_checks
from .attend import arguments_of, is_local, lengths_of
from .layers.rotary import apply_rotary_emb, sequence_of


def _append(
    cache: Tensor, new: Tensor, sequence: Tensor, place: Tensor, page: Tensor | None
) -> None:
    """cache[sequence, place] = new, or the row of the sequence's page."""
    if page is None:
        cache[sequence, place] = new
    else:
        cache[page.long(), place % cache.shape[1]] = new


def attend_with_cache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    *,
    rotary_cos: Tensor | None,
    rotary_sin: Tensor | None,
    rotary_interleaved: bool,
    cache_seqlens: int | Tensor | None,
    cache_batch_idx: Tensor | None,
    cache_leftpad: Tensor | None,
    page_table: Tensor | None,
    page_table_name: str,
    causal: bool,
    window_size: Any,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    qv: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """(out, lse), -inf for a row without keys. Arguments are those of flash_attn_with_kvcache.

    cu_seqlens_q, cu_seqlens_k_new: of q and of k, v packed. rotary_seqlens: places where Q and K
    are rotated, cache_seqlens if None. qv: the scores are q k^T + qv v^T.
    """
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if (k is None) != (v is None):
        raise InvalidArgument(
            f"k is {'None' if k is None else 'given'} and v is "
            f"{'None' if v is None else 'given'}; accepted are both or none"
        )
    if (rotary_cos is None) != (rotary_sin is None) or (rotary_cos is not None and k is None):
        raise InvalidArgument(
            "rotary_cos, rotary_sin, k and v are not all given; accepted are all of them, or "
            "neither rotary_cos nor rotary_sin"
        )
    lengths = cache_checks.lengths(cache_seqlens, batch, k_cache)
    if k is not None and lengths is None:
        raise InvalidArgument(
            "cache_seqlens is None and k is given; accepted are an int or int32 "
            f"({batch},), the rows before those appended"
        )
    if k is not None and v is not None:
        is_packed = cu_seqlens_k_new is not None
        cache_checks.check_new_rows(k, v, k_cache, v_cache, batch, is_packed)
    held = batch if page_table is None and cache_batch_idx is None else None
    cache_checks.check_cache(q, k_cache, v_cache, qv, held, is_packed=cu_seqlens_q is not None)
    if page_table is not None:
        listed = batch if cache_batch_idx is None else None
        cache_checks.check_table(page_table_name, page_table, listed)
    if cu_seqlens_q is not None:
        options.update(cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q)
    arguments = arguments_of(
        q, causal=causal, window_size=window_size, leftpad=cache_leftpad, **options
    )
    if cache_leftpad is not None:
        cache_checks.check_vector("cache_leftpad", cache_leftpad, batch)
    if cache_batch_idx is not None:
        cache_checks.check_vector("cache_batch_idx", cache_batch_idx, batch)
        sequences = len(k_cache if page_table is None else page_table)
        cache_checks.check_range("cache_batch_idx", cache_batch_idx, sequences, "its sequences")
    if cache_batch_idx is not None and page_table is not None:
        page_table = page_table[cache_batch_idx.long()]
    with torch.no_grad():
        room = k_cache.shape[1] if page_table is None else page_table.shape[1] * k_cache.shape[1]
        source = "k_cache" if page_table is None else page_table_name
        total: Tensor | None = lengths
        if k is not None and v is not None and lengths is not None:
            if cu_seqlens_k_new is None:
                added: int | Tensor = k.shape[1]
                sequence = torch.arange(batch, device=k.device)[:, None]
                place = lengths.long()[:, None] + torch.arange(k.shape[1], device=k.device)
            else:
                added = lengths_of(cu_seqlens_k_new)
                rows = torch.arange(k.shape[0], device=k.device)
                sequence = sequence_of(rows, cu_seqlens_k_new)
                place = (lengths - cu_seqlens_k_new[:-1]).long()[sequence] + rows
            total = lengths + added
            cache_checks.check_room(total, room, source, page_table is not None)
            page: Tensor | None = None
            if page_table is not None:
                page = page_table[sequence, place.div(k_cache.shape[1], rounding_mode="floor")]
                cache_checks.check_range(page_table_name, page, len(k_cache), "the cache's pages")
            if rotary_cos is not None and rotary_sin is not None:
                start = lengths if rotary_seqlens is None else rotary_seqlens
                k = apply_rotary_emb(
                    k, rotary_cos, rotary_sin, rotary_interleaved, False, start, cu_seqlens_k_new
                )
                q = _rotated_queries(
                    q, rotary_cos, rotary_sin, rotary_interleaved, start, cu_seqlens_q,
                    is_local(causal, window_size),
                )  # fmt: skip
            if cache_batch_idx is not None and page_table is None:
                sequence = cache_batch_idx.long()[sequence]
            _append(k_cache, k.to(k_cache.dtype), sequence, place, page)
            _append(v_cache, v.to(v_cache.dtype), sequence, place, page)
        elif lengths is not None:
            cache_checks.check_room(lengths, room, source, page_table is not None)
        if page_table is None and cache_batch_idx is not None:
            page_table = cache_batch_idx[:, None]  # a sequence of the cache is a page
        if page_table is None:
            k_cache, v_cache = k_cache[:batch], v_cache[:batch]
        elif total is None:
            total = torch.full((batch,), room, dtype=torch.int32, device=q.device)
        if qv is not None:
            q, k_cache = _one_product(q, qv, k_cache, v_cache)
        result: tuple[Tensor, Tensor] = attn_torch.attention(
            q, k_cache, v_cache, return_lse=True, seqused_k=total, page_table=page_table,
            **arguments,
        )  # fmt: skip
        return result


def _one_product(q: Tensor, qv: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Q and K whose product is q k^T + qv v^T.

    A cache of latent attention may hold v and then k of a row, of which K is a view and V its
    first columns. Of other caches K is a copy.
    """
    if not torch.compiler.is_compiling() and _follows(k, v):
        columns = v.shape[-1] + k.shape[-1]
        return torch.cat((qv, q), -1), v.as_strided((*v.shape[:-1], columns), v.stride())
    return torch.cat((q, qv), -1), torch.cat((k, v), -1)


def _follows(k: Tensor, v: Tensor) -> bool:
    """Whether each row of k begins in memory where that of v ends."""
    return bool(
        k.dtype == v.dtype
        and k.shape[:-1] == v.shape[:-1]
        and k.stride() == v.stride()
        and k.stride(-1) == 1
        and k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
        and k.storage_offset() == v.storage_offset() + v.shape[-1]
    )


def _rotated_queries(
    q: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    start: Tensor,
    cu_seqlens_q: Tensor | None,
    is_local: bool,
) -> Tensor:
    """Queries that look back from their places turn by these; others all stand at the first."""
    if is_local:
        return apply_rotary_emb(q, cos, sin, interleaved, False, start, cu_seqlens_q)
    if cu_seqlens_q is None:
        heads = apply_rotary_emb(q.flatten(1, 2)[:, None], cos, sin, interleaved, False, start)
        return heads.view(q.shape)
    rows = torch.arange(q.shape[0], device=q.device)
    start = start[sequence_of(rows, cu_seqlens_q)]
    return apply_rotary_emb(q[:, None], cos, sin, interleaved, False, start)[:, 0]
