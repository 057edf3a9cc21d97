"""Masks and scores as Python objects: operators build the text that attn's C++ parser reads.

    s = attn.symbols
    mask = (s.position >= s.key) & (s.position - s.key < 1024)
    score = 30 * (s.score / 30).tanh() - attn.buffer(slopes)[s.head] * (s.position - s.key)

An `Expr` is a scalar: the value at one query and key. It has attn's three types, bool, int32 and
float32 (docs/expressions.md), and PyTorch's rules of mixing them, which differ in two places: `/`
of two integers is float32, and a boolean in arithmetic counts as 0 or 1. Nothing is computed here.
An `Expr` never changes, so threads may share it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from .captured import Float, Int, is_numpy_number
from .kinds import BOOL, FLOAT, INT, is_number, kind_of
from .refusal import refuse, refuse_protocols

# How tightly an operator binds; an operand that binds less tightly gets parentheses. Bitwise
# operators always have them, as their place in C surprises.
_BITS, _OR, _AND, _EQUAL, _ORDER, _SUM, PRODUCT, _UNARY, PRIMARY = range(9)

_MAX_TEXT = 1 << 20  # characters; a tree has at most 65536 nodes
_INT32 = range(-(2**31), 2**31)
_FLOAT32_MAX = 3.4028235677973366e38  # from here on a number rounds to infinity


class Expr:
    """A boolean, int32 or float32 value of each element of S = Q Kᵀ.

    text: what attn's parser reads, with a placeholder for each buffer (`finish` names them).
    kind: BOOL, INT or FLOAT. buffers: {id: array} of the arrays that are read, and of the numbers
    that are scalars.
    """

    __slots__ = ("binds", "buffers", "finished", "kind", "text")

    def __init__(self, text: str, kind: int, binds: int, buffers: dict[int, Any]) -> None:
        self.text = text
        self.kind = kind
        self.binds = binds
        self.buffers = buffers
        self.finished: tuple[Any, ...] | None = None  # what `finish` gave, for attn.trace

    def __hash__(self) -> int:
        return refuse(
            f"{self!r} is to be found in a set or as a key of a dict, which compare no elements: "
            "use == for each, joined by |"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy reads copies of the arrays, whose ids are others."""
        return _copied, (self.text, self.kind, self.binds, list(self.buffers.items()))

    def __repr__(self) -> str:
        return f"Expr({finish(self)[0]!r})"

    def __bool__(self) -> bool:
        refuse(
            f"the truth of {self!r} is asked for: if, and, or, not and chained comparisons cannot "
            "depend on a symbol; use &, |, ~ and where"
        )

    def _number(self, *_: Any, **__: Any) -> NoReturn:
        refuse(
            f"{self!r} has no value as a Python number: it differs from element to element; an "
            "array within an object or functools.partial is indexed by it as attn.buffer(array)"
        )

    def _matrix(self, _: Any) -> NoReturn:
        refuse(f"@ of {self!r}, which is a scalar: accepts * of elements")

    def _element(self, *_: Any) -> NoReturn:
        refuse(f"an index of {self!r}, which is a scalar")

    __matmul__ = __rmatmul__ = _matrix
    __getitem__ = __setitem__ = __delitem__ = _element
    __len__ = item = tolist = _number

    def __format__(self, spec: str) -> str:
        return self._number() if spec else repr(self)

    def __add__(self, other: Any) -> Expr:
        return arithmetic("+", _SUM, self, other)

    def __radd__(self, other: Any) -> Expr:
        return arithmetic("+", _SUM, other, self)

    def __sub__(self, other: Any) -> Expr:
        return arithmetic("-", _SUM, self, other)

    def __rsub__(self, other: Any) -> Expr:
        return arithmetic("-", _SUM, other, self)

    def __mul__(self, other: Any) -> Expr:
        return arithmetic("*", PRODUCT, self, other)

    def __rmul__(self, other: Any) -> Expr:
        return arithmetic("*", PRODUCT, other, self)

    def __truediv__(self, other: Any) -> Expr:
        return arithmetic("/", PRODUCT, to_float(self), other)

    def __rtruediv__(self, other: Any) -> Expr:
        return arithmetic("/", PRODUCT, other, to_float(self))

    def __floordiv__(self, other: Any) -> Expr:
        result: Expr = FUNCTIONS["floor_divide"](self, other)
        return result

    def __rfloordiv__(self, other: Any) -> Expr:
        result: Expr = FUNCTIONS["floor_divide"](other, self)
        return result

    def __mod__(self, other: Any) -> Expr:
        result: Expr = FUNCTIONS["remainder"](self, other)
        return result

    def __rmod__(self, other: Any) -> Expr:
        result: Expr = FUNCTIONS["remainder"](other, self)
        return result

    def __divmod__(self, other: Any) -> tuple[Expr, Expr]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Expr, Expr]:
        return other // self, other % self

    def __lt__(self, other: Any) -> Expr:
        return compare("<", _ORDER, self, other)

    def __le__(self, other: Any) -> Expr:
        return compare("<=", _ORDER, self, other)

    def __gt__(self, other: Any) -> Expr:
        return compare(">", _ORDER, self, other)

    def __ge__(self, other: Any) -> Expr:
        return compare(">=", _ORDER, self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return compare("==", _EQUAL, self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return compare("!=", _EQUAL, self, other)

    def __and__(self, other: Any) -> Expr:
        return logical("&&", "&", _AND, self, other)

    def __rand__(self, other: Any) -> Expr:
        return logical("&&", "&", _AND, other, self)

    def __or__(self, other: Any) -> Expr:
        return logical("||", "|", _OR, self, other)

    def __ror__(self, other: Any) -> Expr:
        return logical("||", "|", _OR, other, self)

    def __xor__(self, other: Any) -> Expr:
        return logical("!=", "^", _EQUAL, self, other)

    def __rxor__(self, other: Any) -> Expr:
        return logical("!=", "^", _EQUAL, other, self)

    def __lshift__(self, other: Any) -> Expr:
        return shift("<<", self, other)

    def __rlshift__(self, other: Any) -> Expr:
        return shift("<<", other, self)

    def __rshift__(self, other: Any) -> Expr:
        return shift(">>", self, other)

    def __rrshift__(self, other: Any) -> Expr:
        return shift(">>", other, self)

    def __pow__(self, exponent: Any, modulo: Any = None) -> Expr:
        if modulo is not None:
            refuse(f"pow of {self!r} with a third argument: accepts pow(x, y) % z")
        result: Expr = FUNCTIONS["pow"](self, exponent)
        return result

    def __rpow__(self, base: Any) -> Expr:
        result: Expr = FUNCTIONS["pow"](base, self)
        return result

    def __neg__(self) -> Expr:
        e = number(self)
        return Expr("-" + wrap(e, _UNARY), e.kind, _UNARY, e.buffers)

    def __pos__(self) -> Expr:
        return self

    def __abs__(self) -> Expr:
        e = number(self)
        return Expr(f"abs({e.text})", e.kind, PRIMARY, e.buffers)

    def __invert__(self) -> Expr:
        if self.kind == BOOL:
            return Expr("!" + wrap(self, _UNARY), BOOL, _UNARY, self.buffers)
        if self.kind == FLOAT:
            refuse(f"~ of {self!r}, which is float32: accepts boolean and int32")
        return -self - 1  # two's complement

    def __getattr__(self, name: str) -> Any:
        """Methods of a 0-dimensional tensor: x.tanh(), x.clamp(min=0), x.to(dtype), ..."""
        if name.startswith("__"):  # copy, pickle and NumPy ask for protocols
            raise AttributeError(f"'Expr' object has no attribute '{name}'")
        function = METHODS.get(name) or FUNCTIONS.get(name)
        if function is None:
            refuse(f"method {name} has no form as an expression")
        if name in PROPERTIES:
            return function(self)
        return lambda *args, **kwargs: function(self, *args, **kwargs)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.__name__
        function = FUNCTIONS.get(name)
        if name in METHODS and hasattr(func, "__objclass__"):
            function = METHODS[name]
        if function is None:
            refuse(f"torch function {name} has no form as an expression")
        return function(*args, **kwargs) if kwargs else function(*args)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        function = FUNCTIONS.get(ufunc.__name__)
        if function is None or method != "__call__" or kwargs:
            refuse(f"NumPy function {ufunc.__name__} has no form as an expression")
        return function(*args)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        function = FUNCTIONS.get(func.__name__)
        if function is None:
            refuse(f"NumPy function {func.__name__} has no form as an expression")
        return function(*args, **kwargs)


refuse_protocols(Expr, Expr._number)

# Functions by the names that torch and NumPy give them, filled by attn.functions; those of
# PROPERTIES are read as attributes, and METHODS has those that as a method take their operands in
# another order.
FUNCTIONS: dict[str, Callable[..., Any]] = {}
METHODS: dict[str, Callable[..., Any]] = {}
PROPERTIES: set[str] = set()

_NONE: dict[int, Any] = {}


def of_float(value: float) -> str:
    if value != value:
        return "nan"
    if abs(value) >= _FLOAT32_MAX:
        return "inf" if value > 0 else "-inf"
    return f"{float(value)!r}" if value == 0 or abs(value) > 1e-44 else "0.0"


def wrap(e: Expr, binds: int) -> str:
    return e.text if e.binds >= binds else f"({e.text})"


def literal(value: bool | int | float) -> Expr:
    """The number as text, which f-strings make of those that torch.compile takes for dynamic."""
    if isinstance(value, bool):
        return Expr("true" if value else "false", BOOL, PRIMARY, _NONE)
    if isinstance(value, int):
        # A range is searched one by one for what is not an int itself.
        if int(value) not in _INT32:
            refuse(f"the number {value} does not fit int32")
        return Expr(f"{int(value)}", INT, PRIMARY if value >= 0 else _UNARY, _NONE)
    text = of_float(value)
    return Expr(text, FLOAT, _UNARY if text[0] == "-" else PRIMARY, _NONE)


def lift(x: Any) -> Expr:
    """What x is as an expression: a number is a literal, or a scalar if it was captured; so is an
    array without dimensions in memory of the CPU.
    """
    kind = type(x)
    if kind is Expr:
        return x  # type: ignore[no-any-return]
    if kind is int:
        known = _SMALL.get(x)
        return literal(x) if known is None else known
    if kind is bool or kind is float:
        return literal(x)
    if kind is Int or kind is Float:
        if kind is Int and int(x) not in _INT32:
            return literal(x)  # refuses it
        return Expr(f"\x01{id(x)}\x02", INT if kind is Int else FLOAT, PRIMARY, {id(x): x})
    if isinstance(x, float):  # numpy.float64
        return literal(float(x))
    if not (hasattr(x, "dtype") and hasattr(x, "shape")):
        refuse(f"an operand of type {kind.__name__} has no form as an expression")
    if is_numpy_number(x) and kind.__name__ != "ndarray":
        return literal(x.item())
    if len(x.shape) != 0:
        refuse(f"an array of rank {len(x.shape)} is used as a value: index each dimension")
    return load_number(x, id(x))


def number(x: Any) -> Expr:
    """x, a boolean as 0 or 1."""
    e = x if type(x) is Expr else lift(x)
    if e.kind == BOOL:
        return Expr(f"select({e.text}, 1, 0)", INT, PRIMARY, e.buffers)
    return e


def merged(a: Expr, b: Expr) -> dict[int, Any]:
    if not b.buffers:
        return a.buffers
    if not a.buffers:
        return b.buffers
    return {**a.buffers, **b.buffers}


def _is_flag(x: Any) -> bool:
    return x.kind == BOOL if type(x) is Expr else isinstance(x, bool)


def arithmetic(operator: str, binds: int, x: Any, y: Any) -> Expr:
    if _is_flag(x) and _is_flag(y):  # of arrays their sum and product are booleans too
        if operator == "+":
            return logical("||", "|", _OR, x, y)
        if operator == "*":
            return logical("&&", "&", _AND, x, y)
        refuse(f"{x!r} {operator} {y!r} of booleans: accepts | & ^, and numbers, as x.int() is one")
    a, b = number(x), number(y)
    left = a.text if a.binds >= binds else f"({a.text})"
    right = b.text if b.binds > binds else f"({b.text})"
    if len(left) > _MAX_TEXT:
        refuse("an expression has too many operations; attn takes 65536")
    kind = a.kind if a.kind >= b.kind else b.kind
    return Expr(f"{left} {operator} {right}", kind, binds, merged(a, b))


def shift(operator: str, x: Any, y: Any) -> Expr:
    a, b = number(x), number(y)
    if a.kind != INT or b.kind != INT:
        refuse(f"{operator} of {a!r} and {b!r}: accepts int32")
    return Expr(f"{wrap(a, PRIMARY)} {operator} {wrap(b, PRIMARY)}", INT, _BITS, merged(a, b))


def compare(operator: str, binds: int, x: Any, y: Any) -> Expr:
    a = x if type(x) is Expr else lift(x)
    b = y if type(y) is Expr else lift(y)
    if a.kind != b.kind or (a.kind == BOOL and binds == _ORDER):
        a, b = number(a), number(b)
    left = a.text if a.binds > binds else f"({a.text})"
    right = b.text if b.binds > binds else f"({b.text})"
    return Expr(f"{left} {operator} {right}", BOOL, binds, merged(a, b))


def logical(operator: str, bits: str, binds: int, x: Any, y: Any) -> Expr:
    """`operator` of two booleans; `bits` of integers, where a boolean counts as 0 or 1."""
    a, b = lift(x), lift(y)
    if a.kind == BOOL and b.kind == BOOL:
        tighter = binds + 1 if operator == "!=" else binds
        return Expr(f"{wrap(a, tighter)} {operator} {wrap(b, tighter)}", BOOL, binds, merged(a, b))
    if a.kind == FLOAT or b.kind == FLOAT:
        refuse(f"{bits} of {a!r} and {b!r}: accepts boolean and int32")
    a, b = number(a), number(b)
    return Expr(f"{wrap(a, PRIMARY)} {bits} {wrap(b, PRIMARY)}", INT, _BITS, merged(a, b))


def call(name: str, *operands: Any, to: int | None = None) -> Expr:
    """A function of attn's text; `to` is the result's type where it is not the operands'."""
    args = [number(x) for x in operands]
    buffers = args[0].buffers
    for e in args[1:]:
        buffers = {**buffers, **e.buffers} if e.buffers else buffers
    kind = max(e.kind for e in args) if to is None else to
    return Expr(f"{name}({', '.join([e.text for e in args])})", kind, PRIMARY, buffers)


def to_float(x: Any) -> Expr:
    e = number(x)
    return e if e.kind == FLOAT else call("to_float", e, to=FLOAT)


def where(condition: Any, x: Any, y: Any) -> Expr:
    """The first where the condition is true, else y; both are evaluated."""
    c, a, b = lift(condition), lift(x), lift(y)
    if c.kind != BOOL:
        c = c != 0
    if a.kind != b.kind:
        a, b = number(a), number(b)
    buffers = {**c.buffers, **a.buffers, **b.buffers}
    text = f"select({c.text}, {a.text}, {b.text})"
    return Expr(text, max(a.kind, b.kind), PRIMARY, buffers)


def finish(*expressions: Expr) -> tuple[Any, ...]:
    """The text of each expression, then {name: array}: _t0, _t1, ... in order of first use. A call
    that has another array of such a name is refused.
    """
    texts = [e.text for e in expressions]
    arrays: dict[int, Any] = {}
    for e in expressions:
        if e.buffers:
            arrays.update(e.buffers)
    named: dict[str, Any] = {}
    if arrays:
        everything = "".join(texts)
        for key in sorted(arrays, key=lambda k: everything.find(f"\x01{k}\x02")):
            name = f"_t{len(named)}"
            named[name] = arrays[key]
            texts = [text.replace(f"\x01{key}\x02", name) for text in texts]
    return (*texts, named)


def _copied(text: str, kind: int, binds: int, buffers: list[tuple[int, Any]]) -> Expr:
    keys = {str(old): id(array) for old, array in buffers}
    text = re.sub("\x01([^\x02]*)\x02", lambda found: f"\x01{keys[found[1]]}\x02", text)
    return Expr(text, kind, binds, {id(array): array for _, array in buffers})


def load_elements(array: Any, indices: Any, key: int) -> Expr:
    buffers = {key: array}
    for e in indices:
        if e.buffers:
            buffers = {**buffers, **e.buffers}
    return _read(f"\x01{key}\x02[{', '.join([e.text for e in indices])}]", array, buffers)


def load_number(array: Any, key: int) -> Expr:
    """The element of an array without dimensions."""
    if is_number(array):
        return _read(f"\x01{key}\x02", array, {key: array})
    return load_elements(array, (ZERO,), key)


def _read(text: str, array: Any, buffers: dict[int, Any]) -> Expr:
    kind = kind_of(array)
    if kind == BOOL:
        return Expr(text + " != 0", BOOL, _EQUAL, buffers)
    return Expr(text, kind, PRIMARY, buffers)


_SMALL = {i: literal(i) for i in range(-16, 257)}
ZERO = _SMALL[0]
