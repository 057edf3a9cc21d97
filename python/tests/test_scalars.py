"""Numbers of masks and scores that come with the call."""

import numpy as np
import pytest

import attn


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


def test_refused():
    q, k, v = arrays()
    with pytest.raises(attn.Error, match="reach is 1099511627776; accepted are integers of 32"):
        attn.attention(q, k, v, mask=attn.Formula("key <= reach", reach=2**40))
