"""Verify steps of speculative decoding, against a loop over what each draft token sees."""

import numpy as np
import pytest

import attn

RANDOM = np.random.default_rng(36)
HEADS, HEADS_K, SIZE, PAGE = 4, 2, 16, 8


def tree(drafts):
    return [int(RANDOM.integers(-1, i)) for i in range(drafts)]


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def above(parents, i):
    """Token i and all above it."""
    return {i} | (above(parents, parents[i]) if parents[i] >= 0 else set())


def expected(q, k, v, parents):
    """Of one sequence: `[rows, heads, size]`."""
    out = np.zeros_like(q)
    before = len(k) - len(q)
    for i in range(len(q)):
        keys = [*range(before), *(before + t for t in sorted(above(parents, i)))]
        for h in range(HEADS):
            of_k = h * HEADS_K // HEADS
            p = np.exp(k[keys, of_k].astype(np.float64) @ q[i, h] / np.sqrt(SIZE))
            out[i, h] = p @ v[keys, of_k] / p.sum()
    return out


@pytest.mark.parametrize("paged", [False, True])
def test_verify_steps(paged):
    """Three sequences of their own numbers of draft tokens, packed; bits that no sequence has are
    set."""
    drafts, keys = [9, 40, 3], [60, 70, 200]
    parents = [tree(n) for n in drafts]
    words = np.array([attn.tree_words(p, seqlen_q=40) for p in parents], np.int32)
    assert words.shape == (3, 40, 2)
    for b, n in enumerate(drafts):
        words[b, n:] = -1
        for t in range(n, 64):
            words[b, :n, t // 32] |= np.uint32(1 << t % 32).view(np.int32)
    q = normal(sum(drafts), HEADS, SIZE)
    ks, vs = ([normal(n, HEADS_K, SIZE) for n in keys] for _ in "kv")
    cu_q, cu_k = (np.cumsum([0, *n], dtype=np.int32) for n in (drafts, keys))
    options = {"cu_seqlens_q": cu_q, "max_seqlen_q": 40, "mask": attn.tree_mask(words)}
    if paged:
        table = np.full((3, 25), -1, np.int32)
        pool = np.full((2, 50, PAGE, HEADS_K, SIZE), np.nan, np.float32)
        free = iter(RANDOM.permutation(50))
        for b, n in enumerate(keys):
            for first in range(0, n, PAGE):
                page = table[b, first // PAGE] = next(free)
                for to, of in zip(pool, (ks, vs), strict=True):
                    part = of[b][first : first + PAGE]
                    to[page, : len(part)] = part
        used = np.array(keys, np.int32)
        out = attn.attention(q, *pool, page_table=table, seqused_k=used, **options)
    else:
        out = attn.attention(
            q, np.concatenate(ks), np.concatenate(vs), cu_seqlens_k=cu_k, **options
        )
    for b, tree_of in enumerate(parents):
        rows = slice(cu_q[b], cu_q[b + 1])
        np.testing.assert_allclose(out[rows], expected(q[rows], ks[b], vs[b], tree_of), atol=1e-5)


def test_words():
    assert attn.tree_words([-1, 0, 0, 1]) == [[1], [3], [5], [11]]
    assert attn.tree_words(np.array([-1]), 2) == [[1], [0]]
    assert attn.tree_words([-1] * 32)[31] == [-(2**31)]
    for parents in ([0], [-2], [-1, 2**40], [0.5], "a", 3):
        with pytest.raises(attn.InvalidArgument, match="tree_words.*accepted"):
            attn.tree_words(parents)
    with pytest.raises(attn.InvalidArgument, match="seqlen_q = 1 for 2 parents"):
        attn.tree_words([-1, -1], 1)


def test_words_of_another_shape():
    q = normal(2, 5, HEADS, SIZE)
    with pytest.raises(attn.InvalidArgument, match="words has shape"):
        attn.tree_mask(np.zeros((5, 1), np.int32))
    for shape in ((2, 4, 1), (2, 5, 2), (3, 5, 1), (2, 1, 1)):
        with pytest.raises(attn.InvalidArgument, match=r"tree.*accepted is.*2, 5, 1"):
            attn.attention(q, q, q, mask=attn.tree_mask(np.zeros(shape, np.int32)))
