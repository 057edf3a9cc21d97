"""Between padded sequences `(batch, seqlen, ...)` and their rows packed, `(total, ...)`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "index_first_axis",
    "index_first_axis_residual",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """Rows `indices` of x; differentiable."""
    return x.index_select(0, indices)


def index_first_axis_residual(x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `indices` of x, and x, for a residual connection."""
    return x.index_select(0, indices), x


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Zeros `(first_axis_dim, ...)` with `values` at rows `indices`; differentiable."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices, values)


def _cumulated(lengths: Tensor) -> Tensor:
    return functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Packs the rows that a mask names.

    Args:
        hidden_states: `(batch, seqlen, ...)`.
        attention_mask: `(batch, seqlen)`, bool or 0 and 1: rows in use.
        unused_mask: `(batch, seqlen)`, rows that are packed as well, but not in use.

    Returns:
        Rows `(total, ...)`; their indices among all `(total,)`; cu_seqlens int32 `(batch + 1,)`;
        the longest sequence, an int; rows in use of each, int32 `(batch,)`.
    """
    packed = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = packed.sum(-1, dtype=torch.int32)
    indices = packed.flatten().nonzero().flatten()
    return (
        index_first_axis(hidden_states.flatten(0, 1), indices),
        indices,
        _cumulated(lengths),
        int(lengths.max()),
        attention_mask.sum(-1, dtype=torch.int32),
    )


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Packs rows that hold several short sequences one after the other.

    Args:
        hidden_states: `(batch, seqlen, ...)`.
        attention_mask_in_length: `(batch, seqlen)`, integers: the lengths of a row's sequences,
            then zeros: `[2, 3, 0, 0, 0, 0]` are one of 2, one of 3, and a row of padding.

    Returns:
        Rows, indices, cu_seqlens and the longest sequence, as unpad_input.
    """
    used = attention_mask_in_length.sum(-1, keepdim=True)
    rows = torch.arange(attention_mask_in_length.shape[-1], device=used.device)
    indices = (rows < used).flatten().nonzero().flatten()
    lengths = attention_mask_in_length.flatten()
    lengths = lengths[lengths != 0]
    packed = index_first_axis(hidden_states.flatten(0, 1), indices)
    return packed, indices, _cumulated(lengths), int(lengths.max())


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Rows `(total, ...)` at places `indices` of `(batch, seqlen, ...)`, zeros elsewhere."""
    padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.view(batch, seqlen, *padded.shape[1:])
