"""The arguments that all functions of FlashAttention share, as those of attn.torch.attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import torch as attn_torch
from ..errors import InvalidArgument
from ..formula import Formula
from ..options import refuse_more_than_number
from ..torch_ops import draw_rng


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


def _scale(softmax_scale: Any) -> float | None:
    if isinstance(softmax_scale, Tensor):
        refuse_more_than_number("softmax_scale", softmax_scale)
    return None if softmax_scale is None else float(softmax_scale)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
) -> tuple[Tensor, Tensor]:
    """(out, lse), differentiable. A row without keys has out 0 and lse -inf.

    attention_chunk: a query sees keys of the chunk of its place alone, where chunks are of so many
    keys. leftpad: int32 [batch], the first key that counts. rng: what `draw_rng` gives.
    """
    if not 0 <= dropout_p < 1:
        raise InvalidArgument(f"dropout_p is {dropout_p!r}; accepted is a number in [0, 1)")
    if alibi_slopes is not None:
        batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        _check_slopes(alibi_slopes, q.shape[-2], batch)
    masks, buffers = window_masks(window_size)
    if attention_chunk:
        masks.append(f"key / {int(attention_chunk)} == position / {int(attention_chunk)}")
    if leftpad is not None:
        masks.append("key >= leftpad[batch]")
        buffers["leftpad"] = leftpad
    if dropout_p:
        options.update(dropout=dropout_p, rng=draw_rng(q) if rng is None else rng)
    if cu_seqlens_q is not None:
        options["cu_seqlens_q"] = cu_seqlens_q.contiguous()
    if cu_seqlens_k is not None:
        options["cu_seqlens_k"] = cu_seqlens_k.contiguous()
    result: tuple[Tensor, Tensor] = attn_torch.attention(
        q,
        k,
        v,
        mask=Formula(" && ".join(masks), **buffers) if masks else None,
        scale=_scale(softmax_scale),
        causal=bool(causal),
        softcap=softcap if softcap > 0 else None,
        alibi=alibi_slopes,
        sink=None if sink is None else sink.float(),
        return_lse=True,
        **options,
    )
    return result


def infinite_where_empty(lse: Tensor) -> Tensor:
    """LSE as FlashAttention 2 gives it: +inf for a row without keys."""
    return lse.masked_fill(lse == -torch.inf, torch.inf)


def lengths_of(cu_seqlens: Tensor) -> Tensor:
    return cu_seqlens[1:] - cu_seqlens[:-1]
