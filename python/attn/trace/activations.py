"""Functions of torch and NumPy that are made of the expressions' own, accurate for every float32.

Where the formula of a book would lose digits there are two forms, of which `where` takes one: each
has its own derivative, and what the other one gives there, an infinity or NaN, has no effect.
"""

from __future__ import annotations

import math
from typing import Any

from . import rounding as _rounding  # noqa: F401, fills the table of functions
from .expression import Expr, call, lift, literal, to_float, where
from .functions import clamp, entry
from .kinds import FLOAT


@entry("sigmoid", "special_expit")
def sigmoid(x: Any) -> Expr:
    e = to_float(x)
    decay = call("exp", -abs(e))  # at most 1: exp(-x) is infinite below -88, and inf / inf^2 is NaN
    return where(e < 0, decay, 1) / (1 + decay)


@entry("silu")
def silu(x: Any, inplace: bool = False) -> Expr:
    return lift(x) * sigmoid(x)


@entry("relu")
def relu(x: Any, inplace: bool = False) -> Expr:
    return clamp(x, 0)


@entry("relu6")
def relu6(x: Any, inplace: bool = False) -> Expr:
    return clamp(x, 0, 6)


@entry("hardtanh")
def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Expr:
    return clamp(x, min_val, max_val)


@entry("leaky_relu")
def leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Expr:
    e = lift(x)
    return where(e > 0, e, e * negative_slope)


@entry("softsign")
def softsign(x: Any) -> Expr:
    e = to_float(x)
    return e / (1 + abs(e))


@entry("gelu")
def gelu(x: Any, approximate: str = "none") -> Expr:
    e = to_float(x)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (e + 0.044715 * e * e * e)
        return 0.5 * e * (1 + call("tanh", inner))
    return 0.5 * e * (1 + call("erf", e * math.sqrt(0.5)))


@entry("log1p", "special_log1p")
def log1p(x: Any) -> Expr:
    """log(1 + x). Near 0 the sum would round x away, and 2 artanh(x / (2 + x)) is a short series:
    |z| is at most 1/7, and the first term left out is 3e-10 of the result.
    """
    e = to_float(x)
    z = e / (2 + e)
    square = z * z
    series: Any = 1 / 9
    for divisor in (7, 5, 3, 1):
        series = 1 / divisor + square * series
    return where(abs(e) < 0.25, 2 * z * series, call("log", 1 + e))


@entry("expm1", "special_expm1")
def expm1(x: Any) -> Expr:
    """exp(x) - 1. Near 0 the difference would cancel, and there with t = tanh(x / 2) it is
    2 t / (1 - t).
    """
    e = to_float(x)
    t = call("tanh", 0.5 * e)
    return where(abs(e) < 0.5, 2 * t / (1 - t), call("exp", e) - 1)


@entry("softplus")
def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Expr:
    """log(1 + exp(beta x)) / beta, and x where beta x is above the threshold."""
    e = to_float(x)
    scaled = beta * e
    smooth = clamp(scaled, 0) + log1p(call("exp", -abs(scaled)))
    return where(scaled > threshold, e, smooth / beta)


@entry("logsigmoid", "log_sigmoid")
def logsigmoid(x: Any) -> Expr:
    e = to_float(x)
    return where(e < 0, e, 0) - log1p(call("exp", -abs(e)))


@entry("mish")
def mish(x: Any, inplace: bool = False) -> Expr:
    e = to_float(x)
    return e * call("tanh", softplus(e))


@entry("elu")
def elu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Expr:
    e = to_float(x)
    return where(e > 0, e, alpha * expm1(e))


@entry("selu")
def selu(x: Any, inplace: bool = False) -> Expr:
    e = to_float(x)  # the constants of PyTorch, in double precision
    return 1.0507009873554805 * where(e > 0, e, 1.6732632423543772 * expm1(e))


@entry("logaddexp")
def logaddexp(x: Any, other: Any) -> Expr:
    """log(exp(x) + exp(other)), without an exponential above 1; of two equal infinities it is
    that infinity, of which the difference would be NaN.
    """
    a, b = to_float(x), to_float(other)
    larger = where(a > b, a, b)
    smooth = larger + log1p(call("exp", -abs(a - b)))
    return where((a == b) & (abs(a) == math.inf), a, smooth)


@entry("lerp")
def lerp(x: Any, end: Any, weight: Any) -> Expr:
    """From the nearer end, as PyTorch's, so that weights of 0 and 1 are exact."""
    a, b, w = to_float(x), to_float(end), to_float(weight)
    return where(abs(w) < 0.5, a + w * (b - a), b - (b - a) * (1 - w))


@entry("addcmul")
def addcmul(x: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Expr:
    return lift(x) + lift(value) * lift(tensor1) * lift(tensor2)


@entry("addcdiv")
def addcdiv(x: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Expr:
    return lift(x) + lift(value) * lift(tensor1) / lift(tensor2)


@entry("log2")
def log2(x: Any) -> Expr:
    return call("log", to_float(x)) * (1 / math.log(2))


@entry("log10")
def log10(x: Any) -> Expr:
    return call("log", to_float(x)) * (1 / math.log(10))


@entry("tan")
def tan(x: Any) -> Expr:
    e = to_float(x)
    return call("sin", e) / call("cos", e)


@entry("rsqrt")
def rsqrt(x: Any) -> Expr:
    return 1 / call("sqrt", to_float(x))


@entry("isinf")
def isinf(x: Any) -> Expr:
    return _is_float(x, lambda e: abs(e) == math.inf)


@entry("isposinf")
def isposinf(x: Any) -> Expr:
    return _is_float(x, lambda e: e == math.inf)


@entry("isneginf")
def isneginf(x: Any) -> Expr:
    return _is_float(x, lambda e: e == -math.inf)


@entry("isfinite")
def isfinite(x: Any) -> Expr:
    e = lift(x)
    return abs(e) < math.inf if e.kind == FLOAT else literal(True)


def _is_float(x: Any, test: Any) -> Expr:
    """The test of a float; an integer is no infinity."""
    e = lift(x)
    result: Expr = test(e) if e.kind == FLOAT else literal(False)
    return result
