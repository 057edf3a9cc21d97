"""attn.torch.merge and attn.jax.merge, in the operations of a library, against the one in C++."""

from __future__ import annotations

import numpy as np
import pytest

import attn
from attn import merging

PACKED = {"cu_seqlens_q": [0, 4, 9], "cu_seqlens_k": [0, 7, 9]}


def parts_of(dtype, packed):
    rng = np.random.default_rng(0)
    shape = (9, 3, 8) if packed else (2, 9, 3, 8)
    q, k, v = (rng.standard_normal(shape).astype(dtype) for _ in range(3))
    options = {n: np.array(x, np.int32) for n, x in PACKED.items()} if packed else {}
    return [
        attn.attention(q, k, v, mask=mask, return_lse=True, **options)
        for mask in ("key % 3 == 0 && query > 1", "key < 0", "key % 3 == 1 && query > 1")
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("packed", [False, True])
def test_as_in_cpp(packed, dtype):
    parts = parts_of(dtype, packed)
    out, lse = attn.merge(parts)
    found = merging.merge(parts, np, lambda array: array)
    assert np.isinf(lse).any()
    assert found[0].dtype == dtype
    rounding = np.finfo(dtype).eps
    np.testing.assert_allclose(found[0], out, rtol=2 * rounding, atol=2e-6)
    np.testing.assert_allclose(found[1], lse, rtol=1e-6)


def test_what_empty_parts_hold_weighs_nothing():
    (first, lse), (nothing, minus), _ = parts_of(np.float32, False)
    assert np.isneginf(minus).all()
    found = merging.merge([(first, lse), (np.full_like(nothing, np.nan), minus)], np, lambda x: x)
    np.testing.assert_allclose(found[0], first, rtol=1e-6)


def test_refusals():
    (out, lse), *_ = parts_of(np.float32, False)
    for parts in ([], [(out, lse), (out[:1], lse[:1])], [(out, lse.swapaxes(1, 2))], [(lse, lse)]):
        with pytest.raises(attn.InvalidArgument, match=r"parts? .* accepted"):
            merging.merge(parts, np, lambda x: x)
