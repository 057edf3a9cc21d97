"""Attention to torch.float8_e4m3fn and torch.float8_e5m2, and with type_o: forward alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from ..cache_types import head_dim_of
from ..errors import InvalidArgument, Unsupported
from ..operations import attention as attention_of_arrays
from .rng import draw_rng
from .shapes import empty_as, last_contiguous

TYPES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
_OUTPUTS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def is_float8(*several: Any) -> bool:
    return any(getattr(t, "dtype", None) in TYPES for t in several)


def _bytes(name: str, t: Tensor, options: dict[str, Any]) -> Tensor:
    """The tensor as the library reads it, with its type among the options."""
    if t.layout is not torch.strided or t.is_nested:
        raise InvalidArgument(
            f"{name} has the layout {t.layout}; accepted beside 8-bit floats and type_o is "
            "torch.strided, not nested"
        )
    if t.requires_grad and torch.is_grad_enabled():
        raise Unsupported(
            f"{name} requires a gradient, and 8-bit floats and type_o have no backward pass; "
            "accepted is torch.no_grad(), or a tensor that requires none"
        )
    t = last_contiguous(t.detach())
    kind = TYPES.get(t.dtype)
    if kind is None:
        return t
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
    """As attn.torch.attention with types of their own. Where q is of 8 bits, out is of type_o,
    "bf16" unless it is given; k and v alone may be, beside a q of another dtype. scale_q, scale_k
    and scale_v are what numbers are multiplied by.
    """
    of_q = _bytes("q", q, options)
    k, v = _bytes("k", k, options), _bytes("v", v, options)
    for name in ("prefix_k", "prefix_v"):
        if is_float8(options.get(name)):
            options[name] = options[name].view(torch.uint8)
    if dropout:
        options.update(dropout=dropout, rng=draw_rng(q) if rng is None else rng)
    out = None
    if is_float8(q):
        kind = options.setdefault("type_o", "bf16") or "bf16"
        if kind not in _OUTPUTS:
            raise InvalidArgument(
                f"type_o is {kind!r}; accepted are {', '.join(map(repr, _OUTPUTS))}"
            )
        like = torch.empty_like(of_q, dtype=_OUTPUTS[kind])
        head_dim_v = head_dim_of(options.get("type_v"), v.shape[-1])
        out = empty_as(like, [*q.shape[:-1], head_dim_v])
    return attention_of_arrays(
        of_q,
        k,
        v,
        out=out,
        return_lse=return_lse,
        return_max_logit=return_max_logit,
        **options,
    )
