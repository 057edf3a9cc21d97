"""What torch's and NumPy's functions mean for an expression, by the names that these give them.

`attn.expression` looks a function up here when it meets an `Expr`: through `__torch_function__`,
NumPy's protocols or as a method. A function that is not here is refused by its name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from .buffers import Buffer, load
from .captured import is_numpy_number
from .expression import (
    _EQUAL,
    _ORDER,
    FUNCTIONS,
    METHODS,
    PROPERTIES,
    Expr,
    call,
    compare,
    lift,
    literal,
    number,
    shift,
    to_float,
    where,
)
from .kinds import BOOL, FLOAT, INT
from .refusal import refuse

_Function = TypeVar("_Function", bound=Callable[..., Any])


def entry(*names: str) -> Callable[[_Function], _Function]:
    """Enters a function under the names of torch and NumPy."""

    def add(function: _Function) -> _Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return add


def _property(function: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[function.__name__] = function
    PROPERTIES.add(function.__name__)
    return function


_FLOAT = {
    "exp": ("exp",),
    "exp2": ("exp2", "special_exp2"),
    "log": ("log",),
    "tanh": ("tanh",),
    "sin": ("sin",),
    "cos": ("cos",),
    "sqrt": ("sqrt",),
    "erf": ("erf", "special_erf"),
}


def _fill() -> None:
    for name, names in _FLOAT.items():
        entry(*names)(lambda x, name=name: call(name, to_float(x)))
    binary: dict[tuple[str, ...], Callable[[Expr, Any], Expr]] = {
        ("mul", "multiply", "__mul__", "__rmul__"): lambda a, b: a * b,
        # By name: torch.compile makes False of `a == b` for a number that changes.
        ("eq", "__eq__", "equal"): lambda a, b: compare("==", _EQUAL, a, b),
        ("ne", "__ne__", "not_equal"): lambda a, b: compare("!=", _EQUAL, a, b),
        ("lt", "__lt__", "less"): lambda a, b: compare("<", _ORDER, a, b),
        ("le", "__le__", "less_equal"): lambda a, b: compare("<=", _ORDER, a, b),
        ("gt", "__gt__", "greater"): lambda a, b: compare(">", _ORDER, a, b),
        ("ge", "__ge__", "greater_equal"): lambda a, b: compare(">=", _ORDER, a, b),
        ("bitwise_and", "__and__", "__rand__"): lambda a, b: a & b,
        ("bitwise_or", "__or__", "__ror__"): lambda a, b: a | b,
        ("bitwise_xor", "__xor__", "__rxor__"): lambda a, b: a ^ b,
        ("logical_and",): lambda a, b: _truth(a) & _truth(b),
        ("logical_or",): lambda a, b: _truth(a) | _truth(b),
        ("logical_xor",): lambda a, b: _truth(a) ^ _truth(b),
        ("bitwise_left_shift", "left_shift", "__lshift__"): lambda a, b: shift("<<", a, b),
        ("bitwise_right_shift", "right_shift", "__rshift__"): lambda a, b: shift(">>", a, b),
        ("__rtruediv__",): lambda a, b: lift(b) / a,
        ("__rfloordiv__",): lambda a, b: lift(b) // a,
        ("__rmod__",): lambda a, b: lift(b) % a,
        ("__rpow__",): lambda a, b: _pow(b, a),
        ("__rlshift__",): lambda a, b: shift("<<", b, a),
        ("__rrshift__",): lambda a, b: shift(">>", b, a),
    }
    for several, operator in binary.items():
        entry(*several)(lambda a, b, operator=operator: operator(lift(a), b))


def _truth(x: Any) -> Expr:
    e = lift(x)
    return e if e.kind == BOOL else e != 0


@entry("__getitem__")
def _getitem(array: Any, index: Any) -> Any:
    if isinstance(array, Expr):
        refuse(f"an index of {array!r}, which is a scalar")
    return load(array, index)


@entry("add", "__add__", "__radd__")
def _add(a: Any, b: Any, alpha: Any = 1) -> Expr:
    return lift(a) + (b if alpha == 1 else lift(b) * alpha)


@entry("sub", "subtract", "__sub__")
def _sub(a: Any, b: Any, alpha: Any = 1) -> Expr:
    return lift(a) - (b if alpha == 1 else lift(b) * alpha)


@entry("rsub", "__rsub__")
def _rsub(a: Any, b: Any, alpha: Any = 1) -> Expr:
    return lift(b) - (a if alpha == 1 else a * alpha)


@entry("neg", "negative", "__neg__")
def _neg(x: Any) -> Expr:
    return -lift(x)


@entry("positive", "__pos__")
def _pos(x: Any) -> Expr:
    return lift(x)


@entry("abs", "absolute", "__abs__")
def _abs(x: Any) -> Expr:
    return abs(lift(x))


@entry("bitwise_not", "invert", "__invert__")
def _invert(x: Any) -> Expr:
    return lift(x).__invert__()  # PyTorch 2.11 compiles no `~` of an object


@entry("logical_not")
def _logical_not(x: Any) -> Expr:
    return _truth(x).__invert__()


@entry("minimum")
def minimum(a: Any, b: Any) -> Expr:
    """The smaller one; b where a is NaN."""
    return call("min", a, b)


@entry("maximum")
def maximum(a: Any, b: Any) -> Expr:
    """The larger one; b where a is NaN."""
    return call("max", a, b)


@entry("min")
def _min(a: Any, b: Any = None) -> Expr:
    return lift(a) if b is None else minimum(a, b)


@entry("max")
def _max(a: Any, b: Any = None) -> Expr:
    return lift(a) if b is None else maximum(a, b)


@entry("clamp", "clip")
def clamp(x: Any, min: Any = None, max: Any = None) -> Expr:
    """The value within [min, max]; a NaN stays, as it is the second operand."""
    e = lift(x)
    if min is not None:
        e = call("max", min, e)
    return e if max is None else call("min", max, e)


@entry("clamp_min")
def _clamp_min(x: Any, min: Any) -> Expr:
    return clamp(x, min)


@entry("clamp_max")
def _clamp_max(x: Any, max: Any) -> Expr:
    return clamp(x, None, max)


FUNCTIONS["where"] = where
METHODS["where"] = lambda x, condition, other: where(condition, x, other)


@entry("masked_fill")
def _masked_fill(x: Any, condition: Any, value: Any) -> Expr:
    return where(condition, value, x)


@entry("pow", "power", "__pow__", "float_power")
def _pow(x: Any, exponent: Any) -> Expr:
    if type(exponent) is Expr:
        if not (isinstance(x, (int, float)) or is_numpy_number(x)) or not 0 < x < math.inf:
            refuse(f"{x!r} to the power {exponent!r}: accepts a positive number as its base")
        return call("exp2", to_float(exponent) * math.log2(x))
    e = lift(x)
    if not isinstance(exponent, (int, float)) or abs(exponent) > 8 or 2 * exponent % 1:
        refuse(f"the power {exponent!r} of {e!r}: accepts multiples of 0.5 from -8 to 8")
    if isinstance(exponent, float):
        e = to_float(e)
    elif exponent < 0 and e.kind != FLOAT:
        refuse(f"the power {exponent} of {e!r}, which is an integer: accepts 0 to 8")
    size = abs(exponent)
    factors = [e] * int(size) + ([call("sqrt", e)] if size % 1 else [])
    result = factors[0] if factors else lift(1.0 if e.kind == FLOAT else 1)
    for factor in factors[1:]:
        result = result * factor
    return 1 / result if exponent < 0 else result


@entry("square")
def _square(x: Any) -> Expr:
    return lift(x) * x


@entry("reciprocal")
def _reciprocal(x: Any) -> Expr:
    return 1 / lift(x)


@entry("sign", "sgn")
def _sign(x: Any) -> Expr:
    e = number(x)
    return where(e > 0, 1, where(e < 0, -1, 0 * e))


@entry("erfc", "special_erfc")
def _erfc(x: Any) -> Expr:
    refuse(
        f"erfc of {x!r} has no form as an expression: accepts 1 - erf(x), which is less exact the "
        "larger x is, and 0 from 4 on"
    )


@entry("isnan")
def _isnan(x: Any) -> Expr:
    e = lift(x)
    return e != e  # NaN differs from itself


# A symbol is a scalar: what changes the shape of a tensor leaves it as it is.
@entry(
    "unsqueeze", "squeeze", "reshape", "expand", "expand_as", "clone", "contiguous",
    "broadcast_to", "ravel", "flatten",
)  # fmt: skip
def _unchanged(x: Any, *args: Any, **kwargs: Any) -> Any:
    return x


@entry("view")
def _view(x: Any, *shape: Any, dtype: Any = None) -> Any:
    for kind in (*shape, dtype):
        if type(kind).__name__ == "dtype":
            refuse(f"the bits of {x!r} as {kind} have no form as an expression")
    return x


@entry("any", "all")
def _any(x: Any, *_: Any, **__: Any) -> Expr:
    return _truth(x)


@entry("detach")
def _detach(x: Any) -> Any:
    """What has no gradient stays as it is; an expression cannot say that one ends here."""
    e = lift(x)
    given = any(getattr(a, "requires_grad", False) for a in e.buffers.values())
    if e.kind == FLOAT and (given or "score" in e.text):
        refuse(f"detach of {e!r}: accepts what has no gradient, as an array detached before")
    return x


@entry("float")
def _to_float(x: Any, *_: Any, **__: Any) -> Expr:
    return to_float(x)


@entry("bool")
def _to_bool(x: Any, *_: Any, **__: Any) -> Expr:
    return _truth(x)


def _cast(e: Expr, dtype: Any) -> Expr:
    name = getattr(dtype, "__name__", str(dtype)).rpartition(".")[2]
    if name.startswith("bool"):
        return _to_bool(e)
    if name.startswith(("int", "uint", "long")):
        if e.kind != BOOL and name not in ("int", "int32", "int64", "long"):
            refuse(f"{e!r} as {dtype}: accepts int32 and int64, which is int32 in an expression")
        result: Expr = FUNCTIONS["int"](e)
        return result
    if name in ("float", "float32", "float64"):
        return to_float(e)
    if name not in ("float16", "bfloat16") or e.kind != FLOAT:
        refuse(f"{e!r} as {dtype} has no form as an expression")
    return e  # kept in float32, which is more exact


@entry("astype", "type")
def _astype(x: Any, dtype: Any, *_: Any, **__: Any) -> Any:
    """A word is a type here, as in x.astype("int32"), and a device in x.to."""
    return _to(x, dtype=dtype)


@entry("to")
def _to(x: Any, *args: Any, **kwargs: Any) -> Any:
    """x.to(dtype), x.to(device), x.to(other): places are of no interest to an expression."""
    dtype = kwargs.get("dtype")
    for a in args:
        if isinstance(a, Expr):
            dtype = a.dtype
        elif not isinstance(a, (str, _Device, bool)) and type(a).__name__ != "device":
            dtype = a
    if not isinstance(x, Expr):  # a tensor to the device of a symbol
        return x if dtype is None else x.to(dtype)
    return x if dtype is None else _cast(x, dtype)


@entry("type_as")
def _type_as(x: Any, other: Any) -> Any:
    return _to(x, other.dtype)


def _constant(value: Any, e: Expr, dtype: Any) -> Expr:
    result = literal(value) if isinstance(value, bool) else lift(value)
    if dtype is None:
        return to_float(result) if e.kind == FLOAT else result
    return _cast(result, dtype)


@entry("new_ones")
def _new_ones(e: Expr, *_: Any, dtype: Any = None, **__: Any) -> Expr:
    return _constant(_one(e), e, dtype)


@entry("new_zeros")
def _new_zeros(e: Expr, *_: Any, dtype: Any = None, **__: Any) -> Expr:
    return _constant(_zero(e), e, dtype)


@entry("ones_like")
def _ones_like(e: Expr, dtype: Any = None, **__: Any) -> Expr:
    return _constant(_one(e), e, dtype)


@entry("zeros_like")
def _zeros_like(e: Expr, dtype: Any = None, **__: Any) -> Expr:
    return _constant(_zero(e), e, dtype)


@entry("new_full")
def _new_full(e: Expr, size: Any, fill_value: Any, dtype: Any = None, **__: Any) -> Expr:
    return _constant(fill_value, e, dtype)


@entry("full_like")
def _full_like(e: Expr, fill_value: Any, dtype: Any = None, **__: Any) -> Expr:
    return _constant(fill_value, e, dtype)


def _one(e: Expr) -> bool | int:
    return True if e.kind == BOOL else 1


def _zero(e: Expr) -> bool | int:
    return False if e.kind == BOOL else 0


class _Device:
    """Where a symbol is: nowhere. A tensor that is moved there stays where it is."""

    def __repr__(self) -> str:
        return "device of an expression"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.__name__ != "to":
            refuse(f"the device of a symbol in torch function {func.__name__}")
        return _to(*args, **(kwargs or {}))


_DEVICE = _Device()


@_property
def device(e: Expr) -> _Device:
    return _DEVICE


@_property
def dtype(e: Expr) -> Any:
    name = {BOOL: "bool", INT: "int32", FLOAT: "float32"}[e.kind]
    library = sys.modules.get("torch") or sys.modules.get("numpy")
    return getattr(library, name, name)


@_property
def shape(e: Expr) -> tuple[int, ...]:
    return ()


@_property
def ndim(e: Expr) -> int:
    return 0


_fill()

__all__ = ["Buffer", "clamp", "maximum", "minimum", "where"]
