"""The types of expressions, and what arrays are to them."""

from __future__ import annotations

from typing import Any

from ..arrays import more_than_number
from . import refusal

BOOL, INT, FLOAT = 0, 1, 2
TYPE_NAMES = ("boolean", "int32", "float32")

_KINDS: dict[str, int] = {}  # by name: torch.compile knows no dtype of NumPy as a key


def kind_of(array: Any) -> int:
    """The type that an element of the array has in an expression."""
    dtype = str(array.dtype)
    kind = _KINDS.get(dtype)
    if kind is None:
        name = dtype.rpartition(".")[2]
        if name == "bool":
            kind = BOOL
        elif name in ("uint8", "int8", "int16", "int32", "int64"):
            kind = INT
        elif name in ("float16", "bfloat16", "float32", "float64"):
            kind = FLOAT
        else:
            refusal.refuse(
                f"an array of dtype {name} in an expression: accepts bool, int and float types"
            )
        _KINDS[dtype] = kind
    return kind


def is_number(array: Any) -> bool:
    """Whether the value of an array without dimensions can be read when a call is made."""
    module = type(array).__module__
    if module == "numpy" or refusal.is_compiling():
        return module == "numpy"
    if module != "torch" or array.device.type != "cpu" or array.requires_grad:
        return False
    return not more_than_number(array)
