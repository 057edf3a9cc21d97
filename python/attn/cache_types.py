"""The names of the types of caches."""

from __future__ import annotations

from .errors import InvalidArgument

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any

_CACHE_TYPES = ("f32", "bf16", "f16", "e4m3", "i8", "q8_0", "q4_0")


def cache_type(name: str, value: Any) -> str:
    """How a cache stores its elements."""
    if isinstance(value, str) and value in _CACHE_TYPES:
        return value
    raise InvalidArgument(f"{name} is {value!r}; accepted are {', '.join(map(repr, _CACHE_TYPES))}")


def head_dim_of(kind: str | None, row: Any) -> Any:
    """The elements of a row of a cache, whose last dimension is `row`."""
    block = {"q8_0": 34, "q4_0": 18}.get(kind or "")
    return row if block is None else row // block * 32
