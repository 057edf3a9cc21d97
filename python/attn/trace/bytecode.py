"""What the bytecode of a function says of it, and of all that it may call.

attn.trace gives a traced function `Int` and `Float` for its numbers (captured.py). They are numbers
in all that Python computes, but not in what tells a type or an object: `type(w) is int`, `w is W`.
`Questions` reads the code of the function, of functions inside of it, and of helpers, methods and
objects that it may reach by the names in its code, for what tells these apart.
"""

from __future__ import annotations

import builtins
import dis
import functools
import importlib
import operator
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

_TRUSTED_MODULES = frozenset({"torch", "numpy", "math", "attn", "operator", "jax"})
_OF_ATTRIBUTES = frozenset(
    {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
)
_SINGLE = (None, True, False, ...)  # which a number never is
# What tells a type, or finds by a text what no name in the code shows.
_OF_TYPES = frozenset(
    id(f)
    for f in (
        type, eval, exec, globals, locals, vars, getattr, __import__, importlib.import_module,
        operator.attrgetter, operator.methodcaller,
    )
)  # fmt: skip
_OF_CLASSES = frozenset({id(isinstance), id(issubclass), id(hasattr)})  # an Int is an int to them
_METHODS = frozenset({FunctionType, staticmethod, classmethod})
_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})
_ALSO_BY_PYTHON = ("__init__", "__new__", "__post_init__", "__class_getitem__")
# Written by dataclasses, which ask whether both operands are of one class.
_OF_DATACLASSES = ("__eq__", "__lt__", "__le__", "__gt__", "__ge__")
_MOST = 1000  # objects that are looked at


class OfCode(Generic[T]):
    """What was made of code objects, each for as long as the code lives.

    They are told apart by id, as comparing them by value takes longer.
    """

    def __init__(self, make: Callable[[CodeType], T]) -> None:
        self._make = make
        self._made: dict[int, tuple[weakref.ref[CodeType], T]] = {}

    def __len__(self) -> int:
        return len(self._made)

    def __call__(self, code: CodeType) -> T:
        key = id(code)
        found = self._made.get(key)
        if found is None or found[0]() is not code:
            gone = weakref.ref(code, lambda _: self._made.pop(key, None))
            found = self._made[key] = (gone, self._make(code))
        return found[1]


class Names(NamedTuple):
    """Names in a code and in the functions inside of it, in order of first use."""

    spaces: tuple[str, ...]  # looked up among the globals, and then among Python's own
    attributes: tuple[str, ...]
    imports: tuple[str, ...]  # of modules
    compares_objects: bool  # `a is b` of what may be numbers
    matches_classes: bool  # `case int():`


def _is_single(step: dis.Instruction) -> bool:
    """Whether it loads a constant that no number is."""
    return step.opcode in dis.hasconst and any(step.argval is x for x in _SINGLE)


def _names(code: CodeType) -> Names:
    spaces: dict[str, None] = {}
    attributes: dict[str, None] = {}
    imports: dict[str, None] = {}
    compares = matches = False
    before: dis.Instruction | None = None
    for step in dis.get_instructions(code):
        if step.opcode in dis.hasname:
            known = attributes if step.opname in _OF_ATTRIBUTES else spaces
            (imports if step.opname == "IMPORT_NAME" else known)[str(step.argval)] = None
        elif step.opname == "IS_OP":
            compares |= before is None or not _is_single(before)
        elif step.opname == "MATCH_CLASS":
            matches = True
        before = step
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = names_of(constant)
            spaces.update(dict.fromkeys(inner.spaces))
            attributes.update(dict.fromkeys(inner.attributes))
            imports.update(dict.fromkeys(inner.imports))
            compares |= inner.compares_objects
            matches |= inner.matches_classes
    return Names(tuple(spaces), tuple(attributes), tuple(imports), compares, matches)


names_of = OfCode(_names)


def is_trusted(module: str | None) -> bool:
    """Whether the module is of a library whose functions change nothing unseen."""
    if module is None or module.startswith("numpy.random"):
        return False
    return module.partition(".")[0] in _TRUSTED_MODULES


