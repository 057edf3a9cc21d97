"""attn as an attention implementation of transformers:

attn.hf.register()
model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attn")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from . import torch as attn_torch
from .errors import InvalidArgument
from .symbol import symbols

__all__ = ["register", "set_paged"]


class _Mask(BlockMask):
    """An index function in the place where transformers looks for a tensor or a BlockMask."""

    def __init__(self, mask_mod: Callable[..., Any], shape: tuple[int, int, int, int]) -> None:
        self.mask_mod = mask_mod
        self.sizes = shape

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.sizes

    def contiguous(self) -> _Mask:
        """Itself: transformers 5.23 asks for it where a cache is static."""
        return self

    def __repr__(self) -> str:
        return f"attn mask of {self.sizes}"


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    device: Any = "cpu",
    **_: Any,
) -> _Mask:
    """The index function with its offsets and the padding, transformers' `sdpa_mask` as a formula.

    Offsets that change from step to step are read from memory, so that one kernel serves all steps;
    the usual ones are none: the last query stands at the last key.
    """
    static = isinstance(q_offset, Tensor)
    # Place of the query: symbols.position + shift, or, where a tensor says it, query + q_offset.
    shift = q_offset if static else q_offset - (kv_length - q_length)
    start = _offset(shift, device)
    key_start = _offset(kv_offset, device)
    first = symbols.query if static else symbols.position

    def function(b: Any, h: Any, q: Any, k: Any) -> Any:
        q = first if start is None else first + start
        k = k if key_start is None else k + key_start
        seen = True if mask_function is None else mask_function(b, h, q, k)
        return seen if attention_mask is None else seen & attention_mask[b, k]

    return _Mask(function, (batch_size, 1, q_length, kv_length))


def _offset(value: int | Tensor, device: Any) -> Tensor | None:
    if isinstance(value, Tensor):  # the cache raises its own in place before the mask is read
        return value.clone().reshape(())
    return torch.tensor(value, dtype=torch.int32, device=device) if value else None


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Transformers' `AttentionInterface`: q, k, v `[B, H, S, D]` to `[B, S, H, D]`."""
    mask: Any = None
    bias = position_bias
    if isinstance(attention_mask, _Mask):
        mask = attention_mask.mask_mod
    elif isinstance(attention_mask, Tensor):
        allowed = attention_mask[..., : key.shape[2]]
        if allowed.dtype == torch.bool:
            mask = allowed
        else:
            bias = allowed if bias is None else bias + allowed
    elif query.shape[2] > 1:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask = "key <= query" if causal else None
    if bias is not None:
        bias = bias[..., : key.shape[2]]
    out = attn_torch.attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        mask=mask,
        bias=bias,
        sink=None if s_aux is None else s_aux.float(),
        softcap=softcap,
        scale=scaling,
        dropout=dropout,
    )
    return out, None


def _paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    cache: Any = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | dict[str, Tensor] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | dict[str, int] | None = None,
    read_index: Any = None,
    write_index: Any = None,
    sliding_window: int | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """As `_attention` in continuous batching: every token of the batch is a row of one sequence.

    The cache stores the new keys, and gives those that each sequence sees, one after the other.
    From transformers 5.24 on the model has asked it before, and key and value are what it gave.
    """
    window = sliding_window or getattr(module, "sliding_window", None)
    is_updated = cache is None and "max_length_q" in rest and isinstance(cu_seq_lens_k, Tensor)
    if is_updated and cu_seq_lens_q is not None and rest.get("block_table") is None:
        return _packed(
            query, key[0].transpose(0, 1), value[0].transpose(0, 1), window, softcap, s_aux,
            scaling, cu_seq_lens_q, cu_seq_lens_k, rest["max_length_q"], rest["max_length_k"],
        )  # fmt: skip
    if cache is None or cu_seq_lens_q is None:
        raise InvalidArgument(
            "a model with a paged attention was called without the cache of continuous batching; "
            "accepted are model.generate_batch and its like, or "
            "model.set_attn_implementation('attn')"
        )
    if "max_length_q" in rest:  # transformers 5.23
        found = {
            "cu_seq_lens_k": cu_seq_lens_k,
            "max_length_k": rest["max_length_k"],
            "read_index": read_index,
            "write_index": write_index,
        }
        key, value = cache.update(key, value, module.layer_idx, kwargs=found)
        return _packed(
            query, key[0].transpose(0, 1), value[0].transpose(0, 1), window, softcap, s_aux,
            scaling, cu_seq_lens_q, found["cu_seq_lens_k"], rest["max_length_q"],
            found["max_length_k"],
        )  # fmt: skip
    key, value = cache.update(
        key_states=key,
        value_states=value,
        layer_idx=module.layer_idx,
        read_index=read_index,
        write_index=write_index,
    )
    layer = "sliding_attention" if window else "full_attention"
    lengths = cu_seq_lens_k[layer] if isinstance(cu_seq_lens_k, dict) else cu_seq_lens_k
    longest = max_seqlen_k[layer] if isinstance(max_seqlen_k, dict) else max_seqlen_k
    return _packed(
        query, key, value, window, softcap, s_aux, scaling, cu_seq_lens_q, lengths, max_seqlen_q,
        longest,
    )  # fmt: skip


def _packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int | None,
    softcap: float | None,
    s_aux: Tensor | None,
    scaling: float | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
) -> tuple[Tensor, None]:
    """Query `[1, heads, total_q, head_dim]`, key and value `[total_k, heads_k, head_dim]`."""
    out = attn_torch.attention(
        query.transpose(1, 2).squeeze(0),
        key,
        value,
        causal=True,
        window=(window - 1, 0) if window else None,
        sink=None if s_aux is None else s_aux.float(),
        softcap=softcap,
        scale=scaling,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
    )
    return out.unsqueeze(0), None


def register(name: str = "attn") -> None:
    """Makes attn known to transformers (5 or newer) as `attn_implementation=name`.

    `set_paged` is for continuous batching. Masks stay formulas: of the padding and of packed
    sequences as well. Sinks, softcap, sliding windows and position biases are those that the model
    passes. Attention weights are not returned.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(name, _mask)
    for paged in (f"paged|{name}", f"{name}_flash"):
        AttentionInterface.register(paged, _paged_attention)
        AttentionMaskInterface.register(paged, _mask)


def set_paged(model: Any, name: str = "attn") -> None:
    """Has a model of transformers attend by attn in continuous batching (`model.generate_batch`).

    `register(name)` comes before. `model.set_attn_implementation(name)` takes it back: what runs
    outside of continuous batching needs that.
    """
    from inspect import signature

    from transformers.generation.continuous_batching.cache import PagedAttentionCache

    if "kwargs" not in signature(PagedAttentionCache.update).parameters:  # pyright: ignore
        model.set_attn_implementation(f"paged|{name}")
        return
    # Transformers 5.23 batches with its own implementations and with any whose name has "flash" in
    # it, for which set_attn_implementation would look among the kernels of its hub.
    model.config._attn_implementation = f"{name}_flash"
