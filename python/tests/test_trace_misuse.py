"""What a traced function may do to symbols, expressions and arrays by mistake: each is refused with
the line, and changes nothing that another function reads.
"""

from __future__ import annotations

import collections
import copy
import decimal
import math
import pickle

import numpy as np
import pytest

from attn.trace.expression import Expr, finish
from attn.trace.refusal import TraceError
from attn.trace.symbol import Symbols, symbols
from attn.trace.tracer import trace

TABLE = np.arange(8, dtype=np.float32)
NUMBERS = [1, 2, 3]


def text_of(function):
    return finish(trace(function))[0]


def add_to_score(s):
    s.score += 1
    return s.score


def set_another(s):
    s.window = 5
    return s.key < s.window


def delete(s):
    del s.key
    return s.query < 3


def unpack(s):
    a, b = s.key
    return a < b


def write_to_array(s):
    TABLE[0] = 1.0
    return s.key < 3


def write_to_element(s):
    TABLE[s.key] = 1.0
    return s.key < 3


def write_to_symbol(s):
    s.key[0] = 1
    return s.key < 3


def set_attribute_of_element(s):
    s.key.window = 1
    return s.key < 3


def match_attribute(s):
    match s:
        case object(kye=k):
            return k > 0
    return s.key < 0


def enter(s):
    with s.key:
        return s.key < 1


