"""Python functions become expressions by calling them once with symbols in place of numbers.

Three forms, told apart by the number of parameters:
    lambda s: s.key <= s.position                     attn's own (attn.symbols)
    mask_mod(b, h, q_idx, kv_idx)                     FlexAttention's
    score_mod(score, b, h, q_idx, kv_idx)             FlexAttention's
Numbers that it captures become scalars, which another call may give other values (attn.captured);
literals in its text stay literals.
A trace is kept by the function's code and by what it captures: numbers, texts and functions by
value, arrays by identity and by what was asked of them, as their shape. A function that captures
anything else (an object whose attributes may change, a bound method), that asks a module for its
state (the generator of random numbers, whether gradients are recorded), or that reads the elements
of a tensor (attn.torch_reads), is traced again at each call, which takes some microseconds.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from operator import attrgetter
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from . import activations as _activations  # noqa: F401, fills the table of functions
from . import refusal
from .buffers import in_place_of, loadable, with_buffers
from .bytecode import Questions, content_of, is_trusted, names_of
from .captured import captured, is_numpy_number, with_literals
from .expression import (
    Expr,
    finish,
    lift,
    to_float,
)
from .kinds import BOOL, FLOAT, TYPE_NAMES
from .refusal import TraceError, refuse, refuse_with_line
from .symbol import symbols

_FLEX_MASK = (symbols.batch, symbols.head, symbols.query, symbols.key)
_ARGUMENTS: dict[int, tuple[Any, ...]] = {
    1: (symbols,),
    4: _FLEX_MASK,
    5: (symbols.score, *_FLEX_MASK),
}


def call(function: Callable[..., Any]) -> Expr:
    """Traces the function anew."""
    parameters = _parameters(function)
    arguments = _ARGUMENTS.get(parameters)
    if arguments is None:
        raise TraceError(
            f"{_name(function)} has {parameters} parameters: accepts 1 (attn.symbols), 4 (b, h, "
            "q_idx, kv_idx) or 5 (score, b, h, q_idx, kv_idx)"
        )
    result = function(*arguments) if refusal.is_compiling() else _called(function, arguments)
    if type(result) is Expr:
        return result
    if hasattr(result, "dtype") and hasattr(result, "shape"):
        if len(result.shape):
            raise TraceError(
                f"{_name(function)} returns an array of rank {len(result.shape)}: accepts one value"
            )
    elif not isinstance(result, (bool, int, float)):
        given = f"{result!r}"
        given = given if len(given) <= _LONGEST else given[:_LONGEST] + "..."
        raise TraceError(f"{_name(function)} returns {given}: accepts one value")
    return lift(result)


def _called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except (TypeError, AttributeError) as error:
        refuse_with_line(error)
        raise


def _parameters(function: Any) -> int:
    if type(function) is FunctionType:
        code = function.__code__
        if code.co_flags & inspect.CO_VARARGS:
            wrapped = getattr(function, "__wrapped__", None)  # what functools.wraps decorates
            if wrapped is not None:
                return _parameters(wrapped)
            return 4  # what combines masks, as in `lambda *places: ...`
        return code.co_argcount - len(function.__defaults__ or ())
    every = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in every):
        return 4
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in every)


def _name(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


_VALUES = frozenset({bool, str, bytes, type(None)})
# Beginnings of the names of functions that tell a state: is_grad_enabled, get_default_dtype,
# are_deterministic_algorithms_enabled, cuda.current_device, initial_seed.
_OF_STATE = ("is_", "are_", "get_", "current_", "seed", "initial_seed")
_DEPTH = 8  # of functions that capture functions
_LONGEST = 200  # characters of a value in a message


class _Captured:
    """All that a function may read besides its arguments, and whether that may change unseen."""

    __slots__ = (
        "arrays", "cells", "depth", "functions", "missing", "names", "replaced", "stable", "torch",
    )  # fmt: skip

    def __init__(self, function: FunctionType) -> None:
        self.cells: list[tuple[Any, Any]] = []  # with what it holds
        self.names: list[tuple[dict[str, Any], str, Any]] = []  # space, name, what it stands for
        self.arrays: list[Any] = []
        # Functions inside, with their code, defaults and defaults of keywords.
        self.functions: list[tuple[FunctionType, CodeType, Any, Any]] = []
        self.missing: list[tuple[dict[str, Any], str]] = []  # of modules, which may load them late
        self.torch = False  # tensors of PyTorch may be read: some are captured, or its functions
        # A number, or an array of a library that does not ask symbols what they mean.
        self.replaced = False
        # A change of what is captured shows in cells, names, functions and what arrays are asked.
        self.stable = True
        self.depth = 0
        self.function(function)

    def function(self, f: FunctionType) -> None:
        of_code = names_of(f.__code__)
        names = of_code.attributes
        self.stable &= not f.__dict__
        for name in of_code.imports:
            if name in sys.modules:
                self.module(sys.modules[name], names)
            else:  # as yet, or below the function's own package
                self.stable = False
        if f.__closure__:
            for cell in f.__closure__:
                content = content_of(cell)
                self.cells.append((cell, content))
                self.value(content, names)
        for value in f.__defaults__ or ():
            self.value(value, names)
        keywords = f.__kwdefaults__ or {}
        for space, known in ((keywords, tuple(keywords)), (f.__globals__, of_code.spaces)):
            for name in known:
                if name in space:
                    self.names.append((space, name, space[name]))
                    self.value(space[name], names)

    def value(self, v: Any, names: tuple[str, ...]) -> None:
        """A value that is captured by a function whose code has these names of attributes."""
        kind = type(v)
        if kind is int or kind is float:
            self.replaced = True
            return
        if kind in _VALUES or v is symbols:
            return
        if kind is ModuleType:
            self.module(v, names)
        elif kind is BuiltinFunctionType:
            self.builtin(v)
        elif kind is FunctionType or kind is tuple:
            if kind is FunctionType and v.__closure__ is None and is_trusted(v.__module__):
                self.library(v)
                return
            if self.depth == _DEPTH:
                self.stable = False
                return
            self.depth += 1
            if kind is tuple:
                for x in v:
                    self.value(x, names)
            else:
                self.functions.append((v, v.__code__, v.__defaults__, v.__kwdefaults__))
                self.function(v)
            self.depth -= 1
        elif kind is list or kind is dict:
            self.stable = False  # its elements may be others in a later call
            self.replaced |= with_buffers(v) is not v
        elif hasattr(v, "__dlpack__") and hasattr(v, "shape"):
            self.arrays.append(v)
            is_tensor = hasattr(v, "__torch_function__")
            self.torch |= is_tensor
            self.replaced |= not is_tensor
            self.stable &= not (is_tensor and v.__dict__)  # `t.window = 5`
        elif is_numpy_number(v):
            self.replaced = True
        elif _is_constant(kind):
            return
        elif kind.__name__ == "FunctionMeta" and kind.__module__ == "torch.autograd.function":
            refuse(
                f"{v.__name__} is an autograd.Function, whose own backward an expression cannot "
                "have: accepts functions that attn differentiates"
            )
        elif kind.__name__ == "ScriptFunction":
            refuse(
                f"{v.name} is a function of torch.jit.script, which takes tensors alone: accepts "
                "the function that it was made of"
            )
        else:
            self.stable &= kind is type and v.__module__ == "builtins"

    def module(self, m: ModuleType, names: tuple[str, ...]) -> None:
        """A module, and what the names may mean in it."""
        if not is_trusted(m.__name__):
            self.stable = False
            return
        space = m.__dict__
        self.torch |= m.__name__.startswith("torch")
        for name in names:
            if name not in space:
                self.missing.append((space, name))
                continue
            v = space[name]
            kind = type(v)
            if kind is ModuleType:
                # Without the name, as torch.torch is torch.
                self.module(v, tuple([n for n in names if n != name]))
            elif kind is BuiltinFunctionType:
                self.builtin(v)
            elif callable(v):
                self.library(v)
            elif not _is_constant(kind):
                self.names.append((space, name, v))
                if kind is not int and kind is not float:  # these are no numbers that one captured
                    self.value(v, names)

    def builtin(self, f: BuiltinFunctionType) -> None:
        """A function of a library or of a type; bound to another object, it may change unseen."""
        owner = f.__self__
        if type(owner) is ModuleType:
            self.stable &= owner.__name__ == "builtins" or is_trusted(owner.__name__)
        else:
            self.stable &= owner is None or isinstance(owner, type)
        self.library(f)

    def library(self, f: Any) -> None:
        module = getattr(f, "__module__", None) or ""
        self.torch |= module.startswith("torch")
        name = getattr(f, "__name__", "")
        self.stable &= not (module.startswith("numpy.random") or name.startswith(_OF_STATE))


def _is_constant(kind: type) -> bool:
    return kind.__module__ == "torch" and kind.__name__ in ("dtype", "device")


def _replaced(value: Any, asked: Questions, depth: int = 0) -> Any:
    """The value with captured numbers as such, but for those that must stay what they are, and a
    Buffer in place of each NumPy or JAX array, also those that functions capture: indexing one of
    these by a symbol would fail inside of the library.
    """
    if depth > _DEPTH:
        return value
    kind = type(value)
    if kind is tuple:
        return tuple([_replaced(v, asked, depth + 1) for v in value])
    if kind is list or kind is dict:
        return with_buffers(value)
    if kind is not FunctionType:
        if hasattr(value, "__dlpack__"):
            return value if hasattr(value, "__torch_function__") else in_place_of(value)
        stays = asked.types or (is_numpy_number(value) and asked.keep(value))
        return value if stays else captured(value)
    cells = value.__closure__ or ()
    trusted = is_trusted(value.__module__)
    if trusted and not cells:
        return value
    space = value.__globals__
    names = {}
    for name in () if trusted else names_of(value.__code__).spaces:
        if name in space:
            new = _replaced(space[name], asked, depth + 1)
            if new is not space[name]:
                names[name] = new
    made = FunctionType(
        value.__code__ if asked.types else with_literals(value.__code__),
        {**space, **names} if names else space,
        value.__name__,
        _replaced(value.__defaults__, asked, depth + 1),
        tuple([type(c)(_replaced(content_of(c), asked, depth + 1)) for c in cells]) or None,
    )
    if value.__kwdefaults__:
        made.__kwdefaults__ = {
            n: _replaced(v, asked, depth + 1) for n, v in value.__kwdefaults__.items()
        }
    return made


# Functions that a function captures, with their code, defaults and defaults of keywords; what else
# than shape and dtype a tensor was asked: how, the tensor, the answer.
_Inner = tuple[
    list[tuple[FunctionType, CodeType, Any, Any]],
    list[tuple[Callable[[Any], Any], Any, Any]],
]


def _call_watched(function: FunctionType, found: _Captured) -> tuple[Expr, _Inner, bool]:
    """Traces the function; also what its inner functions and arrays must stay, and whether
    the trace depends on what a tensor held at that moment.

    Arrays of other libraries are Buffers by now, which have no values.
    """
    changed: Any = _replaced(function, Questions(function)) if found.replaced else function
    if not found.stable:
        return call(changed), ([], []), False
    of_tensors: dict[int, set[str]] = {}
    values = False
    if found.torch:
        from .torch_reads import Reads

        with Reads(found.arrays) as reads:
            e = call(changed)
        of_tensors, values = reads.asked, reads.values
    else:
        e = call(changed)
    asked: list[tuple[Callable[[Any], Any], Any, Any]] = []
    for a in {id(a): a for a in found.arrays}.values():
        names = of_tensors.get(id(a), set()) - {"shape", "dtype"}
        if hasattr(a, "__torch_function__") and len(a.shape) == 0:
            names.update(("device", "requires_grad"))  # for is_number
        for name in names:
            ask = attrgetter(name)
            asked.append((ask, a, ask(a)))
    return e, (found.functions, asked), values


# By the id of the function: itself, its code, its defaults and those of keywords, the cells and
# names of _Captured, the arrays with shape and dtype, what else must stay, the trace. An entry goes
# when the function does.
_Entry = tuple[
    "weakref.ref[FunctionType]",
    CodeType,
    Any,
    Any,
    tuple[tuple[Any, Any], ...],
    tuple[tuple[dict[str, Any], str, Any], ...],
    tuple[tuple[Any, Any, Any], ...],
    "_Inner | None",
    Expr,
]
_traces: dict[int, _Entry] = {}


def _unchanged(inner: _Inner) -> bool:
    functions, asked = inner
    for f, code, defaults, keywords in functions:
        if f.__code__ is not code or f.__defaults__ is not defaults:
            return False
        if f.__kwdefaults__ is not keywords:
            return False
    for ask, array, answer in asked:  # noqa: SIM110, a generator takes longer
        if ask(array) != answer:
            return False
    return True


def trace(function: Callable[..., Any]) -> Expr:
    """The expression that the function returns for symbols. Thread-safe."""
    entry = _traces.get(id(function))
    if entry is not None:
        ref, code, defaults, keywords, cells, names, arrays, inner, e = entry
        if (
            ref() is function
            and function.__code__ is code
            and function.__defaults__ is defaults
            and function.__kwdefaults__ is keywords
        ):
            for cell, content in cells:
                if content_of(cell) is not content:
                    break
            else:
                for space, name, value in names:
                    if space.get(name) is not value:
                        break
                else:
                    for array, shape, dtype in arrays:
                        if array.dtype is not dtype or array.shape != shape:
                            break
                    else:
                        if inner is None or _unchanged(inner):
                            return e
    if type(function) is not FunctionType:
        return call(function)
    found = _Captured(function)
    e, inner, values = _call_watched(function, found)
    # An array that the function made itself, as t.to(dtype), holds values of this moment.
    captures = {id(a): a for a in found.arrays}
    known = all(key in captures or isinstance(a, (int, float)) for key, a in e.buffers.items())
    # As np.random, which is not looked at before the first function that asks for it.
    loaded = any(name in space for space, name in found.missing)
    if found.stable and known and not values and not loaded:
        key = id(function)
        _traces[key] = (
            weakref.ref(function, lambda _: _traces.pop(key, None)),
            function.__code__,
            function.__defaults__,
            function.__kwdefaults__,
            tuple(found.cells),
            tuple(found.names),
            tuple([(a, a.shape, a.dtype) for a in captures.values()]),
            inner if any(inner) else None,
            e,
        )
    return e


def expression(given: Any, name: str) -> Expr:
    """A mask or score that was given as an Expr or a Python function, of the type it must have."""
    e = given if type(given) is Expr else trace(given) if callable(given) else lift(given)
    return as_formula(e, name)


def as_formula(e: Expr, name: str) -> Expr:
    """E as a mask, boolean, or as a score, float32; name is "mask" or "score"."""
    if name == "score":
        if e.kind == BOOL:
            raise TraceError(f"score {e!r} is boolean: accepts float32 or int32")
        return to_float(e)
    if e.kind == FLOAT:
        raise TraceError(f"mask {e!r} is {TYPE_NAMES[e.kind]}: accepts boolean or int32")
    return e if e.kind == BOOL else e != 0


def resolve(mask: Any, score: Any) -> tuple[str, str, dict[str, Any]]:
    """The texts of a mask and a score, and the arrays that they read, by name.

    Each may be None, text, an Expr or a Python function. "" stands for None. The arrays have a rank
    of 1 to 4 and a dtype that attn loads; where theirs was another one they are copies.
    """
    texts = ["", ""]
    given: list[tuple[int, Expr]] = []
    for i, (m, name) in enumerate(((mask, "mask"), (score, "score"))):
        if isinstance(m, str):
            texts[i] = m
        elif m is not None:
            given.append((i, expression(m, name)))
    if not any(e.buffers for _, e in given):
        for i, e in given:
            texts[i] = e.text
        return texts[0], texts[1], {}
    *finished, arrays = _finished([e for _, e in given])
    for (i, _), text in zip(given, finished, strict=True):
        texts[i] = text
    return texts[0], texts[1], {name: loadable(a) for name, a in arrays.items()}


def _finished(expressions: list[Expr]) -> tuple[Any, ...]:
    """As `finish`; kept with an expression that stands alone, as each call of a function finds the
    same one.
    """
    first = expressions[0]
    if len(expressions) > 1:
        return finish(*expressions)
    if first.finished is None:
        first.finished = finish(first)
    return first.finished
