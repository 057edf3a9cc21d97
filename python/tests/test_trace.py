"""Python functions traced into expressions, against the same functions called on index grids."""

from __future__ import annotations

import copy
import functools
import gc
import math
import pickle
import threading
from functools import partial

import numpy as np
import pytest

import attn
from attn.trace.expression import finish
from attn.trace.refusal import TraceError
from attn.trace.tracer import call, resolve, trace
from traced_functions import BATCH, CASES, HEADS, LENGTH, Library

NUMPY = Library(np, np.asarray)
TABLE = np.zeros((2, 3), np.int32)
TABLES = [TABLE]
DIM = 16
# Indices given one at a time mean the same for grids only if these are taken point by point.
POINTWISE = {"chosen_blocks_of_sizes", "graphormer_edges"}


def grids():
    sizes = (BATCH, HEADS, LENGTH, LENGTH)
    return np.meshgrid(*map(np.arange, sizes), indexing="ij", sparse=True)


def expected(q, k, v, mask, score):
    """Attention in double precision over all elements of S at once; layout b n h d."""
    s = np.einsum("bihd,bjhd->bhij", q.astype(np.float64), k) / np.sqrt(q.shape[-1])
    if score is not None:
        s = np.asarray(score(s, *grids()), np.float64)
    if mask is not None:
        s = np.where(mask(*grids()), s, -np.inf)
    highest = np.maximum(s.max(-1, keepdims=True), -1e300)
    p = np.exp(s - highest)
    sums = p.sum(-1, keepdims=True)
    return np.einsum("bhij,bjhd->bihd", p / np.where(sums == 0, 1, sums), v)


