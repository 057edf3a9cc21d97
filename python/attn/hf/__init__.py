"""attn as an attention implementation of transformers:

attn.hf.register()
model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attn")
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor

from .. import torch as attn_torch
from ..errors import InvalidArgument
from ..torch.shapes import as_bias
from .mask import Mask, make_mask
from .refusals import KNOWN, refuse_unknown, refuse_weights
from .sharded import shard

__all__ = ["register", "set_paged", "shard"]


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | Mask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,  # the mask has it
    indices: Tensor | None = None,
    output_attentions: bool | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Transformers' `AttentionInterface`: q, k, v `[B, H, S, D]` to `[B, S, H, D]`.

    indices: `[B, S, topk]`, the keys that a query sees of those that the mask lets it see.
    """
    refuse_weights(output_attentions)
    refuse_unknown(type(module), rest)
    mask: Any = None
    bias = None
    scores = (*query.shape[:3], key.shape[2])
    if isinstance(attention_mask, Mask):
        if attention_mask.tensor is None and attention_mask.shape == (scores[0], 1, *scores[2:]):
            mask = attention_mask.mask_mod
        else:
            _check_sizes("attention_mask", attention_mask, scores)
            attention_mask = attention_mask.as_tensor()
    elif attention_mask is None:  # `make_mask` leaves none out: the model wants none
        mask = "key <= query" if is_causal and query.shape[2] > 1 else None
    elif not isinstance(attention_mask, Tensor):
        raise InvalidArgument(
            f"attention_mask is a {type(attention_mask).__name__}; accepted are a tensor, None and "
            "what transformers makes of these"
        )
    for name, tensor in (("attention_mask", attention_mask), ("position_bias", position_bias)):
        if not isinstance(tensor, Tensor):
            continue
        _check_sizes(name, tensor, scores)
        if tensor.dtype == torch.bool:
            mask = tensor
        else:
            tensor = as_bias(tensor) if tensor is attention_mask else tensor
            bias = tensor if bias is None else bias + tensor
    if indices is not None:
        none = query.new_full((scores[0], 1, *scores[2:]), -torch.inf)
        chosen = as_bias(none.scatter(3, indices.long().unsqueeze(1), 0.0))
        bias = chosen if bias is None else bias + chosen
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


KNOWN.update(signature(_attention).parameters)


def _check_sizes(name: str, given: Tensor | Mask, scores: tuple[int, ...]) -> None:
    """Refuses what the sum with scores `[batch, heads, seqlen_q, seqlen_k]` would refuse too."""
    if len(given.shape) != 4 or any(
        n not in (1, most) for n, most in zip(given.shape, scores, strict=True)
    ):
        raise InvalidArgument(
            f"{name} has shape {tuple(given.shape)}; accepted is {scores}, that of the scores, or "
            "1 in place of any of these"
        )


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

    `set_paged` is for continuous batching. Masks stay formulas, of the padding and of packed
    sequences as well, until a model works on them. Sinks, softcap, sliding windows, position biases
    and chosen keys are those that the model passes; other tensors, and attention weights as a
    result, are refused.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(name, make_mask)
    for paged in (f"paged|{name}", f"{name}_flash"):
        AttentionInterface.register(paged, _paged_attention)
        AttentionMaskInterface.register(paged, make_mask)


def set_paged(model: Any, name: str = "attn") -> None:
    """Has a model of transformers attend by attn in continuous batching (`model.generate_batch`).

    `register(name)` comes before. `model.set_attn_implementation(name)` takes it back: what runs
    outside of continuous batching needs that.
    """
    from transformers.generation.continuous_batching.cache import PagedAttentionCache

    if "kwargs" not in signature(PagedAttentionCache.update).parameters:  # pyright: ignore
        model.set_attn_implementation(f"paged|{name}")
        return
    # Transformers 5.23 batches with its own implementations and with any whose name has "flash" in
    # it, for which set_attn_implementation would look among the kernels of its hub.
    model.config._attn_implementation = f"{name}_flash"