def _is_library(module: Any) -> bool:
    root = str(module).partition(".")[0]
    return root in _TRUSTED_MODULES or root in sys.stdlib_module_names


class Questions:
    """What a function may ask of its numbers.

    types: of what type they are, or which object. classes: whether isinstance or a pattern asks;
    attributes: names of all that are read. A number of NumPy answers these otherwise than the
    number of Python that it equals.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.types = False
        self.classes = False
        self.attributes: set[str] = set()
        self._seen: dict[int, Any] = {}
        self._look(function, ())
        self._seen.clear()

    def keep(self, number: Any) -> bool:
        """Whether a number of NumPy must stay what it is."""
        if self.types or self.classes:
            return True
        return any(hasattr(number, n) and not hasattr(0.0, n) for n in self.attributes)

    def _look(self, v: Any, reached: tuple[str, ...]) -> None:
        """Looks at a value from which code goes on by these names of attributes."""
        kind = type(v)
        if kind in _PLAIN or self.types or id(v) in self._seen:
            return
        self._seen[id(v)] = v  # which keeps its id
        if id(v) in _OF_TYPES or len(self._seen) > _MOST:
            self.types = True
        elif id(v) in _OF_CLASSES:
            self.classes = True
        elif kind is FunctionType:
            if v.__closure__ is not None or not is_trusted(v.__module__):
                self._look_at_function(v)
        elif kind is MethodType:
            self._look_at_all((v.__func__, v.__self__), reached)
        elif isinstance(v, ModuleType):
            if v is builtins or not _is_library(v.__name__):
                self._look_at_all([vars(v)[n] for n in reached if n in vars(v)], reached)
        elif kind in (tuple, list, set, frozenset):
            self._look_at_all(v, reached)
        elif kind is dict:
            self._look_at_all(v.values(), reached)
        elif kind in (staticmethod, classmethod):
            self._look(v.__func__, reached)
        elif kind is property or kind is functools.cached_property:
            self._look(v.fget if kind is property else v.func, reached)
        elif kind is functools.partial:
            self._look_at_all((v.func, v.args, v.keywords), reached)
        elif isinstance(v, type):
            self._look_at_class(v, reached, _ALSO_BY_PYTHON)
        elif not hasattr(kind, "__dlpack__"):
            self._look_at_class(kind, reached, ())
            own = getattr(v, "__dict__", None)
            if isinstance(own, dict):
                # A function of lru_cache has what it wraps there.
                self._look_at_all([own[n] for n in (*reached, "__wrapped__") if n in own], reached)

    def _look_at_all(self, values: Any, reached: tuple[str, ...]) -> None:
        for v in list(values):
            self._look(v, reached)

    def _look_at_function(self, f: FunctionType) -> None:
        found = names_of(f.__code__)
        reached = found.attributes
        self.attributes.update(reached)
        self.types |= found.compares_objects
        self.classes |= found.matches_classes
        for name in found.imports:
            root = name.partition(".")[0]
            if root == "builtins" or not _is_library(root):
                self.types |= name not in sys.modules  # nothing is known of it before it is loaded
                self._look_at_all([sys.modules.get(n) for n in {name, root}], reached)
        for name in found.spaces:
            space = f.__globals__ if name in f.__globals__ else vars(builtins)
            self._look(space.get(name), reached)
        self._look_at_all([content_of(cell) for cell in f.__closure__ or ()], reached)
        self._look_at_all(f.__defaults__ or (), reached)
        self._look_at_all((f.__kwdefaults__ or {}).values(), reached)

    def _look_at_class(self, c: type, reached: tuple[str, ...], more: tuple[str, ...]) -> None:
        """Looks at methods that the names reach, and at those that Python calls by itself."""
        for base in c.__mro__:
            if _is_library(base.__module__):
                continue
            if type(base) is not type:
                self._look(type(base), reached)
            for name, v in list(vars(base).items()):
                if name in _OF_DATACLASSES and hasattr(base, "__dataclass_fields__"):
                    continue
                operates = type(v) in _METHODS and name.startswith("__")
                operates &= name not in _ALSO_BY_PYTHON
                if name in reached or operates or name in more:
                    self._look(v, reached)


def content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
