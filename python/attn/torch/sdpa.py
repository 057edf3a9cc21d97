"""PyTorch's scaled_dot_product_attention, by its name, arguments and meaning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgument
from .calls import attention, check_tensor, refuse_layout
from .shapes import as_bias, check_shapes


def _heads_first(enable_gqa: bool, *several: Tensor) -> list[Tensor]:
    """As [batch, heads, seqlen, head_dim]: leading dimensions are one batch, and a single one is
    heads where these may differ.
    """
    one = 0 if enable_gqa else 1
    return [
        t[None, None] if t.dim() == 2 else t.unsqueeze(one) if t.dim() == 3 else t.flatten(0, -4)
        for t in several
    ]


def _broadcast(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors with one shape of leading dimensions, but for heads where K and V have fewer."""
    kept = 3 if enable_gqa else 2
    lead = torch.broadcast_shapes(*(t.shape[:-kept] for t in (query, key, value)))
    query, key, value = (t.expand(*lead, *t.shape[-kept:]) for t in (query, key, value))
    return query, key, value


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention: same arguments, shapes and meaning.

    query `[N, ..., Hq, L, E]`, key `[N, ..., H, S, E]`, value `[N, ..., H, S, Ev]`. attn_mask,
    broadcast to `[N, ..., Hq, L, S]`: bool, true where the key is seen, or numbers to add, which
    may require a gradient; or a causal_upper_left or causal_lower_right of PyTorch. is_causal
    aligns the first query with the first key. A row without keys gives 0. dropout_p is in [0, 1];
    at 1 the result is 0, and so are its gradients. The result lies in memory as query does, in the
    order of its dimensions; in the usual one where query has more than four.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, tensor)
        if tensor.dim() < 2:
            raise InvalidArgument(
                f"{name} has shape {tuple(tensor.shape)}; accepted is [..., seqlen, head_dim]"
            )
        is_jagged = tensor.layout is torch.jagged
        if not is_jagged and (tensor.layout is not torch.strided or tensor.is_nested):
            refuse_layout(name, tensor)
        if is_jagged and tensor.shape[-1] == 0:
            raise InvalidArgument(
                f"{name} is nested with a last dimension of 0; accepted is one of 1 and more"
            )
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        try:  # noqa: SIM105, a form that torch.compile reads
            query, key, value = _broadcast(query, key, value, enable_gqa)
        except RuntimeError:
            pass  # refused below, or by attention
        if enable_gqa and query.dim() > 2 and key.shape[-3] != value.shape[-3]:
            key, value = (_as_many_heads(t, query.shape[-3]) for t in (key, value))
    if not enable_gqa and query.dim() > 3 and query.shape[-3] != key.shape[-3]:
        raise InvalidArgument(
            f"query has {query.shape[-3]} heads and key {key.shape[-3]}; accepted is the same "
            "number, or enable_gqa=True"
        )
    if is_causal and attn_mask is not None:
        raise InvalidArgument("attn_mask is given and is_causal=True; accepted is one of them")
    if query.is_nested and query.dim() != 4:
        raise InvalidArgument(
            f"query is nested, of {query.dim()} dimensions; accepted is [batch, heads, seqlen, "
            "head_dim], jagged in seqlen"
        )
    if attn_mask is not None and query.is_nested:
        raise InvalidArgument(
            "attn_mask is given beside nested tensors; accepted is is_causal, and in "
            "attn.torch.attention a mask or score that is a function"
        )
    lead = query.shape[:-2]
    mask: Any = "key <= query" if is_causal else None
    bias = None
    causal = False
    if attn_mask is not None and (sizes := _causal_bias(attn_mask)) is not None:
        if sizes[1:] != (query.shape[-2], key.shape[-2]):
            raise InvalidArgument(
                f"attn_mask is a CausalBias of {sizes[1]} queries and {sizes[2]} keys; accepted "
                f"are those of the tensors, {query.shape[-2]} and {key.shape[-2]}"
            )
        causal = sizes[0] == "LOWER_RIGHT"
        mask = None if causal else "key <= query"
    elif attn_mask is not None:
        scores = (*lead, query.shape[-2], key.shape[-2])
        attn_mask = _broadcastable(attn_mask, scores, enable_gqa)
        if attn_mask.dtype == torch.bool:
            mask = attn_mask
        else:
            bias = as_bias(attn_mask)
    if query.stride(-1) != 1:
        query = query.contiguous()
    q, k, v = query, key, value
    if query.dim() != 4:
        q, k, v = _heads_first(enable_gqa, query, key, value)
    no_heads = q.shape[1] == 0 and k.shape[1] == 0
    if no_heads:
        check_shapes(q, k, v, True)
    # Products of nothing are 0, so that one element of 0 more changes neither scores nor O.
    if q.shape[-1] == 0 and k.shape[-1] == 0:
        scale = 1.0
        q, k = _with_an_element(q), _with_an_element(k)
    if v.shape[-1] == 0:
        v = _with_an_element(v)
    drops_all = isinstance(dropout_p, (int, float)) and dropout_p == 1
    dropout = 0.0 if drops_all else dropout_p
    out: Tensor = (
        (q @ k.mT) @ v  # empty
        if no_heads
        else attention(
            q, k, v, mask=mask, bias=bias, causal=causal, scale=scale, dropout=dropout,
            layout="bhsd",
        )
    )  # fmt: skip
    if value.shape[-1] == 0:
        out = out[..., :0]
    if drops_all:  # P times 0, as PyTorch: NaN of the inputs stays, and all gradients are 0
        out = out * 0.0
    if query.dim() == 4:
        return out
    out = out.reshape(*lead, *out.shape[-2:])
    return out.contiguous() if query.dim() > 4 else out


