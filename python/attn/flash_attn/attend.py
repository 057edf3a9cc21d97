"""The arguments that all functions of FlashAttention share, as those of attn.torch.attention."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import torch
from torch import Tensor

from .. import torch as attn_torch
from ..errors import InvalidArgument
from ..formula import Formula
from ..options import refuse_more_than_number
from ..torch.rng import draw_rng


def sides_of(window_size: Any) -> tuple[int, int]:
    """(left, right) of a window; -1: no bound. A tensor of two integers is accepted too."""
    try:
        left, right = (-1 if side is None else int(side) for side in window_size)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"window_size is {window_size!r}; accepted is (left, right), -1 for no bound"
        ) from None
    return max(left, -1), max(right, -1)


def window_masks(window_size: Any) -> tuple[list[str], dict[str, Any]]:
    """Masks, and the numbers that they read: another window compiles no kernel anew."""
    left, right = sides_of(window_size)
    masks: list[str] = []
    buffers: dict[str, Any] = {}
    if left >= 0:
        masks.append("position - key <= window_left")
        buffers["window_left"] = left
    if right >= 0:
        masks.append("key - position <= window_right")
        buffers["window_right"] = right
    return masks, buffers


def is_local(causal: bool, window_size: Any) -> bool:
    return causal or sides_of(window_size) != (-1, -1)


def _check_slopes(slopes: Tensor, heads: int, batch: int) -> None:
    if slopes.dtype != torch.float32 or tuple(slopes.shape) not in ((heads,), (batch, heads)):
        raise InvalidArgument(
            f"alibi_slopes is {slopes.dtype} {tuple(slopes.shape)}; accepted is float32 "
            f"({heads},) or ({batch}, {heads})"
        )


def _number(name: str, value: Any) -> float:
    """A finite number; one that torch.compile lets change is asked nothing."""
    if isinstance(value, Tensor):
        refuse_more_than_number(name, value)
    if torch.compiler.is_compiling():
        return float(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidArgument(f"{name} is {value!r}; accepted is a finite number")
    return number


def _chunk(attention_chunk: Any) -> int:
    try:
        return index(attention_chunk)
    except TypeError:
        raise InvalidArgument(
            f"attention_chunk is {attention_chunk!r}; accepted is a number of keys, 0 for no chunks"
        ) from None


def arguments_of(
    q: Tensor,
    *,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    attention_chunk: int = 0,
    leftpad: Tensor | None = None,
    sink: Tensor | None = None,
    rng: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The keywords of attn.torch.attention, checked, of which q is looked at for its shape.

    attention_chunk: a query sees keys of the chunk of its place alone, where chunks are of so many
    keys, from the first that counts. leftpad: int32 [batch], that key. rng: what `draw_rng` gives.
    """
    if not 0 <= dropout_p < 1:
        raise InvalidArgument(f"dropout_p is {dropout_p!r}; accepted is a number in [0, 1)")
    if alibi_slopes is not None:
        batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        _check_slopes(alibi_slopes, q.shape[-2], batch)
    masks, buffers = window_masks(window_size)
    first = "" if leftpad is None else " - leftpad[batch]"
    if chunk := _chunk(attention_chunk):
        masks.append(f"(key{first}) / {chunk} == (position{first}) / {chunk}")
    if leftpad is not None:
        masks.append("key >= leftpad[batch]")
        buffers["leftpad"] = leftpad
    if dropout_p:
        options.update(dropout=dropout_p, rng=draw_rng(q) if rng is None else rng)
    if cu_seqlens_q is not None:
        options["cu_seqlens_q"] = cu_seqlens_q.contiguous()
    if cu_seqlens_k is not None:
        options["cu_seqlens_k"] = cu_seqlens_k.contiguous()
    cap = _number("softcap", softcap)
    options.update(
        mask=Formula(" && ".join(masks), **buffers) if masks else None,
        scale=None if softmax_scale is None else _number("softmax_scale", softmax_scale),
        causal=bool(causal),
        softcap=cap if cap > 0 else None,
        alibi=alibi_slopes,
        sink=None if sink is None else sink.float(),
    )
    return options


def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """(out, lse), differentiable. A row without keys has out 0 and lse -inf. options: those of
    `arguments_of`.
    """
    result: tuple[Tensor, Tensor] = attn_torch.attention(
        q, k, v, return_lse=True, **arguments_of(q, **options)
    )
    return result


def infinite_where_empty(lse: Tensor) -> Tensor:
    """LSE as FlashAttention 2 gives it: +inf for a row without keys."""
    return lse.masked_fill(lse == -torch.inf, torch.inf)


def lengths_of(cu_seqlens: Tensor) -> Tensor:
    return cu_seqlens[1:] - cu_seqlens[:-1]
