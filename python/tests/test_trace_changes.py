"""Traces are made anew where what they depend on changed, in functions, arrays and libraries."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import numpy as np
import pytest

from attn.trace.expression import finish
from attn.trace.tracer import resolve, trace


def test_a_kept_trace_stays_where_nothing_changes():
    """So that the changes below are seen by what is compared, and not by tracing at each call."""
    table, root = np.zeros((2, 3), np.float32), np.sqrt

    def inner(s, *, w=3):
        return s.key < w

    def function(s, *, shift=np.pi):
        return (table[s.batch, s.key] > -shift) & inner(s) & (np.where(s.key > 2, np.e, 0) > 0)

    assert trace(function) is trace(function)
    assert root(4) == 2


@pytest.mark.filterwarnings("ignore:Setting the dtype")  # deprecated in NumPy 2.5
def test_size_and_dtype_of_an_array():
    table = np.zeros(6, np.int32)

    def function(s):
        return s.key < table.shape[0] + 0 * table[s.key]

    assert resolve(function, None)[0] == "key < 6 + 0 * _t0[key]"
    table.resize(7, refcheck=False)
    assert resolve(function, None)[0] == "key < 7 + 0 * _t0[key]"

    def half(s):
        return table[s.key] / 2 > 1

    assert resolve(half, None)[0] == "to_float(_t0[key]) / 2 > 1"
    table.dtype = np.float32
    assert resolve(half, None)[0] == "_t0[key] / 2 > 1"


def test_bound_methods_of_builtin_types():
    numbers, several = {"w": 5}, [2, 5]
    get, pop, draw = numbers.get, several.pop, Random(1).random

    def by_get(s):
        return s.key < get("w")

    def by_pop(s):
        return s.key < pop()

    def by_chance(s):
        return s.key < draw()

    assert finish(trace(by_get))[0] == "key < 5"
    numbers["w"] = 6
    assert finish(trace(by_get))[0] == "key < 6"
    assert [finish(trace(by_pop))[0] for _ in range(2)] == ["key < 5", "key < 2"]
    assert trace(by_chance).text != trace(by_chance).text


def test_defaults_of_keywords():
    def function(s, *, w=5):
        return s.key < w

    def value():
        return resolve(function, None)[2]["_t0"]

    assert value() == 5
    function.__kwdefaults__["w"] = 6
    assert value() == 6
    function.__kwdefaults__ = {"w": 7}
    assert value() == 7


def test_functions_that_a_function_captures():
    def inner(s, w=5):
        return s.key < w

    def keyword(s, *, w=5):
        return s.key < w

    def other(s):
        return s.key > 9

    def function(s):
        return inner(s) & keyword(s)

    def values():
        return list(resolve(function, None)[2].values())

    assert values() == [5, 5]
    inner.__defaults__ = (6,)
    assert values() == [6, 5]
    keyword.__kwdefaults__["w"] = 7
    assert values() == [6, 7]
    keyword.__kwdefaults__ = {"w": 8}
    assert values() == [6, 8]
    inner.__code__ = other.__code__
    assert resolve(function, None)[0] == "key > 9 && key < _t0"


def test_attributes_of_functions():
    def settings():
        pass

    def by_another(s):
        return s.key < settings.w

    def by_itself(s):
        return s.key < by_itself.w

    for function, holder in ((by_another, settings), (by_itself, by_itself)):
        holder.w = 5
        assert finish(trace(function))[0] == "key < 5"
        holder.w = 6
        assert finish(trace(function))[0] == "key < 6"


@pytest.mark.parametrize(
    "function",
    [
        lambda s: s.key < np.random.randint(1 << 30),
        lambda s: s.key < int(np.random.default_rng().integers(1 << 30)),
        lambda s, rng=np.random: s.key < rng.randint(1 << 30),
        lambda s, draw=np.random.randint: s.key < draw(1 << 30),
    ],
)
def test_numpys_random_numbers(function):
    assert trace(function).text != trace(function).text


def test_a_module_that_is_loaded_by_the_trace():
    """NumPy loads its generators at the first look at them."""
    program = """
import numpy as np
from attn.trace.tracer import trace
assert "random" not in vars(np)
mask = lambda s: s.key < np.random.randint(1 << 30)
assert trace(mask).text != trace(mask).text
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_attributes_of_a_module(monkeypatch):
    def function(s):
        return s.key < np.my_width

    for width in (5, 6):
        monkeypatch.setattr(np, "my_width", width, raising=False)
        assert finish(trace(function))[0] == f"key < {width}"