def _with_an_element(t: Tensor) -> Tensor:
    return torch.nn.functional.pad(t, (0, 1))


def _as_many_heads(t: Tensor, heads: int) -> Tensor:
    """Keys or values of which each head serves several queries, with a head for each of these."""
    fewer = t.shape[-3]
    return t.repeat_interleave(heads // fewer, -3) if fewer and heads % fewer == 0 else t


def _causal_bias(attn_mask: Any) -> tuple[str, int, int] | None:
    """Variant, queries and keys of a bias of torch.nn.attention.bias, which has no memory."""
    if type(attn_mask) is Tensor or not isinstance(attn_mask, Tensor):
        return None
    from torch.nn.attention.bias import CausalBias

    if not isinstance(attn_mask, CausalBias):
        return None
    return attn_mask.variant.name, attn_mask.seq_len_q, attn_mask.seq_len_kv


def _broadcastable(attn_mask: Tensor, scores: tuple[int, ...], enable_gqa: bool) -> Tensor:
    """attn_mask as [batch or 1, heads or 1, seqlen_q, seqlen_k]; scores: the shape of Q Kᵀ."""
    check_tensor("attn_mask", attn_mask)
    if attn_mask.layout is not torch.strided or attn_mask.is_nested:
        raise InvalidArgument(
            f"attn_mask is a {type(attn_mask).__name__} of layout {attn_mask.layout}"
            f"{', nested' if attn_mask.is_nested else ''}; accepted is a strided tensor"
        )
    shape = attn_mask.shape
    fits = 0 < len(shape) <= len(scores)
    for size, wanted in zip(reversed(shape), reversed(scores), strict=False):
        fits = fits and size in (1, wanted)
    if not fits or not (attn_mask.dtype == torch.bool or attn_mask.is_floating_point()):
        raise InvalidArgument(
            f"attn_mask is of {attn_mask.dtype} {tuple(shape)}; accepted is bool, or floats to "
            f"add, of a shape that broadcasts to that of the scores, {tuple(scores)}"
        )
    if attn_mask.dim() <= 2:
        while attn_mask.dim() < 4:
            attn_mask = attn_mask.unsqueeze(0)
        return attn_mask
    if len(scores) == 4:
        return attn_mask if attn_mask.dim() == 4 else attn_mask.unsqueeze(0)
    if len(scores) == 3:
        return attn_mask.unsqueeze(0 if enable_gqa else 1)
    whole = attn_mask.expand(*scores[:-2], *shape[-2:])
    return whole.flatten(0, -4)