def inputs(seed):
    random = np.random.default_rng(seed)
    return [random.normal(size=(BATCH, LENGTH, HEADS, DIM)).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_function_itself(name):
    kind, builder = CASES[name]
    q, k, v = inputs(len(name))
    function = builder(NUMPY)
    o = attn.attention(q, k, v, **{kind: function})
    if name in POINTWISE:
        function = np.vectorize(function)
    mask, score = (function, None) if kind == "mask" else (None, function)
    np.testing.assert_allclose(o, expected(q, k, v, mask, score), rtol=0, atol=2e-5)


def test_mask_and_score_have_buffers_of_their_own_names():
    q, k, v = inputs(3)
    mask, score = CASES["documents"][1](NUMPY), CASES["graphormer"][1](NUMPY)
    o = attn.attention(q, k, v, mask=mask, score=score)
    np.testing.assert_allclose(o, expected(q, k, v, mask, score), rtol=0, atol=2e-5)
    assert sorted(resolve(mask, score)[2]) == ["_t0", "_t1", "_t2"]


def test_attns_own_form():
    s = attn.symbols
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    mask = (s.position >= s.key) & (s.position - s.key < 9)
    score = 30 * (s.score / 30).tanh() - attn.buffer(slopes)[s.head] * abs(s.query - s.key)
    assert finish(mask)[0] == "position >= key && position - key < 9"
    q, k, v = inputs(4)
    want = expected(
        q,
        k,
        v,
        lambda b, h, i, j: (i >= j) & (i - j < 9),
        lambda x, b, h, i, j: 30 * np.tanh(x / 30) - slopes[h] * abs(i - j),
    )
    np.testing.assert_allclose(attn.attention(q, k, v, mask=mask, score=score), want, atol=2e-5)

    def function(s):
        return 30 * (s.score / 30).tanh() - slopes[s.head] * abs(s.query - s.key)

    np.testing.assert_allclose(attn.attention(q, k, v, mask=mask, score=function), want, atol=2e-5)


def text_of(e):
    return finish(e)[0]


def test_types_follow_torch():
    s = attn.symbols
    assert text_of(s.query / 2) == "to_float(query) / 2"
    assert text_of(1 / s.query) == "1 / to_float(query)"
    assert text_of(s.query // 2 % 3) == "query / 2 % 3"
    assert text_of(s.query // 0.5) == "floor(query / 0.5)"
    assert (
        text_of((s.query / 3) % -4) == "to_float(query) / 3 - floor(to_float(query) / 3 / -4) * -4"
    )
    assert text_of((s.query / 3).int()) == "to_int(to_float(query) / 3)"
    assert text_of((s.query / 3).astype(np.int64)) == "to_int(to_float(query) / 3)"
    assert text_of((s.query / 3).astype("int32")) == "to_int(to_float(query) / 3)"
    assert text_of(attn.where(s.key > 5, float("nan"), s.score)) == "select(key > 5, nan, score)"
    assert text_of(s.query.floor()) == text_of(s.query.long()) == "query"
    assert text_of(np.ceil(s.query / 3)) == "-floor(-(to_float(query) / 3))"
    assert text_of((s.query < 3) * 2) == "select(query < 3, 1, 0) * 2"
    assert text_of(~s.query) == "-query - 1"
    assert text_of(~(s.query < 3)) == "!(query < 3)"
    assert text_of((s.query < 3) ^ (s.key < 3)) == "query < 3 != key < 3"
    assert text_of(s.query - (s.key - 1)) == "query - (key - 1)"
    assert text_of(s.score * 1e300) == "score * inf"
    assert text_of(s.score - np.float64(0.5)) == "score - 0.5"
    assert text_of(np.int64(3) - s.key) == "3 - key"
    assert text_of(-(s.score**2)) == "-(score * score)"
    assert text_of((s.query - s.key).any()) == "query - key != 0"
    assert text_of(s.score.where(s.key < 3, 0.5)) == "select(key < 3, score, 0.5)"
    assert text_of(2 ** -(s.head + 1)) == "exp2(to_float(-(head + 1)) * 1.0)"
    assert text_of(np.float32(4.0) ** s.score) == "exp2(score * 2.0)"


def test_indices_one_at_a_time_and_from_the_end():
    s = attn.symbols
    t = attn.buffer(np.zeros((2, 3, 4), np.float32))
    assert text_of(t[s.batch][1][s.key]) == "_t0[batch, 1, key]"
    assert text_of(t[s.batch, :, s.key][-1]) == "_t0[batch, 2, key]"
    assert text_of(t[..., -1][s.batch, s.head]) == "_t0[batch, head, 3]"
    assert text_of(t[..., np.int64(-1)][s.batch, s.head]) == "_t0[batch, head, 3]"
    assert text_of(attn.buffer(np.full((), 3.0))) == "_t0"  # a scalar


def test_arrays_in_lists_and_dicts():
    name, tables = "first", {"first": [TABLE]}
    seen = []

    def of_closure(s):
        seen.append(len(tables))  # a list without arrays is the function's own
        return tables[name][0][1, s.key] > 0

    assert text_of(trace(lambda s: TABLES[0][0, s.key] > 0)) == "_t0[0, key] > 0"
    assert text_of(trace(of_closure)) == "_t0[1, key] > 0"
    assert seen == [1]
    tables["first"] = [np.zeros((2, 4), np.float32)]  # found at the next call
    assert trace(of_closure).buffers.popitem()[1].shape == (2, 4)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda b, h, q, k: q if q > k else k, "the truth of Expr('query > key')"),
        (lambda b, h, q, k: q > k and q > 3, "the truth of"),
        (lambda b, h, q, k: np.sort(q), "NumPy function sort"),
        (lambda s: np.floor(s.score / 2), "floor of Expr('score / 2'), which depends on the score"),
        (lambda s: s.score % 1, "% of Expr('score / 1'), which depends on the score"),
        (lambda s: s.score.int(), "int of Expr('score'), which depends on the score"),
        (lambda s: (s.key / 3).astype(np.int16), "accepts int32 and int64"),
        (lambda s: (s.key > 1) - True, "of booleans: accepts | & ^, and numbers"),
        (lambda s: np.round(s.key / 3, 1), "to 1 decimals: accepts 0"),
        (lambda s: s.key.frobnicate(), "method frobnicate"),
        (lambda s: range(s.key), "has no value as a Python number"),
        (lambda s: [1, 2, 3][s.key], "has no value as a Python number"),
        (lambda s: round(s.key / 2), "has no value as a Python number"),
        (lambda s: math.trunc(s.key / 2), "has no value as a Python number"),
        (lambda s: math.floor(s.key / 2), "has no value as a Python number"),
        (lambda s: f"{s.key:3d}", "has no value as a Python number"),
        (lambda s: pow(s.key, 2, 3), "pow(x, y) % z"),
        (lambda s: s.key + "x", "an operand of type str"),
        (lambda s: s.key < 2**31, "2147483648 does not fit int32"),
        (lambda s: (s.score // 2) > 1, "// of Expr('score / 2'), which depends on the score"),
        (lambda s: s.score & 1, "accepts boolean and int32"),
        (lambda s: attn.buffer(np.zeros((2, 2)))[s.key] + 1, "an array of rank 1 is used as"),
        (lambda s: attn.buffer(np.zeros(2))[s.score], "is float32: accepts int32"),
        (lambda s: attn.buffer(np.zeros(2))[s.key, s.key], "2 indices of an array with 1"),
        (lambda s: attn.buffer(np.zeros(2, np.complex64))[s.key], "dtype complex64"),
        (lambda s: attn.buffer(np.zeros((1,) * 5)), "rank 5"),
        (
            lambda s: s.key < TABLE.max(),
            "max of an array, int32 of shape (2, 3), that is read when",
        ),
        (lambda s: s.key < np.max(TABLE), "accepted are its elements by index, shape, ndim, size"),
        (lambda s: TABLE[s.key].T > 0, "T of an array, int32 of shape (3,), that is read"),
        (lambda s: TABLE.astype(np.float32)[0, s.key] > 0, "astype of an array, int32 of shape"),
        (lambda s: s.key < np.exp(TABLE), "an array of rank 2 is used as a value"),
        (partial(lambda s, t: t[0, s.key] > 0, t=TABLE), "is indexed by it as attn.buffer(array)"),
    ],
)
def test_refusals_name_the_operation_and_the_line(function, message):
    with pytest.raises(TraceError) as refused:
        trace(function)
    assert message in str(refused.value)
    code = getattr(function, "func", function).__code__
    assert f"{code.co_filename}:{code.co_firstlineno}" in str(refused.value)


def test_sizes_of_a_captured_array():
    mask = lambda s: s.key < len(TABLE) + TABLE.size + TABLE[0].size + TABLE.ndim  # noqa: E731
    assert text_of(trace(mask)) == "key < 13"


def test_refusals_of_whole_functions():
    with pytest.raises(TraceError, match="has 2 parameters: accepts 1"):
        resolve(lambda a, b: a, None)
    with pytest.raises(TraceError, match="returns None: accepts one value"):
        resolve(lambda s: None, None)
    with pytest.raises(TraceError, match="is float32: accepts boolean"):
        resolve(lambda s: s.key / 2, None)
    with pytest.raises(TraceError, match="is boolean: accepts float32"):
        resolve(None, lambda s: s.key < 2)
    far = np.array([2**40])
    with pytest.raises(TraceError, match="outside of int32"):
        resolve(lambda s: attn.buffer(far)[s.key] == 0, None)


def test_a_captured_name_that_is_not_assigned_yet():
    def mask(s):
        try:
            return s.key < limit
        except NameError:
            return s.key <= s.query

    for _ in range(2):
        assert finish(trace(mask))[0] == "key <= query"
    limit = 3
    for _ in range(2):
        assert finish(trace(mask))[0] == "key < _t0"


def decorated(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


@pytest.mark.parametrize(
    "function",
    [
        lambda s: s.key <= s.query,
        lambda b, h, i, j: j <= i,
        decorated(lambda s: s.key <= s.query),
        lambda *places: places[3] <= places[2],
    ],
)
def test_parameters_of_what_is_decorated(function):
    """The decorator's own *args say nothing."""
    assert finish(call(decorated(function)))[0] == "key <= query"


def test_a_trace_is_kept_while_what_was_captured_stays():
    width = 5

    def function(s):
        return s.query - s.key < width

    first = trace(function)
    assert trace(function) is first
    width = 6
    text, _, numbers = resolve(function, None)
    assert (text, numbers) == ("query - key < _t0", {"_t0": 6})
    width = 6.0
    assert resolve(function, None)[2] == {"_t0": 6.0}


def test_what_may_change_unseen_is_traced_again():
    class Settings:
        width = 5

    settings = Settings()

    def by_attribute(s):
        return s.query - s.key < settings.width

    lengths = np.array([3, 4])

    def by_value(s):
        return s.key < int(lengths[0]) if False else s.key < lengths.max()

    assert text_of(trace(by_attribute)) == "query - key < 5"
    settings.width = 7
    assert text_of(trace(by_attribute)) == "query - key < 7"
    with pytest.raises(Exception, match="max"):  # a Buffer has no values
        trace(by_value)


def test_an_array_is_read_when_attention_runs():
    ids = np.zeros(LENGTH, np.int32)

    def function(b, h, i, j):
        return ids[i] == ids[j]

    q, k, v = inputs(5)
    for seed in range(2):
        ids[:] = np.sort(np.random.default_rng(seed).integers(0, 4, LENGTH))
        o = attn.attention(q, k, v, mask=function)
        np.testing.assert_allclose(o, expected(q, k, v, function, None), rtol=0, atol=2e-5)


def test_a_trace_goes_with_its_function():
    from attn.trace import tracer as module

    before = len(module._traces)
    functions = [lambda s, i=i: s.key < 3 for i in range(100)]  # at once, or they share an id
    for function in functions:
        trace(function)
    assert len(module._traces) >= before + 100
    functions.clear()
    del function
    gc.collect()
    assert len(module._traces) <= before + 1


def test_what_is_made_of_a_code_goes_with_it():
    """Masks that a program writes itself, each with a code of its own."""
    from attn.trace.bytecode import names_of
    from attn.trace.captured import with_literals

    before = len(with_literals), len(names_of)
    functions = [
        eval(f"lambda s, w=3: (s.key < w) & (lambda x: x > {i}.5)(s.query)") for i in range(100)
    ]
    for function in functions:
        trace(function)
    assert len(with_literals) >= before[0] + 100
    assert len(names_of) >= before[1] + 100
    functions.clear()
    del function
    gc.collect()
    assert len(with_literals) <= before[0] + 2
    assert len(names_of) <= before[1] + 2


def test_threads_trace_the_same_function():
    texts = []

    def function(b, h, q, k):
        return (q >= k) & (q - k < 5)

    def work():
        for _ in range(2000):
            texts.append(trace(function).text)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert set(texts) == {"query >= key && query - key < 5"}
    assert len(texts) == 16000


def test_a_captured_number_of_more_digits():
    q = np.ones((1, 4, 1, 4), np.float32)

    def call(x):
        return attn.attention(q, q, q, score=lambda s: s.score * x)

    np.testing.assert_array_equal(call(np.longdouble(2)), call(2.0))


def test_text_passes_through():
    assert resolve("query < 3", None) == ("query < 3", "", {})
    assert resolve(True, None) == ("true", "", {})
    assert call(lambda s: True).text == "true"


def test_copies_read_copies_of_arrays():
    """An expression tells arrays apart by their ids, which those of a copy are not."""
    random = np.random.default_rng(5)
    q = random.normal(size=(1, 6, 1, 4)).astype(np.float32)
    a, b = (random.normal(size=6).astype(np.float32) for _ in range(2))
    read = (
        attn.buffer(a)[attn.symbols.key]
        - 2 * attn.buffer(b)[attn.symbols.query] * attn.buffer(a)[attn.symbols.query]
    )
    wanted = attn.attention(q, q, q, score=attn.symbols.score + read)
    for made in (copy.copy(read), copy.deepcopy(read), pickle.loads(pickle.dumps(read))):
        np.testing.assert_array_equal(
            attn.attention(q, q, q, score=attn.symbols.score + made), wanted
        )
    other = copy.deepcopy(read)
    for array in other.buffers.values():
        array[:] = 0
    np.testing.assert_array_equal(
        attn.attention(q, q, q, score=attn.symbols.score + read + other), wanted
    )


def test_divmod_is_quotient_and_remainder():
    quotient, rest = trace(lambda s: divmod(s.key, 3)[0]), trace(lambda s: divmod(s.key, 3)[1])
    assert finish(quotient) == finish(trace(lambda s: s.key // 3))
    assert finish(rest) == finish(trace(lambda s: s.key % 3))
    assert finish(trace(lambda s: divmod(7, s.key + 1)[1])) == finish(
        trace(lambda s: 7 % (s.key + 1))
    )


@pytest.mark.parametrize("mask", [lambda s: s.key in {1, 3}, lambda s: {1: s.key >= 0}[s.key]])
def test_sets_and_keys_of_dicts_are_refused(mask):
    """They compare hashes first, so that no key was ever found."""
    q = np.ones((1, 4, 1, 8), np.float32)
    with pytest.raises(attn.Error, match="in a set or as a key.*test_trace.py"):
        attn.attention(q, q, q, mask=mask)
