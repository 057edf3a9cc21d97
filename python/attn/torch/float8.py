"""Attention to tensors of torch.float8_e4m3fn and torch.float8_e5m2: forward alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from ..errors import InvalidArgument, Unsupported
from ..operations import attention as attention_of_arrays
from .ops import _empty_as
from .rng import draw_rng

TYPES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
_OUTPUTS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def is_float8(*several: Any) -> bool:
    return any(getattr(t, "dtype", None) in TYPES for t in several)


def _bytes(name: str, t: Tensor, options: dict[str, Any]) -> Tensor:
    """The tensor as the library reads it, with its type among the options."""
    kind = TYPES.get(t.dtype)
    if kind is None:
        return t
    if t.requires_grad:
        raise Unsupported(
            f"{name} is {t.dtype} and requires a gradient, which 8-bit floats have none of; "
            "accepted is one that requires none"
        )
    if options.get(f"type_{name}") not in (None, kind):
        raise InvalidArgument(
            f"type_{name} is {options[f'type_{name}']!r} and {name} is {t.dtype}; accepted are "
            f"None and {kind!r}"
        )
    options[f"type_{name}"] = kind
    return t.view(torch.uint8)


@_disable_dynamo
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: bool = False,
    return_max_logit: bool = False,
    dropout: float = 0.0,
    rng: Any = None,
    **options: Any,
) -> Any:
    """As attn.torch.attention. Where q is of 8 bits, out is of type_o, "bf16" unless it is given;
    k and v alone may be, beside a q of another dtype. scale_q, scale_k and scale_v are what numbers
    are multiplied by.
    """
    of_q = _bytes("q", q, options)
    k, v = _bytes("k", k, options), _bytes("v", v, options)
    if dropout:
        options.update(dropout=dropout, rng=draw_rng(q) if rng is None else rng)
    out = None
    if of_q is not q:
        kind = options.setdefault("type_o", "bf16") or "bf16"
        if kind not in _OUTPUTS:
            raise InvalidArgument(
                f"type_o is {kind!r}; accepted are {', '.join(map(repr, _OUTPUTS))}"
            )
        like = torch.empty_like(of_q, dtype=_OUTPUTS[kind])
        out = _empty_as(like, [*q.shape[:-1], v.shape[-1]])
    elif torch.is_grad_enabled() and q.requires_grad:
        raise Unsupported(
            "q requires a gradient, and k or v is of 8-bit floats, which have no backward pass; "
            "accepted is torch.no_grad(), or a q that requires none"
        )
    return attention_of_arrays(
        of_q.detach(),
        k.detach(),
        v.detach(),
        out=out,
        return_lse=return_lse,
        return_max_logit=return_max_logit,
        **options,
    )
