"""What a traced function learns of what it captures when it asks for types, itself or by helpers,
methods and modules: the same as when Python calls it.
"""

from __future__ import annotations

import builtins
import functools
import operator
import pickle
import sys
import types

import numpy as np
import pytest

from attn.trace.captured import Float, Int, Literal
from attn.trace.expression import finish
from attn.trace.tracer import resolve, trace

WIDTH, FACTOR = 5, 0.5
SAME = FACTOR
INTEGER, SINGLE = np.int64(5), np.float32(2)
TABLE = np.arange(8, dtype=np.int32)
OF_TABLES = {"rows": np.arange(12, dtype=np.int32).reshape(3, 4)}
kind_of = type


def is_int(x):
    return type(x) is int


def is_kind(x, kind):
    return kind_of(x) is kind


class Helper:
    def __init__(self, x=None):
        self.was_int = type(x) is int

    def __call__(self, x):
        return type(x) is int

    def method(self, x):
        return is_kind(x, int)

    @staticmethod
    def function(x):
        return x.__class__ is int

    @property
    def of_width(self):
        return is_int


helper = Helper()
method = helper.method
partial = functools.partial(is_kind, kind=int)
cached = functools.lru_cache(is_int)
helpers = types.ModuleType("attn_test_helpers")
helpers.is_int, helpers.Helper, helpers.helper = is_int, Helper, helper


@functools.singledispatch
def reach(x):
    return 0


@reach.register
def _(x: int):
    return 7


def with_cell():
    ask = type
    return lambda s: s.key < 7 if ask(WIDTH) is int else s.key < 0


def in_class(s):
    class Inner:
        found = type(WIDTH) is int

    return s.key < 7 if Inner.found else s.key < 0


def imported(s):
    from attn_test_helpers import is_int as ask

    return s.key < 7 if ask(WIDTH) else s.key < 0


def of_functions(s, asks=(lambda x: False, is_int)):
    return s.key < 7 if asks[1](WIDTH) else s.key < 0


ASK = {
    "type": lambda s: s.key < 7 if type(WIDTH) is int else s.key < 0,
    "type of a float": lambda s: s.key < 7 if type(FACTOR) is float else s.key < 0,
    "computed": lambda s: s.key < 7 if type(2 * FACTOR) in (int, float) else s.key < 0,
    "__class__": lambda s: s.key < 7 if WIDTH.__class__ is int else s.key < 0,
    "key of a dict": lambda s, w=4: s.key < {int: 7, float: 0}[type(w)],
    "helper": lambda s, *, w=4: s.key < 7 if is_int(w) else s.key < 0,
    "function inside": lambda s: s.key < 7 if (lambda: type(0.5 * WIDTH) is float)() else s.key < 0,
    "another name": lambda s: s.key < 7 if kind_of(WIDTH) is int else s.key < 0,
    "cell": with_cell(),
    "helper by another name": lambda s: s.key < 7 if is_kind(WIDTH, int) else s.key < 0,
    "builtins": lambda s: s.key < 7 if builtins.type(WIDTH) is int else s.key < 0,
    "module": lambda s: s.key < 7 if helpers.is_int(WIDTH) else s.key < 0,
    "class of a module": lambda s: s.key < 7 if helpers.Helper.function(WIDTH) else s.key < 0,
    "object of a module": lambda s: s.key < 7 if helpers.helper.method(WIDTH) else s.key < 0,
    "import": imported,
    "method": lambda s: s.key < 7 if helper.method(WIDTH) else s.key < 0,
    "bound method": lambda s: s.key < 7 if method(WIDTH) else s.key < 0,
    "property": lambda s: s.key < 7 if helper.of_width(WIDTH) else s.key < 0,
    "called object": lambda s: s.key < 7 if helper(WIDTH) else s.key < 0,
    "made object": lambda s: s.key < 7 if Helper(WIDTH).was_int else s.key < 0,
    "partial": lambda s: s.key < 7 if partial(WIDTH) else s.key < 0,
    "lru_cache": lambda s: s.key < 7 if cached(WIDTH) else s.key < 0,
    "singledispatch": lambda s: s.key < reach(WIDTH) + 0,
    "tuple of functions": of_functions,
    "class inside": in_class,
    "generator": lambda s: s.key < 7 if all(type(x) is int for x in (WIDTH, 3)) else s.key < 0,
    "map": lambda s: s.key < 7 if list(map(type, [WIDTH])) == [int] else s.key < 0,
    "getattr": lambda s: s.key < 7 if getattr(WIDTH, "__class__") is int else s.key < 0,  # noqa: B009
    "eval": lambda s: s.key < 7 if eval("type(WIDTH) is int") else s.key < 0,
    "attrgetter": lambda s: (
        s.key < 7 if operator.attrgetter("__class__")(WIDTH) is int else s.key < 0
    ),
    "pickle": lambda s: s.key < 7 if type(pickle.loads(pickle.dumps(WIDTH))) is int else s.key < 0,
    "identity": lambda s: s.key < 7 if SAME is FACTOR else s.key < 0,
    "isinstance": lambda s: s.key < 7 if isinstance(WIDTH, int) else s.key < 0,
    "NumPy's integer": lambda s: s.key < 7 if isinstance(INTEGER, np.integer) else s.key < 0,
    "no float": lambda s: s.key < 7 if not isinstance(SINGLE, float) else s.key < 0,
    "NumPy's attribute": lambda s: s.key < 7 if INTEGER.dtype == np.int64 else s.key < 0,
    "hasattr": lambda s: s.key < 7 if hasattr(SINGLE, "dtype") else s.key < 0,
    "array": lambda s: s.key < 7 if isinstance(TABLE, np.ndarray) else s.key < 0,
    "array in a dict": lambda s: (
        s.key < 7 if isinstance(OF_TABLES["rows"][0], np.ndarray) else s.key < 0
    ),
}


