"""What a model hands to its attention that attn refuses."""

from __future__ import annotations

import sys
from functools import cache
from inspect import signature
from typing import Any

from torch import Tensor

from ..errors import Unsupported
from ..torch.compiler import assume_constant_result

__all__ = ["KNOWN", "refuse_unknown", "refuse_weights"]

# The arguments of attn's implementation, in __init__.py.
KNOWN: set[str] = set()


def refuse_weights(output_attentions: bool | None) -> None:
    capturing: Any = sys.modules.get("transformers.utils.output_capturing")
    collected = getattr(capturing, "_active_collector", None)
    wanted = (collected.get() if collected is not None else None) or ()
    if output_attentions or any(name.endswith("attentions") for name in wanted):
        raise Unsupported(
            "output_attentions is True; accepted is False, or model.set_attn_implementation"
            "('eager'): attn never holds the weights of attention"
        )


def refuse_unknown(layer: type, given: dict[str, Any]) -> None:
    """Refuses what may change the result: other tensors, and other arguments of "eager"."""
    read = _read_by_eager(layer.__module__)
    for name, value in given.items():
        if value is None or name in _IGNORED:
            continue
        if isinstance(value, Tensor) or name in read:
            raise Unsupported(
                f"{name} is given by {layer.__name__}; accepted is None: attn knows no such "
                "argument of a model's attention, and model.set_attn_implementation('eager') does"
            )


# Tensors that transformers hands to every attention, and "eager" does not read.
_IGNORED = ("cu_seq_lens_q", "cu_seq_lens_k", "num_items_in_batch", "position_ids", "seq_idx")


@assume_constant_result
def _read_by_eager(module: str) -> tuple[str, ...]:
    """The names that the formula in a model's own module reads, and attn does not."""
    return _names_in(module)


@cache
def _names_in(module: str) -> tuple[str, ...]:
    functions = [
        value
        for name, value in vars(sys.modules[module]).items()
        if name.endswith("eager_attention_forward")
    ]
    names = {name for function in functions for name in signature(function).parameters}
    return tuple(names - KNOWN)
