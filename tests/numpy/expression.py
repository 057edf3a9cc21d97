"""Mask and score expressions of docs/expressions.md over NumPy arrays, with derivatives.

An expression is parsed into nested tuples; `evaluate` computes it at every point of a grid at once.
Scores are evaluated in float64 or float32, masks in float32.
"""
import math
import re

import numpy as np

TOKEN = re.compile(r"\s*(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[A-Za-z_]\w*"
                   r"|&&|\|\||<=|>=|==|!=|<<|>>|[-+*/%<>!&|^(),\[\]])")
LEVELS = [("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"),
          ("+", "-"), ("*", "/", "%")]


def parse(text):
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = TOKEN.match(text, at)
        if not match:
            raise ValueError(f"{text!r} at {at}")
        tokens.append(match.group(1))
        at = match.end()
    tokens.append("")

    def take(expected=None):
        token = tokens.pop(0)
        if expected is not None and token != expected:
            raise ValueError(f"expected {expected!r}, found {token!r} in {text!r}")
        return token

    def arguments(end):
        found = [binary(0)]
        while tokens[0] == ",":
            take()
            found.append(binary(0))
        take(end)
        return found

    def primary():
        token = take()
        if token in ("-", "!"):
            return (token + "x", primary())
        if token == "(":
            inner = binary(0)
            take(")")
            return inner
        if token in ("true", "false"):
            return ("boolean", token == "true")
        if token[0].isdigit() or token[0] == ".":
            is_float = any(c in token for c in ".eE")
            return ("float", np.float32(token)) if is_float else ("int", int(token))
        if tokens[0] == "(":
            take()
            return (token, *arguments(")"))
        if tokens[0] == "[":
            take()
            return ("load", token, *arguments("]"))
        return ("inf",) if token == "inf" else ("symbol", token)

    def binary(level):
        if level == len(LEVELS):
            return primary()
        left = binary(level + 1)
        while tokens[0] in LEVELS[level]:
            left = (take(), left, binary(level + 1))
        return left

    result = binary(0)
    take("")
    return result


def wrap(x):
    """int64 -> the int32 that two's complement arithmetic gives, kept as int64."""
    return (x + 2**31) % 2**32 - 2**31


erf = np.vectorize(math.erf, otypes=[float])


class Value:
    """An array, its type (bool, int or float) and its derivatives: {what: array}, for floats."""

    def __init__(self, kind, x, d=None):
        self.kind, self.x, self.d = kind, x, d or {}


