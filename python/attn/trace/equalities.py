"""How often the text of a function, and of what it calls, compares with == or !=."""

from __future__ import annotations

import dis
import gc
import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

# What is called of these is theirs: no == of a symbol is in it that a caller wrote.
_FOREIGN = ("attn", "builtins", "torch", "numpy", "functools", "math")
_CALLED = ("__call__", "forward")  # by no name, where an object itself is called
_TABLE = 1000  # elements that a table of functions may have
_OWN = "own "  # before the name of a method's own object, which is no name of its module


def count_equalities(code: CodeType) -> int:
    """Of a function that has this code, with the functions that it makes, and those that may be
    called: by a name of its module, of another module or of the functions around it, as methods
    and attributes of such objects, and from tables of such names. Each counts once, also where it
    is not called.

    Only its code is given: of a function that torch.compile sees made there is no more.
    """
    near = [
        thing
        for thing in gc.get_objects()
        if type(thing) is FunctionType and thing.__code__.co_filename == code.co_filename
    ]
    around: dict[str, Any] = {}  # what a name of the function means, the nearest last
    if near:
        around |= near[0].__globals__
    for function in near:
        made = list(_made_in(function.__code__))
        if code in made:
            around |= {one.co_name: one for one in made}
        if function.__code__ is code:
            around |= _namespace(function)
    total = 0
    seen = set()
    left: list[tuple[CodeType, Mapping[str, Any]]] = [(code, around)]
    while left:
        one, names = left.pop()
        if one in seen:
            continue
        seen.add(one)
        compared = [i.argval for i in dis.get_instructions(one) if i.opname == "COMPARE_OP"]
        total += sum(word in ("==", "!=") for word in compared)
        left += [(made, names) for made in one.co_consts if type(made) is CodeType]
        left += _called(one, names)
    return total


def _made_in(code: CodeType) -> Iterator[CodeType]:
    """Codes of the functions that a function makes."""
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield constant
            yield from _made_in(constant)


def _namespace(function: FunctionType, owner: Any = None) -> dict[str, Any]:
    """What names mean in a function, but for its own; of a method also the object."""
    names = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not yet set
            continue
    if owner is not None and function.__code__.co_argcount:
        names[_OWN + function.__code__.co_varnames[0]] = owner
    return names


def _called(
    code: CodeType, names: Mapping[str, Any]
) -> Iterator[tuple[CodeType, Mapping[str, Any]]]:
    """What the names of a function may call, and what names mean there."""
    loaded = list(dis.get_instructions(code))
    attributes = [i.argval for i in loaded if i.opname in ("LOAD_ATTR", "LOAD_METHOD")]
    globals_ = [i.argval for i in loaded if i.opname == "LOAD_GLOBAL"]
    met: set[int] = set()
    own = [_OWN + name for name in (*code.co_varnames[:1], *code.co_freevars)]
    for name in (*globals_, *code.co_freevars, *own):
        value = names.get(name)
        asked = attributes if name in own else [*attributes, *_CALLED]
        if type(value) is CodeType:
            yield value, names
        for function, owner in _functions_of(value, asked, met):
            yield function.__code__, _namespace(function, owner)


def _functions_of(
    value: Any, attributes: list[str], met: set[int]
) -> Iterator[tuple[FunctionType, Any]]:
    """The functions that a value is, has as an element, or has by one of these names; with each
    the object whose method it is, or None.
    """
    if id(value) in met:
        return
    met.add(id(value))
    kind = type(value)
    inside: list[Any] = []
    if kind is FunctionType:
        if not _is_foreign(value.__module__):
            yield value, None
    elif kind is MethodType:
        if not _is_foreign(value.__func__.__module__):
            yield value.__func__, value.__self__
    elif kind is partial:
        inside = [value.func, *value.args, *value.keywords.values()]
    elif kind in (list, tuple, dict):
        if len(value) <= _TABLE:
            inside = list(value.values() if kind is dict else value)
    elif kind is ModuleType:
        if not _is_foreign(value.__name__):
            inside = [vars(value).get(name) for name in attributes]
    elif not _is_foreign(kind.__module__) and not isinstance(value, type):
        for name in attributes:
            method = inspect.getattr_static(kind, name, None)
            if isinstance(method, property):
                method = method.fget
            if isinstance(method, (staticmethod, classmethod)):
                method = method.__func__
            if type(method) is FunctionType and not _is_foreign(method.__module__):
                yield method, value
        held = getattr(value, "__dict__", {})
        inside = [held.get(name) for name in attributes]
    for one in inside:
        yield from _functions_of(one, attributes, met)


def _is_foreign(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _FOREIGN
