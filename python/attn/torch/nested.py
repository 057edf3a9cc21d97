"""Nested tensors of PyTorch in the layout torch.jagged, which are packed sequences: their rows
stand one after the other in values(), and offsets() says where a sequence begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgument
from ..options import OF_SEQUENCES

_OF_SEQUENCES = (*OF_SEQUENCES, "prefix_page_table")
_OTHER_LENGTHS = "k and v are nested of other lengths; accepted are the same"


def attention(
    attend: Callable[..., Any], q: Any, k: Any, v: Any, layout: str | None, **options: Any
) -> Any:
    """What `attend`, attn.torch.attention, gives for the packed rows, with the offsets of q.

    q, k, v: [batch, seqlen, heads, head_dim], jagged in seqlen, or with layout="bhsd" as these
    transposed. lse, where it is asked for: [batch, heads, seqlen]; max_logit, likewise: [heads],
    of all sequences.
    """
    heads_first = layout == "bhsd"
    dim = 2 if heads_first else 1
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.layout is not torch.jagged:
            raise InvalidArgument(
                f"{name} has the layout {t.layout} beside a nested tensor; accepted are q, k and v "
                "of the layout torch.jagged"
            )
        if t.dim() != 4 or t._ragged_idx != dim or layout == "thd":
            raise InvalidArgument(
                f"{name} is nested, of {t.dim()} dimensions, jagged in dimension {t._ragged_idx}, "
                f"with layout {layout!r}; accepted is [batch, seqlen, heads, head_dim] jagged in "
                "seqlen, and with layout='bhsd' its transpose(1, 2)"
            )
        if t.lengths() is not None:
            raise InvalidArgument(
                f"{name} is nested with gaps between its sequences; accepted is one without, as "
                f"{name}.contiguous() is"
            )
    for name in _OF_SEQUENCES:
        if options.get(name) is not None:
            raise InvalidArgument(
                f"{name} is given beside nested tensors; accepted are the lengths that these have"
            )
    if k.offsets() is not v.offsets() and not _are_equal(k.offsets(), v.offsets()):
        raise InvalidArgument(_OTHER_LENGTHS)
    for name, t in (("q", q), ("k", k)):
        options[f"cu_seqlens_{name}"] = t.offsets()
        if t.is_cuda:
            options[f"max_seqlen_{name}"] = t._get_max_seqlen()
    rows = [t.transpose(1, 2).values() if heads_first else t.values() for t in (q, k, v)]
    found = attend(*rows, **options)
    out, *others = found if isinstance(found, tuple) else (found,)
    out = _nested(out, q)
    out = out.transpose(1, 2) if heads_first else out
    if options.get("return_lse"):
        lse, *others = others
        others = [_nested(lse.transpose(0, 1), q).transpose(1, 2), *others]
    return (out, *others) if others else out


def _are_equal(offsets_k: Tensor, offsets_v: Tensor) -> bool:
    """Whether they are, or what is compiled asks at each call, where an error is a RuntimeError."""
    if not torch.compiler.is_compiling():
        return torch.equal(offsets_k, offsets_v)
    if offsets_k.shape != offsets_v.shape:
        return False
    torch._assert_async((offsets_k == offsets_v).all(), _OTHER_LENGTHS)
    return True


def _nested(rows: Tensor, like: Any) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(
        rows,
        like.offsets(),
        min_seqlen=like._maybe_min_seqlen,
        max_seqlen=like._maybe_max_seqlen,
    )