class Evaluation:
    """symbols: {name: int64 array or number, "score": array of `real`}; buffers: {name: array}.

    exp, exp2, log, tanh, erf, sin and cos come out `ulp` units in the last place off: backends differ by up to 2.
    """

    def __init__(self, real, symbols, buffers, ulp=0):
        self.real, self.symbols, self.buffers, self.ulp = real, symbols, buffers, ulp
        self.loads = {}  # key in Value.d -> (name of the buffer, indices, inside)

    def to_float(self, v):
        if v.kind == "float":
            return v
        assert v.kind == "int", "a boolean never converts"
        # An int32 becomes float32 first, in a mask; scores in double keep it.
        return Value("float", np.asarray(v.x).astype(self.real))

    def __call__(self, e):
        op = e[0]
        if op == "boolean":
            return Value("bool", np.asarray(e[1]))
        if op == "int":
            return Value("int", np.asarray(e[1], np.int64))
        if op in ("float", "inf"):
            return Value("float", self.real(e[1] if op == "float" else np.inf))
        if op == "symbol":
            if e[1] == "score":
                return Value("float", self.symbols["score"], {"score": self.real(1)})
            if e[1] in self.buffers:  # a scalar: an array of rank 0
                value = self.buffers[e[1]]
                return (Value("int", value.astype(np.int64)) if value.dtype.kind == "i"
                        else Value("float", self.real(value)))
            return Value("int", np.asarray(self.symbols[e[1]], np.int64))
        if op == "load":
            return self.load(e)
        if op in ("floor", "to_int"):  # of an operand in float32, whatever the rest is computed in
            operand = Evaluation(np.float32, self.symbols, self.buffers, self.ulp)(e[1])
            if op == "to_int":
                return Value("int", self.truncate(operand.x) if operand.kind == "float" else operand.x)
            return Value("float", np.floor(self.to_float(operand).x).astype(self.real))
        args = [self(a) for a in e[1:]]
        if op in ("&&", "||", "!x"):
            assert all(a.kind == "bool" for a in args)
            if op == "!x":
                return Value("bool", ~args[0].x)
            return Value("bool", args[0].x & args[1].x if op == "&&" else args[0].x | args[1].x)
        if op in ("exp", "exp2", "log", "tanh", "erf", "sin", "cos", "sqrt", "to_float"):
            return self.function(op, self.to_float(args[0]))
        if op == "select":
            return self.select(*args)
        if any(a.kind == "float" for a in args):
            args = [self.to_float(a) for a in args]
        if op in ("<", "<=", ">", ">=", "==", "!="):
            compare = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
                       "==": np.equal, "!=": np.not_equal}[op]
            return Value("bool", compare(args[0].x, args[1].x))
        if args[0].kind == "int":
            return Value("int", self.integer(op, *(a.x for a in args)))
        return self.floating(op, *args)

    def load(self, e):
        name, buffer = e[1], self.buffers[e[1]]
        indices = [np.asarray(self(a).x) for a in e[2:]]
        indices = [np.zeros_like(i) if n == 1 else i for i, n in zip(indices, buffer.shape)]
        inside = np.asarray(True)
        for i, n in zip(indices, buffer.shape):
            inside = inside & (i >= 0) & (i < n)
        inside, *indices = np.broadcast_arrays(inside, *indices)
        safe = tuple(np.where(inside, i, 0) for i in indices)
        if buffer.dtype.kind in "iu":
            return Value("int", np.where(inside, buffer[safe].astype(np.int64), 0))
        # Reads of the same text are one entry: their derivatives add.
        what = ("load", repr(e))
        self.loads[what] = (name, safe, inside)
        return Value("float", np.where(inside, buffer[safe].astype(self.real), self.real(0)),
                     {what: self.real(1)})

    @staticmethod
    def truncate(x):
        """Toward zero, into int32: its nearest bound outside, 0 for NaN."""
        x = np.asarray(x, np.float64)
        return np.trunc(np.clip(np.where(np.isnan(x), 0, x), -2**31, 2**31 - 1)).astype(np.int64)

    @staticmethod
    def integer(op, a, b=None):
        if op == "-x":
            return wrap(-a)
        if op == "abs":
            return wrap(np.abs(a))
        if op in ("/", "%"):
            safe = np.where(b == 0, 1, b)
            return np.where(b == 0, 0, wrap(a // safe if op == "/" else a % safe))
        if op in ("<<", ">>"):  # an amount outside of 0 to 31 shifts every bit out
            inside, amount = (b >= 0) & (b < 32), np.clip(b, 0, 31)
            if op == "<<":
                return np.where(inside, wrap(a << amount), 0)
            return a >> np.where(inside, amount, 31)
        return {"&": lambda: a & b, "|": lambda: a | b, "^": lambda: a ^ b,
                "+": lambda: wrap(a + b), "-": lambda: wrap(a - b), "*": lambda: wrap(a * b),
                "min": lambda: np.where(a < b, a, b), "max": lambda: np.where(a > b, a, b)}[op]()

    def chain(self, x, *terms):
        """Value x whose derivative is the sum of factor * derivative over the terms."""
        d = {}
        for v, factor in terms:
            for what, dv in v.d.items():
                d[what] = d.get(what, self.real(0)) + factor * dv
        return Value("float", x, d)

    def off(self, y):
        y = np.asarray(y, self.real)
        return y + self.real(self.ulp) * np.abs(np.spacing(y)) if self.ulp else y

    def function(self, op, v):
        x = v.x
        if op == "to_float":
            return v
        if op == "exp":
            y = self.off(np.exp(x))
            return self.chain(y, (v, y))
        if op == "exp2":
            y = self.off(np.exp2(x))
            return self.chain(y, (v, y * self.real(np.log(2))))
        if op == "erf":
            y = self.off(erf(x))
            return self.chain(y, (v, self.real(2 / np.sqrt(np.pi)) * np.exp(-x * x)))
        if op == "sin":
            return self.chain(self.off(np.sin(x)), (v, np.cos(x)))
        if op == "cos":
            return self.chain(self.off(np.cos(x)), (v, -np.sin(x)))
        if op == "log":
            return self.chain(self.off(np.log(x)), (v, 1 / x))
        if op == "tanh":
            y = self.off(np.tanh(x))
            return self.chain(y, (v, 1 - y * y))
        y = np.sqrt(x)
        return self.chain(y, (v, self.real(0.5) / y))

    def floating(self, op, a, b=None):
        one = self.real(1)
        if op == "-x":
            return self.chain(-a.x, (a, -one))
        if op == "abs":
            return self.chain(np.abs(a.x), (a, np.where(a.x < 0, -one, one)))
        if op in ("+", "-"):
            x = a.x + b.x if op == "+" else a.x - b.x
            return self.chain(x, (a, one), (b, one if op == "+" else -one))
        if op == "*":
            return self.chain(a.x * b.x, (a, b.x), (b, a.x))
        if op == "/":
            x = a.x / b.x
            return self.chain(x, (a, one / b.x), (b, -x / b.x))
        first = a.x < b.x if op == "min" else a.x > b.x
        return self.select(Value("bool", first), a, b)

    def select(self, condition, a, b):
        if "float" in (a.kind, b.kind):
            a, b = self.to_float(a), self.to_float(b)
        x = np.where(condition.x, a.x, b.x)
        d = {}
        for what in {**a.d, **b.d}:
            zero = self.real(0)
            d[what] = np.where(condition.x, a.d.get(what, zero), b.d.get(what, zero))
        return Value(a.kind, x, d)
