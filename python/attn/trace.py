"""Python functions become expressions by calling them once with symbols in place of numbers.

Three forms, told apart by the number of parameters:
    lambda s: s.key <= s.position                     attn's own (attn.symbols)
    mask_mod(b, h, q_idx, kv_idx)                     FlexAttention's
    score_mod(score, b, h, q_idx, kv_idx)             FlexAttention's
Numbers that it captures become scalars, which another call may give other values (attn.captured);
literals in its text stay literals.
A trace is kept by the function's code and by what it captures: numbers, texts and functions by
value, arrays by identity. A function that captures anything else (an object whose attributes may
change), or that reads the elements of a tensor (attn.torch_reads), is traced again at each call,
which takes some microseconds.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from . import activations as _activations  # noqa: F401, fills the table of functions
from .captured import captured, is_numpy_number, with_literals
from .expression import (
    Expr,
    buffer,
    finish,
    lift,
    to_float,
)
from .kinds import BOOL, FLOAT, INT, TYPE_NAMES, is_number, kind_of
from .refusal import TraceError
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
    result = function(*arguments)
    if type(result) is Expr:
        return result
    if result is None or isinstance(result, (str, tuple, list)):
        raise TraceError(f"{_name(function)} returns {result!r}: accepts one value")
    return lift(result)


def _parameters(function: Any) -> int:
    if type(function) is FunctionType:
        code = function.__code__
        if code.co_flags & inspect.CO_VARARGS:
            if hasattr(function, "__wrapped__"):  # what functools.wraps decorates
                return _parameters(function.__wrapped__)
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


_TRUSTED_MODULES = frozenset({"torch", "numpy", "math", "attn", "operator", "jax"})
_VALUES = frozenset({bool, str, bytes, type(None), BuiltinFunctionType})
_DEPTH = 8  # of functions that capture functions


class _Captured:
    """All that a function may read besides its arguments, and whether that may change unseen."""

    __slots__ = ("arrays", "cells", "depth", "names", "replaced", "stable", "tensors")

    def __init__(self, function: FunctionType) -> None:
        self.cells: list[tuple[Any, Any]] = []  # with what it holds
        self.names: list[tuple[dict[str, Any], str, Any]] = []  # globals, name, what it stands for
        self.arrays: list[Any] = []
        self.tensors = False  # some of the arrays are PyTorch's
        # A number, or an array of a library that does not ask symbols what they mean.
        self.replaced = False
        self.stable = True  # a change of what is captured shows in cells and names
        self.depth = 0
        self.function(function)

    def function(self, f: FunctionType) -> None:
        code = f.__code__
        if f.__closure__:
            for cell in f.__closure__:
                content = _content(cell)
                self.cells.append((cell, content))
                self.value(content)
        if f.__defaults__ or f.__kwdefaults__:
            for value in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
                self.value(value)
        space = f.__globals__
        for name in _global_names(code):
            if name in space:
                self.names.append((space, name, space[name]))
                self.value(space[name])

    def value(self, v: Any) -> None:
        kind = type(v)
        if kind is int or kind is float:
            self.replaced = True
            return
        if kind in _VALUES or v is symbols:
            return
        if kind is ModuleType:
            self.stable &= _is_trusted(v.__name__)
        elif kind is FunctionType or kind is tuple:
            if kind is FunctionType and v.__closure__ is None and _is_trusted(v.__module__):
                return
            if self.depth == _DEPTH:
                self.stable = False
                return
            self.depth += 1
            if kind is tuple:
                for x in v:
                    self.value(x)
            else:
                self.function(v)
            self.depth -= 1
        elif hasattr(v, "__dlpack__") and hasattr(v, "shape"):
            self.arrays.append(v)
            is_tensor = hasattr(v, "__torch_function__")
            self.tensors |= is_tensor
            self.replaced |= not is_tensor
        elif is_numpy_number(v):
            self.replaced = True
        elif kind.__module__ == "torch" and kind.__name__ in ("dtype", "device"):
            return
        else:
            self.stable &= kind is type and v.__module__ == "builtins"


def _is_trusted(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in _TRUSTED_MODULES


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


_global_names_of: dict[int, tuple[CodeType, tuple[str, ...]]] = {}


def _global_names(code: CodeType) -> tuple[str, ...]:
    """Names that the code, or a function inside of it, may look up among the globals."""
    found = _global_names_of.get(id(code))
    if found is None:
        names = dict.fromkeys(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                names.update(dict.fromkeys(_global_names(constant)))
        found = _global_names_of[id(code)] = (code, tuple(names))
    return found[1]


def _replaced(value: Any, depth: int = 0) -> Any:
    """The value with captured numbers as such, and a Buffer in place of each NumPy or JAX array,
    also those that functions capture: indexing one of these by a symbol would fail inside of the
    library.
    """
    if depth > _DEPTH:
        return value
    kind = type(value)
    if kind is tuple:
        return tuple([_replaced(v, depth + 1) for v in value])
    if kind is not FunctionType:
        if hasattr(value, "__dlpack__"):
            return value if hasattr(value, "__torch_function__") else buffer(value)
        return captured(value)
    cells = value.__closure__ or ()
    trusted = _is_trusted(value.__module__)
    if trusted and not cells:
        return value
    space = value.__globals__
    names = {}
    for name in () if trusted else _global_names(value.__code__):
        if name in space:
            new = _replaced(space[name], depth + 1)
            if new is not space[name]:
                names[name] = new
    made = FunctionType(
        with_literals(value.__code__),
        {**space, **names} if names else space,
        value.__name__,
        _replaced(value.__defaults__, depth + 1),
        tuple([type(cell)(_replaced(_content(cell), depth + 1)) for cell in cells]) or None,
    )
    if value.__kwdefaults__:
        made.__kwdefaults__ = {n: _replaced(v, depth + 1) for n, v in value.__kwdefaults__.items()}
    return made


def _call_watched(function: FunctionType, found: _Captured) -> tuple[Expr, bool]:
    """Traces the function; also whether the trace depends on what a tensor held at that moment.

    Arrays of other libraries are Buffers by now, which have no values.
    """
    changed: Any = _replaced(function) if found.replaced else function
    if not (found.tensors and found.stable):
        return call(changed), False
    from .torch_reads import Reads

    with Reads() as reads:
        e = call(changed)
    return e, reads.any


# By the id of the function: itself, its code, what it captured, the trace. An entry goes when the
# function does.
_Entry = tuple[
    "weakref.ref[FunctionType]",
    CodeType,
    Any,
    tuple[tuple[Any, Any], ...],
    tuple[tuple[dict[str, Any], str, Any], ...],
    Expr,
]
_traces: dict[int, _Entry] = {}


def trace(function: Callable[..., Any]) -> Expr:
    """The expression that the function returns for symbols. Thread-safe."""
    entry = _traces.get(id(function))
    if entry is not None:
        ref, code, defaults, cells, names, e = entry
        if ref() is function and function.__code__ is code and function.__defaults__ is defaults:
            for cell, content in cells:
                if _content(cell) is not content:
                    break
            else:
                for space, name, value in names:
                    if space.get(name) is not value:
                        break
                else:
                    return e
    if type(function) is not FunctionType:
        return call(function)
    found = _Captured(function)
    e, reads = _call_watched(function, found)
    # An array that the function made itself, as t.to(dtype), holds values of this moment.
    arrays = {id(a) for a in found.arrays}
    known = all(key in arrays or isinstance(a, (int, float)) for key, a in e.buffers.items())
    if found.stable and known and not reads:
        key = id(function)
        _traces[key] = (
            weakref.ref(function, lambda _: _traces.pop(key, None)),
            function.__code__,
            function.__defaults__,
            tuple(found.cells),
            tuple(found.names),
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
        if e.type == BOOL:
            raise TraceError(f"score {e!r} is boolean: accepts float32 or int32")
        return to_float(e)
    if e.type == FLOAT:
        raise TraceError(f"mask {e!r} is {TYPE_NAMES[e.type]}: accepts boolean or int32")
    return e if e.type == BOOL else e != 0


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


def loadable(array: Any) -> Any:
    """The array with a rank of 1 to 4 and a dtype that attn loads; itself where it has these, or
    where it is a number.

    int64 becomes int32, bool uint8, float64 float32. Throws TraceError where an int64 on the CPU
    does not fit; a GPU is not waited for, and what JAX compiles is not known.
    """
    if isinstance(array, (int, float)):
        return int(array) if isinstance(array, int) else float(array)
    if len(array.shape) == 0:
        if is_number(array):
            return array
        array = array.reshape(1)
    name = str(array.dtype).rpartition(".")[2]
    if name in ("int32", "uint8", "float32", "float16", "bfloat16"):
        return array
    to = {BOOL: "uint8", INT: "int32", FLOAT: "float32"}[kind_of(array)]
    if hasattr(array, "astype"):  # NumPy, JAX, CuPy
        converted = array.astype(to)
        known = name == "int64" and not type(array).__name__.endswith("Tracer")  # of JAX
        unchanged = not known or bool((converted == array).all())
    else:
        import torch

        converted = array.view(torch.uint8) if name == "bool" else array.to(getattr(torch, to))
        known = name == "int64" and array.device.type == "cpu" and not torch.compiler.is_compiling()
        unchanged = not known or bool((converted == array).all())
    if not unchanged:
        raise TraceError("an int64 array that an expression reads has values outside of int32")
    return converted