MISUSES = {
    "a misspelt attribute": (lambda s: s.kye < 1, "attn.symbols has no kye: accepts batch, head"),
    "as an index": (lambda s: TABLE[s.kye] > 0, "attn.symbols has no kye"),
    "getattr": (lambda s: getattr(s, "kye", s.key) < 1, "attn.symbols has no kye"),
    "hasattr": (lambda s: s.key < hasattr(s, "kye"), "attn.symbols has no kye"),
    "pattern": (match_attribute, "attn.symbols has no kye"),
    "in place": (add_to_score, "score of attn.symbols is to be set or deleted"),
    "set": (set_another, "window of attn.symbols is to be set"),
    "delete": (delete, "key of attn.symbols is to be set or deleted"),
    "call": (lambda s: s() < 1, "attn.symbols itself is used as a value: accepts its attributes"),
    "len": (lambda s: len(s) < s.key, "attn.symbols itself"),
    "hash": (lambda s: s.key < hash(s) % 7, "attn.symbols itself"),
    "set of": (lambda s: s.key < len({s}), "attn.symbols itself"),
    "iterate": (lambda s: list(s), "attn.symbols itself"),
    "item": (lambda s: s["key"] < 1, "attn.symbols itself"),
    "in": (lambda s: "key" in s, "attn.symbols itself"),
    "equal": (lambda s: s == 3, "attn.symbols itself"),
    "order": (lambda s: s.key < s, "an operand of type Symbols"),
    "truth": (lambda s: s.key < (3 if s else 4), "attn.symbols itself"),
    "sum": (lambda s: 2 * s + 1, "attn.symbols itself"),
    "number": (lambda s: float(s) < s.key, "attn.symbols itself"),
    "text": (lambda s: s.key < len(f"{s}"), "attn.symbols itself"),
    "index of a list": (lambda s: s.key < NUMBERS[s], "attn.symbols itself"),
    "index of an array": (lambda s: TABLE[s] > 0, "an operand of type Symbols"),
    "NumPy of symbols": (lambda s: np.exp(s), "attn.symbols itself"),
    "dict": (lambda s: {1: 2}[s.key] > 0, "in a set or as a key"),
    "hash of an element": (lambda s: hash(s.key) > 1, "in a set or as a key"),
    "Counter": (lambda s: collections.Counter([s.key])[1] > 0, "in a set or as a key"),
    "len of an element": (lambda s: len(s.key) > 1, "has no value as a Python number"),
    "element of an element": (lambda s: s.key[0] > 1, "an index of Expr('key'), which is a scalar"),
    "write to an element": (write_to_symbol, "an index of Expr('key'), which is a scalar"),
    "in an element": (lambda s: 3 in s.key, "has no value as a Python number"),
    "next": (lambda s: next(s.key), "has no value as a Python number"),
    "reversed": (lambda s: list(reversed(s.key)), "has no value as a Python number"),
    "with": (enter, "has no value as a Python number"),
    "unpack": (unpack, "has no value as a Python number"),
    "np.array": (lambda s: np.array(s.key) > 1, "has no value as a Python number"),
    "np.arange": (lambda s: np.arange(s.key), "has no value as a Python number"),
    "called element": (lambda s: s.key() < 1, "'Expr' object is not callable: accepted of attn."),
    "attribute": (set_attribute_of_element, "'Expr' object has no attribute 'window'"),
    "protocol": (lambda s: s.key.__foo__, "'Expr' object has no attribute '__foo__'"),
    "join": (lambda s: ",".join([s.key]), "expected str instance, Expr found: accepted"),
    "in a word": (lambda s: s.key in "abc", "not Expr: accepted"),
    "Decimal": (lambda s: decimal.Decimal(s.key) < 1, "conversion from Expr to Decimal"),
    "one operand": (lambda s: np.where(s.key > 1), "missing 2 required positional arguments"),
    "too many": (lambda s: s.key.clamp(1, 2, 3, 4), "positional arguments but 5 were given"),
    "erfc": (lambda s: s.score.erfc(), "erfc of Expr('score')"),
    "dict of an array": (lambda s: {1: s.key}[TABLE] > 0, "an array of rank 1 is used as a value"),
    "set of an array": (lambda s: s.key < len({TABLE}), "an array of rank 1 is used as a value"),
    "list by an array": (lambda s: s.key < NUMBERS[TABLE], "an array of rank 1 is used as a value"),
    "called array": (lambda s: TABLE(s.key) > 0, "'CapturedBuffer' object is not callable"),
    "power": (lambda s: (2**TABLE)[s.key] > 0, "an array of rank 1 is used as a value"),
    "and": (lambda s: (1 & TABLE)[s.key] > 0, "an array of rank 1 is used as a value"),
    "plus": (lambda s: (+TABLE)[s.key] > 0, "an array of rank 1 is used as a value"),
    "divmod": (lambda s: divmod(TABLE, 2)[0][s.key] > 0, "an array of rank 1 is used as a value"),
    "round": (lambda s: round(TABLE)[s.key] > 0, "an array of rank 1 is used as a value"),
    "format": (lambda s: s.key < len(f"{TABLE:3}"), "an array of rank 1 is used as a value"),
    "math": (lambda s: math.sqrt(TABLE) < s.key, "an array of rank 1 is used as a value"),
    "write to an array": (write_to_array, "an array of rank 1 is written to"),
    "write to its element": (write_to_element, "an array of rank 1 is written to"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_is_refused_with_the_line(name):
    function, message = MISUSES[name]
    with pytest.raises(TraceError) as refused:
        trace(function)
    assert message in str(refused.value)
    first = function.__code__.co_firstlineno
    last = max(line for _, _, line in function.__code__.co_lines() if line)
    assert any(f"{__file__}:{n})" in str(refused.value) for n in range(first, last + 1))
    for name in Symbols.__slots__:  # what every other function reads
        assert repr(getattr(symbols, name)) == f"Expr({name!r})"


@pytest.mark.parametrize("given", [{1}, {"a": 1}, int, len, 1j, b"a", [1], range(3), symbols])
def test_what_is_no_value_is_refused_with_the_function(given):
    with pytest.raises(TraceError, match=r"lambda.*test_trace_misuse.py:\d+\) returns .*: accepts"):
        trace(lambda s: given)


def test_an_array_is_no_value():
    with pytest.raises(TraceError, match="misuse.py:.* returns an array of rank 1: accepts one"):
        trace(lambda s: TABLE)
    with pytest.raises(TraceError) as refused:
        trace(lambda s: "x" * 100000)
    assert len(str(refused.value)) < 1000


def test_errors_of_the_function_itself_stay():
    def value(s):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="^mine$"):
        trace(value)
    with pytest.raises(TypeError, match="^can only concatenate"):
        trace(lambda s: s.key < "a" + 1)
    with pytest.raises(AttributeError, match="^'list' object has no attribute 'kye'"):
        trace(lambda s: s.key < NUMBERS.kye)


def test_copies_of_symbols_are_the_symbols():
    for made in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        assert made(symbols) is symbols
        assert text_of(lambda s, made=made: made(s).key < 1) == "key < 1"
    assert type(copy.deepcopy(symbols.key)) is Expr
