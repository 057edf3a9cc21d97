"""The names of the types of caches."""

from __future__ import annotations

from .errors import InvalidArgument

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any

_CACHE_TYPES = ("f32", "bf16", "f16", "e4m3", "e5m2", "i8", "q8_0", "q4_0")


def cache_type(name: str, value: Any) -> str:
    """How a cache stores its elements."""
    if isinstance(value, str) and value in _CACHE_TYPES:
        return value
    raise InvalidArgument(f"{name} is {value!r}; accepted are {', '.join(map(repr, _CACHE_TYPES))}")


def type_tokens(type_q: Any, type_k: Any, type_v: Any, type_o: Any) -> list[str]:
    """What a problem's text says of the types of q, k, v and of the output."""
    tokens = []
    if type_o not in (None, "f32", "bf16", "f16"):
        raise InvalidArgument(f"type_o is {type_o!r}; accepted are 'f32', 'bf16', 'f16'")
    if type_q is not None:
        if type_q not in ("e4m3", "e5m2"):
            raise InvalidArgument(f"type_q is {type_q!r}; accepted are None, 'e4m3' and 'e5m2'")
        tokens += [f"q({type_q})", type_o or "bf16"]
    elif type_o is not None:
        tokens.append(f"o({type_o})")
    for name, token, value in (("type_k", "k", type_k), ("type_v", "v", type_v)):
        if value is not None:
            tokens.append(f"{token}({cache_type(name, value)})")
    return tokens


def head_dim_of(kind: str | None, row: Any) -> Any:
    """The elements of a row of a cache, whose last dimension is `row`."""
    block = {"q8_0": 34, "q4_0": 18}.get(kind or "")
    return row if block is None else row // block * 32
