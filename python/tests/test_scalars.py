"""Numbers of masks and scores that come with the call."""

import math

import numpy as np
import pytest

import attn
from attn import _attn
from attn.trace.captured import Float, Int, captured


def arrays(n=24):
    random = np.random.default_rng(5)
    return [random.standard_normal((1, n, 2, 8), np.float32) for _ in range(3)]


@pytest.mark.parametrize("reach", [0, 3, -2, 100])
def test_int(reach):
    q, k, v = arrays()
    found = attn.attention(q, k, v, mask=attn.Formula("key <= position + reach", reach=reach))
    np.testing.assert_array_equal(found, attn.attention(q, k, v, mask=f"key <= position + {reach}"))


@pytest.mark.parametrize("kind", [float, np.float32, np.array])
def test_float(kind):
    q, k, v = arrays()
    score = attn.Formula("gain * score", gain=kind(0.75))
    found = attn.attention(q, k, v, score=score)
    np.testing.assert_array_equal(found, attn.attention(q, k, v, score="0.75 * score"))


def test_gradients():
    q, k, v = arrays()
    results = []
    for score in (attn.Formula("gain * score", gain=0.75), "0.75 * score"):
        out, lse = attn.attention(q, k, v, score=score, return_lse=True)
        results.append(attn.attention_backward(q, q, k, v, out, lse, score=score))
    for name in ("q", "k", "v"):
        np.testing.assert_array_equal(results[0][name], results[1][name])


