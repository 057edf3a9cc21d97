"""What this build and this machine are."""

from __future__ import annotations

from . import _attn, nvrtc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def info() -> dict[str, Any]:
    """Version, processor, instruction sets (each "available" or why not) and GPU: what is missing
    where there is none that can be used.
    """
    nvrtc.load()
    result: dict[str, Any] = _attn.info()
    return result


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8 (h + 1) / heads) of each head h, as in the ALiBi paper.

    As an array they are the `alibi` of attn.attention.
    """
    result: list[float] = _attn.alibi_slopes(heads)
    return result
