"""What the library would refuse of q, k and v, where it does not see the tensors: on the meta
device, within torch.compile and torch.export. And in which order tensors lie in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cache_types import head_dim_of
from ..errors import InvalidArgument

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def as_bias(mask: Tensor) -> Tensor:
    """Numbers to add to scores in a type that the library reads: float64 becomes float32.

    Finite numbers stay finite: a row of `finfo.min` alone is the mean of V, and one of -inf 0.
    """
    if mask.dtype != torch.float64:
        return mask
    most = torch.finfo(torch.float32).max
    return torch.where(mask.isinf(), mask, mask.clamp(-most, most)).float()


def check_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads_first: bool,
    paged: bool = False,
    type_k: str = "",
    type_v: str = "",
) -> None:
    """Refuses devices, dtypes and shapes that do not fit. paged: k and v are pages. type_k, type_v:
    of caches, "" for that of q. A size that changes from call to call is left to the call.
    """
    if not q.device == k.device == v.device:
        raise InvalidArgument(
            f"q, k and v are on {q.device}, {k.device} and {v.device}; accepted is one device"
        )
    of_k, of_v = (stored(kind) if kind else q.dtype for kind in (type_k, type_v))
    if type_k or type_v:
        if k.dtype != of_k or v.dtype != of_v or q.dtype not in _DTYPES:
            raise InvalidArgument(
                f"q, k and v are of {q.dtype}, {k.dtype} and {v.dtype}; accepted are {of_k} of k "
                f"and {of_v} of v, as type_k is {type_k or None!r} and type_v {type_v or None!r}"
            )
    elif not q.dtype == k.dtype == v.dtype or q.dtype not in _DTYPES:
        raise InvalidArgument(
            f"q, k and v are of {q.dtype}, {k.dtype} and {v.dtype}; accepted is one dtype of "
            "float32, bfloat16, float16 and float64"
        )
    if not _fit(q, k, v, heads_first, paged, type_k):
        rows = "heads, seqlen" if heads_first else "seqlen, heads"
        raise InvalidArgument(
            f"q, k and v are {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}; accepted are "
            f"[batch, {rows}, head_dim] and packed [total, heads, head_dim], of the same batch, "
            "seqlen and heads of k and v, head_dim of q and k, and a multiple of these heads in q"
        )


def stored(kind: str) -> torch.dtype:
    """The dtype of a cache of that type."""
    floats = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    return floats.get(kind, torch.uint8)


def _fit(q: Tensor, k: Tensor, v: Tensor, heads_first: bool, paged: bool, type_k: str = "") -> bool:
    if q.dim() not in (3, 4) or k.dim() not in (3, 4) or k.dim() != v.dim():
        return False
    if _differ(q.shape[-1], head_dim_of(type_k, k.shape[-1])):
        return False
    for i in range(k.dim() - 1):
        if _differ(k.shape[i], v.shape[i]):
            return False
    if paged:
        return True
    if q.dim() == 4 and k.dim() == 4 and _differ(q.shape[0], k.shape[0]):
        return False
    heads, heads_k = (t.shape[1 if heads_first and t.dim() == 4 else -2] for t in (q, k))
    if type(heads) is not int or type(heads_k) is not int:
        return True
    return heads % heads_k == 0 if heads_k else heads == 0


def _differ(a: Any, b: Any) -> bool:
    return type(a) is int and type(b) is int and a != b


def last_contiguous(t: Tensor) -> Tensor:
    """With the last dimension innermost in memory, the others in the order that they had."""
    if t.stride(-1) == 1:
        return t
    order: list[int] = []
    for i in range(t.dim() - 1):
        at = 0
        while at < len(order) and t.stride(order[at]) >= t.stride(i):
            at += 1
        order.insert(at, i)
    back = [order.index(i) for i in range(len(order))]
    return t.permute(*order, -1).contiguous().permute(*back, -1)


def empty_as(t: Tensor, shape: Sequence[int]) -> Tensor:
    """A result that lies in memory as `t` does: the strides of bindings/pytorch.cpp."""
    strides = list(torch.empty_like(t).stride())
    if any(not _holds(a == b) for a, b in zip(shape, t.shape, strict=True)):
        inner_first: list[int] = []
        for i in reversed(range(t.dim())):
            at = len(inner_first)
            while at > 0 and _holds(strides[i] < strides[inner_first[at - 1]]):
                at -= 1
            inner_first.insert(at, i)
        step = 1
        for i in inner_first:
            strides[i] = step
            step = step * _at_least_one(shape[i])
    if not _holds(strides[-1] == 1) and not _holds(shape[-1] == 1):
        return t.new_empty(shape)
    strides[-1] = 1
    for i in reversed(range(t.dim() - 1)):
        if _holds(shape[i] == 1):
            strides[i] = strides[i + 1] * _at_least_one(shape[i + 1])
    return t.new_empty_strided(shape, strides)


def _holds(condition: Any) -> bool:
    """Whether it does; False of sizes that torch.compile does not know before the call runs, as
    those that follow from values. No such size is taken for 1.
    """
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import (  # loaded: it made the condition
        has_free_unbacked_symbols,
    )

    return not has_free_unbacked_symbols(condition) and bool(condition)


def _at_least_one(size: Any) -> Any:
    return max(size, 1) if isinstance(size, int) else torch.sym_max(size, 1)