def test_quotients_by_a_captured_float():
    q, k, v = arrays()
    key = np.arange(24, dtype=np.float32)

    def bands(width):
        return lambda s: (s.key // width) % 2.0 == 0

    assert problem_of(mask=bands(2.0)) == problem_of(mask=bands(0.7))
    for width in (2.0, 0.7, 3.1):
        seen = np.broadcast_to((key // np.float32(width)) % 2 == 0, (24, 24))
        found = attn.attention(q, k, v, mask=bands(width))
        np.testing.assert_array_equal(found, attn.attention(q, k, v, mask=seen))


def test_refused():
    q, k, v = arrays()
    with pytest.raises(attn.Error, match="reach is 1099511627776; accepted are integers of 32"):
        attn.attention(q, k, v, mask=attn.Formula("key <= reach", reach=2**40))


def problem_of(**options):
    return attn.plan(*arrays(), **options).problem


def window(width):
    return lambda s: (s.position - s.key < width) & (s.key % (width // 2 + 1) != 0)


def scaled(factor, offset=0.25):
    return lambda s: s.score * factor + (offset - 1) / 2


def test_a_captured_number_plans_and_compiles_nothing_anew():
    q, k, v = arrays()
    text = problem_of(mask=window(3), score=scaled(0.5))
    assert "scalar(_t0:i32)_scalar(_t1:i32)_scalar(_t2:f32)_scalar(_t3:f32)" in text
    attn.attention(q, k, v, mask=window(3), score=scaled(0.5))
    before = _attn.plans_made()
    found = [
        attn.attention(q, k, v, mask=window(w), score=scaled(f, f / 3))
        for w, f in ((4, 0.75), (7, -2.0), (24, 1e-3))
    ]
    assert _attn.plans_made() == before
    assert problem_of(mask=window(7), score=scaled(-2.0)) == text
    for out, w, f in zip(found, (4, 7, 24), (0.75, -2.0, 1e-3), strict=True):
        mask = f"position - key < {w} && key % {w // 2 + 1} != 0"
        score = f"score * {f!r} + {(f / 3 - 1) / 2!r}"
        expected = attn.attention(q, k, v, mask=mask, score=score)
        np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("number", [3, 0.75])
def test_a_number_is_a_scalar_on_either_side_of_a_literal(number):
    def score(width):
        def halved():
            return 0.5 * width

        return lambda s: (
            s.score * (0.5 * width) + s.score * (width * 0.5) + 1.5 / width
            - (2.5 - width) + (2.0**width) + (7.5 // width) + (7.5 % width) + halved()
        )  # fmt: skip

    text = problem_of(score=score(number))
    assert text == problem_of(score=score(2 * number))
    assert text.count("scalar(") == 8
    q, k, v = arrays()
    w = number
    added = 1.5 / w - (2.5 - w) + 2.0**w + 7.5 // w + 7.5 % w + 0.5 * w
    expected = attn.attention(q, k, v, score=f"score * {1.0 * w} + {added}")
    np.testing.assert_allclose(
        attn.attention(q, k, v, score=score(number)), expected, rtol=1e-5, atol=1e-6
    )


def test_literals_of_the_text_stay_literals():
    width = 3
    text = problem_of(score=lambda s: s.score * 0.5 + 0.25 * s.key - (0.5 + s.key % width))
    assert text.count("scalar(") == 1
    assert "0.5" in text
    assert "0.25" in text


REACH = 5


@pytest.mark.parametrize("number", [4, np.int32(4), np.int64(4), np.array(4)])
def test_kinds_of_captured_integers(number):
    q, k, v = arrays()
    expected = attn.attention(q, k, v, mask="position - key < 4")
    for mask in (
        lambda s: s.position - s.key < number,
        lambda s, number=number: s.position - s.key < number,
    ):
        assert "scalar(_t0:i32)" in problem_of(mask=mask)
        np.testing.assert_array_equal(attn.attention(q, k, v, mask=mask), expected)


def test_globals_follow(monkeypatch):
    q, k, v = arrays()

    def mask(b, h, q, k):
        return q - k < REACH

    for reach in (5, 2, 9):
        monkeypatch.setitem(globals(), "REACH", reach)
        found = attn.attention(q, k, v, mask=mask)
        np.testing.assert_array_equal(found, attn.attention(q, k, v, mask=f"query - key < {reach}"))


def test_an_array_without_dimensions_is_read_at_each_call():
    q, k, v = arrays()
    factor = np.array(0.5, np.float32)
    score = attn.symbols.score * attn.buffer(factor)
    for value in (0.5, -1.25):
        factor[()] = value
        found = attn.attention(q, k, v, score=score)
        np.testing.assert_array_equal(found, attn.attention(q, k, v, score=f"score * {value!r}"))


def test_what_asks_for_the_number_gets_it():
    """Loops, branches and other modules: the text then depends on the number."""
    count, factor = 3, 4.0

    def score(s):
        total = s.score
        for i in range(count):
            total = total + i
        if count > 2:
            total = total * math.sqrt(factor)
        return total * [1, 2, 3, 5][count]

    assert problem_of(score=score).count("score((score+1.0+2.0)*2.0*5.0)") == 1


def test_literals():
    width, low = 7, -math.inf
    assert "scalar" not in problem_of(mask=lambda s: s.position - s.key < attn.literal(width))
    text = problem_of(score=lambda s: attn.where(s.key > 3, s.score, low))
    assert "scalar" not in text  # kernels know that nothing comes from there
    assert "-inf" in text
    big = 2**40
    with pytest.raises(attn.Error, match="does not fit int32"):
        attn.attention(*arrays(), mask=lambda s: s.key < big)


@pytest.mark.parametrize("a", [7, 2.5])
@pytest.mark.parametrize("b", [3, 1.25])
def test_arithmetic_is_that_of_python(a, b):
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        operator = getattr(__import__("operator"), name)
        for x, y in ((captured(a), b), (a, captured(b)), (captured(a), captured(b))):
            found = operator(x, y)
            assert found == operator(a, b)
            assert type(found) in (Int, Float) or (type(a), type(x)) == (float, float)
    assert -captured(a) == -a
    assert type(-captured(a)) is type(captured(a))
    assert type(captured(9) >> 1 | 8) is Int


@pytest.mark.parametrize(
    ("taken", "refused"),
    [
        ({"threads": 2}, {"threads": 2.0}),
        ({"max_seqlen_q": 8}, {"max_seqlen_q": 8.0}),
        ({"window": (1, 0)}, {"window": (1.0, 0.0)}),
    ],
)
def test_what_was_taken_takes_no_equal_of_another_type(taken, refused):
    q = np.ones((1, 8, 2, 16), np.float32)
    with pytest.raises(attn.InvalidArgument):
        attn.attention(q, q, q, **refused)
    attn.attention(q, q, q, **taken)
    with pytest.raises(attn.InvalidArgument):
        attn.attention(q, q, q, **refused)
