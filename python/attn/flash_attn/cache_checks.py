"""What flash_attn_with_kvcache refuses, all of it before a row is written.

Values of tensors are looked at on the CPU alone, those of a page table's lengths on a GPU too: that
waits for the GPU. Nothing is looked at while a graph is captured or torch.compile reads the call.
"""

from __future__ import annotations

from operator import index
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgument


def have_values(tensor: Tensor) -> bool:
    """Whether values can be looked at without waiting."""
    return not (tensor.is_cuda or tensor.is_meta or torch.compiler.is_compiling())


def check_range(name: str, numbers: Tensor, end: int, what: str) -> None:
    """Refuses numbers outside of [0, end), whose rows would be others than meant."""
    if not have_values(numbers) or not numbers.numel():
        return
    least, most = int(numbers.min()), int(numbers.max())
    if least < 0 or most >= end:
        wrong = least if least < 0 else most
        raise InvalidArgument(f"{name} has {wrong}; accepted are 0 to {end - 1}, {what}")


def check_vector(name: str, tensor: Tensor, batch: int) -> None:
    if tensor.dtype != torch.int32 or tuple(tensor.shape) != (batch,):
        raise InvalidArgument(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}; accepted is int32 ({batch},)"
        )


def lengths(cache_seqlens: Any, batch: int, k_cache: Tensor) -> Tensor | None:
    """cache_seqlens as int32 (batch,), contiguous."""
    if cache_seqlens is None:
        return None
    if isinstance(cache_seqlens, Tensor) and cache_seqlens.dim():
        check_vector("cache_seqlens", cache_seqlens, batch)
        check_range("cache_seqlens", cache_seqlens, 2**31, "rows in use")
        return cache_seqlens.contiguous()
    try:
        rows = cache_seqlens if isinstance(cache_seqlens, int) else index(cache_seqlens)
    except TypeError:
        rows = -1
    if rows < 0:
        raise InvalidArgument(
            f"cache_seqlens is {cache_seqlens!r}; accepted are int32 ({batch},) and an int from 0"
        )
    return torch.full((batch,), rows, dtype=torch.int32, device=k_cache.device)


def check_cache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, qv: Tensor | None, batch: int | None,
    *, is_packed: bool,
) -> None:  # fmt: skip
    """batch: sequences that the cache must have, None where a table or an index names them."""
    if k_cache.dim() != 4 or (batch is not None and len(k_cache) < batch):
        raise InvalidArgument(
            f"k_cache has shape {tuple(k_cache.shape)}; accepted is (batch or pages, rows, "
            f"nheads_k, headdim)" + ("" if batch is None else f", for {batch} sequences")
        )
    if v_cache.shape[:-1] != k_cache.shape[:-1]:
        raise InvalidArgument(
            f"v_cache has shape {tuple(v_cache.shape)}; accepted is {tuple(k_cache.shape[:-1])} "
            "as k_cache, and headdim_v"
        )
    heads = k_cache.shape[-2]
    lead = 1 if is_packed else 2
    fits = q.dim() == lead + 2 and q.shape[-1] == k_cache.shape[-1]
    if not fits or heads == 0 or q.shape[-2] % heads:
        accepted = "total" if is_packed else "batch, seqlen"
        raise InvalidArgument(
            f"q has shape {tuple(q.shape)}; accepted is ({accepted}, a multiple of {heads} heads, "
            f"{k_cache.shape[-1]})"
        )
    if qv is not None and qv.shape != (*q.shape[:-1], v_cache.shape[-1]):
        raise InvalidArgument(
            f"qv has shape {tuple(qv.shape)}; accepted is {(*q.shape[:-1], v_cache.shape[-1])}"
        )
    casts = torch.is_autocast_enabled(q.device.type)
    others = {"k_cache": k_cache, "v_cache": v_cache} | ({} if qv is None else {"qv": qv})
    for name, tensor in others.items():
        if tensor.device != q.device or not (casts or tensor.dtype == q.dtype):
            raise InvalidArgument(
                f"{name} is {tensor.dtype} on {tensor.device}; accepted is {q.dtype} on "
                f"{q.device}, as q"
            )


def check_table(name: str, table: Tensor, rows: int | None) -> None:
    """rows: the sequences, None where an index chooses some."""
    if table.dtype != torch.int32 or table.dim() != 2 or rows not in (None, len(table)):
        raise InvalidArgument(
            f"{name} is {table.dtype} {tuple(table.shape)}; accepted is int32 "
            f"({'sequences' if rows is None else rows}, pages)"
        )


def check_new_rows(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, batch: int, is_packed: bool
) -> None:
    """Refuses rows that would be written by broadcasting them."""
    lead = ("total",) if is_packed else (batch, "seqlen_new")
    for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
        fits = new.dim() == len(lead) + 2 and new.shape[-2:] == cache.shape[-2:]
        if not fits or new.shape[:-2] != k.shape[:-2] or (not is_packed and len(new) != batch):
            accepted = ", ".join(map(str, (*lead, *cache.shape[-2:])))
            raise InvalidArgument(
                f"{name} has shape {tuple(new.shape)}; accepted is ({accepted}), k and v alike but "
                "for their headdim"
            )


def check_room(total: Tensor, room: int, source: str, is_paged: bool) -> None:
    """Whether the cache has room.

    On a GPU this waits for the lengths. Pages are worth that, since a row past the table would be
    written to another sequence.
    """
    if torch.compiler.is_compiling():
        return
    if total.is_cuda and (not is_paged or torch.cuda.is_current_stream_capturing()):
        return
    longest = int(total.max()) if total.numel() else 0
    if longest > room:
        raise InvalidArgument(
            f"cache_seqlens needs {longest} rows, those appended among them; accepted are at most "
            f"{room}, for which {source} has room"
        )
