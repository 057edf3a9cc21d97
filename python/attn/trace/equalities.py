"""How often the text of a function, and of what it calls, compares with == or !=."""

from __future__ import annotations

import dis
import gc
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

# What is called of these is theirs: no == of a symbol is in it that a caller wrote.
_FOREIGN = ("attn", "torch", "numpy", "functools", "math")


def count_equalities(code: CodeType) -> int:
    """Of a function that has this code, with the functions that it makes, and those that it calls
    by a name of its module, of another module or of the functions around it. Each counts once.

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
        for value in (*one.co_consts, *_values(one, names)):
            if type(value) is CodeType:
                left.append((value, names))
            elif type(value) is FunctionType and not _is_foreign(value.__module__):
                left.append((value.__code__, _namespace(value)))
    return total


def _made_in(code: CodeType) -> Iterator[CodeType]:
    """Codes of the functions that a function makes."""
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield constant
            yield from _made_in(constant)


def _namespace(function: FunctionType) -> dict[str, Any]:
    """What names mean in a function, but for its own."""
    names = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not yet set
            continue
    return names


def _values(code: CodeType, names: Mapping[str, Any]) -> Iterator[Any]:
    """What the names of a function mean that are not its own, also those after a module's."""
    loaded = list(dis.get_instructions(code))
    attributes = [i.argval for i in loaded if i.opname in ("LOAD_ATTR", "LOAD_METHOD")]
    for name in [i.argval for i in loaded if i.opname == "LOAD_GLOBAL"] + [*code.co_freevars]:
        value = names.get(name)
        yield value
        if type(value) is ModuleType and not _is_foreign(value.__name__):
            yield from map(vars(value).get, attributes)


def _is_foreign(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _FOREIGN
