"""Integers of floats: `floor` and its kin, conversions, quotients and remainders.

All are made of the expressions' `floor` and `to_int`. These compute their operand in float32, one
rounding an operation, on every backend (docs/expressions.md), so what must not be rounded otherwise
stands within one of them.
"""

from __future__ import annotations

import math
from typing import Any

from .captured import Float, Int
from .expression import PRODUCT, Expr, arithmetic, call, lift, number, to_float, where
from .functions import entry
from .kinds import FLOAT, INT
from .refusal import refuse


def _whole(function: str, x: Any, to: int = FLOAT, name: str | None = None) -> Expr:
    """A float32 by `function`, floor or to_int; an integer as it is. name: what was asked for."""
    e = number(x)
    if e.kind != FLOAT:
        return e
    if "score" in e.text:
        refuse(
            f"{name or function} of {e!r}, which depends on the score: accepts what does not, as "
            "each kernel rounds a score in its own way, and one next to an integer would become "
            "either of its neighbours"
        )
    return call(function, e, to=to)


@entry("int", "long")
def to_int(x: Any, *_: Any, **__: Any) -> Expr:
    """Toward zero. An int64 is an int32 here: what lies outside becomes its nearest bound."""
    return _whole("to_int", x, to=INT, name="int")


@entry("floor")
def floor(x: Any) -> Expr:
    return _whole("floor", x)


@entry("ceil")
def ceil(x: Any, name: str = "ceil") -> Expr:
    e = number(x)
    return -_whole("floor", -e, name=name) if e.kind == FLOAT else e


@entry("trunc", "fix")
def trunc(x: Any, name: str = "trunc") -> Expr:
    """Toward zero; a NaN stays, as it is the second operand."""
    e = number(x)
    if e.kind != FLOAT:
        return e
    return call("max", 0.0, _whole("floor", e, name=name)) + call("min", 0.0, ceil(e))


@entry("frac")
def frac(x: Any) -> Expr:
    return lift(x) - trunc(x, "frac")


@entry("round", "special_round", "rint", "around")
def round(x: Any, decimals: int = 0) -> Expr:
    """To the nearest integer, a half to the even one."""
    if decimals != 0:
        refuse(f"round of {x!r} to {decimals} decimals: accepts 0")
    e = number(x)
    if e.kind != FLOAT:
        return e
    # The ones digit of a float from 2^23 to 2^24 is its last, so the sum is rounded there.
    size = (abs(e) + 2.0**23) - 2.0**23
    nearest = where(abs(e) < 2.0**23, where(e < 0, -size, size), e)
    return _whole("floor", nearest, name="round")


@entry("floor_divide", "__floordiv__")
def floor_divide(x: Any, y: Any, name: str = "//") -> Expr:
    """The largest integer that is not above x / y, as an int32 or float32."""
    a, b = number(x), number(y)
    if a.kind == INT and b.kind == INT:
        return arithmetic("/", PRODUCT, a, b)
    rounded = _rounded_quotient(a, b, name)
    if _is_power_of_two(y):
        return rounded
    below = _left_of(a, b, y, rounded) * _sign(y, b) < 0
    return _whole("floor", rounded - where(below, 1.0, 0.0))


def _rounded_quotient(a: Expr, b: Expr, name: str) -> Expr:
    """The floor of a / b as it is rounded: one too large where that is the next integer."""
    return _whole("floor", arithmetic("/", PRODUCT, a, b), name=name)


def _left_of(a: Expr, b: Expr, y: Any, rounded: Expr) -> Expr:
    """What rounded * b leaves of a, exactly, where it stands in the operand of a floor.

    The quotient of 2.1 / 0.7 of float32 is rounded to 3, which leaves -6e-8. `product` is rounded,
    and what it has lost is the sum of products of halves, of 12 digits, which are exact (Dekker).
    Of an infinite b they are not numbers, but the quotient is 0. y: b as it was given.
    """
    scaled = to_float(b) * 4097
    b_high = scaled - (scaled - b)
    b_low = b - b_high
    high = (rounded + 1.5 * 2.0**35) - 1.5 * 2.0**35  # to a multiple of 4096
    low = rounded - high
    product = rounded * b
    lost = ((high * b_high - product) + high * b_low + low * b_high) + low * b_low
    left = (a - product) - lost
    return left if _is_literal(y) and abs(y) < math.inf else where(rounded == 0, a, left)


def _sign(y: Any, b: Expr) -> Any:
    """1.0 or -1.0; y: b as it was given."""
    return (-1.0 if y < 0 else 1.0) if _is_literal(y) else where(b < 0, -1.0, 1.0)


def _is_literal(x: Any) -> bool:
    """Whether x is a number of the text. One that was captured may be another in the next call."""
    return isinstance(x, (int, float)) and not isinstance(x, (Int, Float))


def _is_power_of_two(x: Any) -> bool:
    """Whether a quotient by x is exact."""
    return _is_literal(x) and x != 0 and abs(math.frexp(x)[0]) == 0.5


@entry("remainder", "mod", "__mod__")
def remainder(x: Any, y: Any, name: str = "%") -> Expr:
    """What `floor_divide` leaves, with the sign of y, as PyTorch's float32 has it."""
    a, b = number(x), number(y)
    if a.kind == INT and b.kind == INT:
        return arithmetic("%", PRODUCT, a, b)
    rounded = _rounded_quotient(a, b, name)
    if _is_power_of_two(y):
        return a - rounded * b
    left = _left_of(a, b, y, rounded)
    # The floor asks for the sign, and so makes `left` exact here too: it is one value in kernels.
    below = _whole("floor", left * _sign(y, b), name=name) < 0
    return left + where(below, b, 0.0)


@entry("fmod")
def fmod(x: Any, y: Any) -> Expr:
    """The remainder that has the sign of x."""
    a = number(x)
    left = remainder(abs(a), abs(y) if isinstance(y, (int, float)) else abs(number(y)), "fmod")
    return where(a < 0, -left, left)


@entry("div", "divide", "true_divide", "__truediv__")
def div(a: Any, b: Any, rounding_mode: str | None = None) -> Expr:
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode == "trunc":
        a, b = number(a), number(b)
        if a.kind == FLOAT or b.kind == FLOAT:
            return trunc(to_float(a) / b, "div with rounding_mode 'trunc'")
        size = abs(a) // abs(b)
        return where((a < 0) ^ (b < 0), -size, size)
    quotient: Expr = lift(a) / b
    return quotient