@pytest.mark.parametrize("name", ASK)
def test_types_are_those_of_what_is_captured(name, monkeypatch):
    monkeypatch.setitem(sys.modules, helpers.__name__, helpers)
    assert resolve(ASK[name], None)[0] == "key < 7"


# What looks like such a question and is none: the numbers stay scalars, for which nothing is
# compiled anew.
ASK_NOTHING = {
    "method of a symbol": lambda s: s.key.type(np.int32) < WIDTH,
    "None": lambda s: s.key < (WIDTH if WIDTH is not None else 0),
    "isinstance of a number of Python": lambda s: s.key < (WIDTH if isinstance(WIDTH, int) else 0),
    "NumPy": lambda s: np.minimum(s.key, 9) < INTEGER,
    "another method": lambda s: s.key < (WIDTH if OF_TABLES.get("rows") is not None else 0),
}


@pytest.mark.parametrize("name", ASK_NOTHING)
def test_numbers_whose_type_nobody_asks_for_are_scalars(name):
    text, _, numbers = resolve(ASK_NOTHING[name], None)
    assert "_t0" in text
    assert type(numbers["_t0"]) is int


@pytest.mark.parametrize("number", [Int(3), Float(0.5), Literal(0.5)])
def test_captured_numbers_have_the_class_of_numbers(number):
    assert number.__class__ in (int, float)
    assert type(pickle.loads(pickle.dumps(number))) is number.__class__


def test_a_module_that_is_imported_inside_is_read_at_each_call(monkeypatch):
    module = types.ModuleType("attn_test_settings")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def by_name(s):
        import attn_test_settings

        return s.key < attn_test_settings.width

    def by_value(s):
        from attn_test_settings import width

        return s.key < width

    for width in (3, 4):
        module.width = width
        for function in (by_name, by_value):
            assert finish(trace(function))[0] == f"key < {width}"


def test_a_number_whose_type_is_asked_for_may_change():
    width, table = 5, np.arange(8)

    def mask(s):
        return s.key < table[width if type(width) is int else int(width) + 1]

    for width in (5, 3, 2.5):
        want = f"key < _t0[{width if type(width) is int else 3}]"
        assert resolve(mask, None)[0] == want
        assert finish(trace(mask))[0] == want
