"""Numbers that a traced function captures.

In `lambda s: s.key > s.position - w` the number w is likely to be another in a later call, and a
literal is compiled into a GPU's kernel. So while a function is traced, `Int` and `Float` stand for
the numbers of its closure, its defaults and its globals. They are these numbers, in `if`, `range`
and whatever else asks. Arithmetic of them with each other and with literals gives such numbers
again, as Python computes it: `w // 2 + 1` is one. Where one meets a symbol, the expression reads a
scalar (include/attn/scalar.hpp). What computes with them in another way, as `math.sqrt(w)` does,
gives a plain number, and so a literal: as right, and compiled anew for another w. A function that
asks for types, as `type(w) is int` does, gets its numbers as they are (bytecode.py); so does one
that asks a number of NumPy what a number of Python would answer otherwise.

`0.5 * w` of an int w would be computed by float, which knows nothing of `Int`. So the floats in a
function's text are `Literal`s while it is traced: they ask whether the other operand was captured.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from .bytecode import OfCode

_FLOAT32_MAX = 3.4028235677973366e38  # from here on a number rounds to infinity


class Int(int):
    __slots__ = ()
    __class__ = property(lambda _: int)

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


class Float(float):
    __slots__ = ()
    __class__ = property(lambda _: float)

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)


class Literal(float):
    """A float in the text of a traced function."""

    __slots__ = ()
    __class__ = property(lambda _: float)

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)


def captured(value: Any) -> Any:
    """The number as one that was captured; everything else, infinities and NaN as it is.

    An infinity in a score says that nothing reaches the row from there, which kernels use.
    """
    kind = type(value)
    if kind is int:
        return Int(value)
    if kind is float:
        return Float(value) if abs(value) < _FLOAT32_MAX else value
    if is_numpy_number(value):
        item = value.item()
        return captured(float(item) if is_numpy_number(item) else item)  # item: of longdouble
    return value


def is_numpy_number(value: Any) -> bool:
    """Whether it is a scalar of NumPy, which is no array."""
    return type(value).__module__ == "numpy" and hasattr(value, "item") and value.shape == ()


def _keep(base: type, name: str) -> Any:
    operator = getattr(base, name)

    def method(self: Any, *others: Any) -> Any:
        if base is int and others and isinstance(others[0], float):
            return captured(getattr(float, name, operator)(float(self), *others))
        return captured(operator(self, *others))

    method.__name__ = name
    return method


def _ask(name: str) -> Any:
    operator = getattr(float, name)

    def method(self: float, other: Any) -> Any:
        result = operator(self, other)
        return captured(result) if type(other) is Int or type(other) is Float else result

    method.__name__ = name
    return method


_BOTH = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
_BITS = ["and", "or", "xor", "lshift", "rshift"]
for _base, _kind, _names in ((int, Int, _BOTH + _BITS), (float, Float, _BOTH)):
    for _name in (*_names, *("r" + n for n in _names), "neg", "pos", "abs"):
        _name = f"__{_name}__"
        setattr(_kind, _name, _keep(_base, _name))
for _name in _BOTH:
    setattr(Literal, f"__{_name}__", _ask(f"__{_name}__"))


def _with_literals(code: CodeType) -> CodeType:
    """The code with `Literal`s for its floats, those of functions inside of it too."""
    return code.replace(co_consts=tuple([_as_literal(c) for c in code.co_consts]))


with_literals = OfCode(_with_literals)


def _as_literal(constant: Any) -> Any:
    if type(constant) is float:
        return Literal(constant)
    return with_literals(constant) if type(constant) is CodeType else constant
