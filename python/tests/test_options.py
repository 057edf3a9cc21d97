"""Keywords mean what their formulas say, in every layout."""

import numpy as np
import pytest

import attn
from attention import Exact, forward
from expression import parse
from problems import Problem

B, H, HK, N, M, D = 2, 4, 2, 33, 47, 24
RANDOM = np.random.default_rng(7)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


Q, K, V = normal(B, N, H, D), normal(B, M, HK, D), normal(B, M, HK, D)
SLOPES, SLOPES2 = np.abs(normal(H)), np.abs(normal(B, H))
BIAS2, BIAS4 = normal(N, M), normal(1, H, N, M)
ALLOWED = RANDOM.random((B, 1, N, M)) < 0.6
BLOCKS = (RANDOM.random((-(-M // 8), -(-M // 4))) < 0.5).astype(np.uint8)
SINK = normal(H)

# name: (keywords, mask, score, buffers) with the formulas written out.
CASES = {
    "plain": ({}, None, None, {}),
    "scale": ({"scale": 0.3}, None, None, {}),
    "causal": ({"causal": True}, "key <= position", None, {}),
    "window": (
        {"window": (5, 2)},
        "position - key <= 5 && key - position <= 2",
        None,
        {},
    ),
    "window on one side": ({"window": (None, 3)}, "key - position <= 3", None, {}),
    "causal and window": (
        {"causal": True, "window": (9, -1)},
        "key <= position && position - key <= 9",
        None,
        {},
    ),
    "softcap": ({"softcap": 1.5}, None, "1.5 * tanh(score / 1.5)", {}),
    "alibi": (
        {"alibi": SLOPES},
        None,
        "score - w[head] * abs(to_float(position - key))",
        {"w": SLOPES},
    ),
    "alibi of each sequence": (
        {"alibi": SLOPES2},
        None,
        "score - w[batch, head] * abs(to_float(position - key))",
        {"w": SLOPES2},
    ),
    "bias": ({"bias": BIAS4}, None, "score + w[batch, head, query, key]", {"w": BIAS4}),
    "bias of all heads": ({"bias": BIAS2}, None, "score + w[query, key]", {"w": BIAS2}),
    "bias in half": (
        {"bias": BIAS4.astype(np.float16)},
        None,
        "score + w[batch, head, query, key]",
        {"w": BIAS4.astype(np.float16).astype(np.float32)},
    ),
    "mask as text": ({"mask": "(query + key) % 3 != 0"}, "(query + key) % 3 != 0", None, {}),
    "mask as an array": (
        {"mask": ALLOWED},
        "w[batch, head, query, key] != 0",
        None,
        {"w": ALLOWED.astype(np.uint8)},
    ),
    "mask of blocks": (
        {"mask": attn.block_mask(BLOCKS, 8, 4)},
        "position >= 0 && w[position / 8, key / 4] != 0",
        None,
        {"w": BLOCKS},
    ),
    "formula": (
        {"score": attn.Formula("score * scales[head]", scales=SLOPES)},
        None,
        "score * w[head]",
        {"w": SLOPES},
    ),
    "order of changes": (
        {"score": "score * 2.0", "softcap": 2.0, "bias": BIAS2},
        None,
        "(2.0 * tanh(score / 2.0) + w[query, key]) * 2.0",
        {"w": BIAS2},
    ),
    "sink": ({"sink": SINK}, None, None, {}),
    "dropout": ({"dropout": 0.25, "rng": (3, 9)}, None, None, {}),
}


def expected(keywords, mask, score, buffers):
    problem = Problem(
        scale=keywords.get("scale"),
        mask=parse(mask) if mask else None,
        score=parse(score) if score else None,
        sink=keywords.get("sink"),
        dropout=(0.25, 3, 9) if "dropout" in keywords else None,
        buffers=buffers,
    )
    with np.errstate(all="ignore"):
        found = [
            forward(Exact, *(x[b].transpose(1, 0, 2) for x in (Q, K, V)), problem, b)
            for b in range(B)
        ]
    return np.stack([f["o"].transpose(1, 0, 2) for f in found]), np.stack([f["lse"] for f in found])


@pytest.mark.parametrize("name", CASES)
def test_keyword(name):
    keywords, *formulas = CASES[name]
    o, lse = expected(keywords, *formulas)
    out, sums = np.full(o.shape, np.nan, np.float32), np.full(lse.shape, np.nan, np.float32)
    assert attn.attention(Q, K, V, out=out, lse=sums, **keywords) is out
    np.testing.assert_allclose(out, o, rtol=0, atol=2e-6)
    np.testing.assert_allclose(sums, lse, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["plain", "causal", "bias", "mask as an array", "dropout"])
def test_heads_first(name):
    keywords, *formulas = CASES[name]
    o, lse = expected(keywords, *formulas)
    q, k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (Q, K, V))
    out, sums = attn.attention(q, k, v, layout="bhsd", return_lse=True, **keywords)
    assert out.shape == (B, H, N, D)
    np.testing.assert_allclose(out.transpose(0, 2, 1, 3), o, rtol=0, atol=2e-6)
    np.testing.assert_allclose(sums, lse, rtol=0, atol=2e-6)


@pytest.mark.parametrize("integers", [np.int32, np.int64])
def test_packed_is_each_sequence(integers):
    rows = np.array([0, 12, N], integers)
    keys = np.array([0, 30, M], integers)
    q, k, v = Q[0], K[0], V[0]
    out, lse = attn.attention(
        q, k, v, causal=True, cu_seqlens_q=rows, cu_seqlens_k=keys, layout="thd", return_lse=True
    )
    assert lse.shape == (H, N)
    for i in range(2):
        one = (x[None, r[i] : r[i + 1]] for x, r in ((q, rows), (k, keys), (v, keys)))
        alone, sums = attn.attention(*one, causal=True, return_lse=True)
        np.testing.assert_array_equal(out[rows[i] : rows[i + 1]], alone[0])
        np.testing.assert_array_equal(lse[:, rows[i] : rows[i + 1]], sums[0])


@pytest.mark.parametrize("integers", [np.int32, np.int64])
def test_pages_are_the_keys(integers):
    table = np.array([[2, 0, 5], [1, 3, 4]], integers)
    used = np.array([M - 7, M], integers)
    size = 16
    pages = {name: np.full((6, size, HK, D), np.nan, np.float32) for name in "kv"}
    for name, x in (("k", K), ("v", V)):
        for b in range(B):
            for j in range(used[b]):
                pages[name][table[b, j // size], j % size] = x[b, j]
    paged = attn.attention(Q, pages["k"], pages["v"], page_table=table, seqused_k=used, causal=True)
    np.testing.assert_array_equal(paged, attn.attention(Q, K, V, seqused_k=used, causal=True))


@pytest.mark.parametrize("heads", [1, HK])
def test_lists_name_the_keys(heads):
    rng = np.random.default_rng(5)
    lists = rng.integers(-3, M + 3, (B, heads, N, 21), dtype=np.int32 if heads == 1 else np.int64)
    out, lse = attn.attention(Q, K, V, key_list=lists, return_lse=True)
    d_out = rng.standard_normal(out.shape).astype(np.float32)
    gradients = [np.zeros(x.shape) for x in (Q, K, V)]
    for b, h, i in np.ndindex(B, H, N):
        head = h // (H // HK)
        keys = lists[b, head % heads, i]
        keys = keys[(keys >= 0) & (keys < M)]
        s = K[b, keys, head].astype(np.float64) @ Q[b, i, h] / np.sqrt(D)
        weights = np.exp(s - s.max())
        row = weights @ V[b, keys, head] / weights.sum()
        np.testing.assert_allclose(out[b, i, h], row, rtol=0, atol=1e-5)
        np.testing.assert_allclose(lse[b, h, i], s.max() + np.log(weights.sum()), atol=1e-5)
        p = weights / weights.sum()
        # A key may stand twice.
        d_s = p * ((V[b, keys, head] - row) @ d_out[b, i, h]) / np.sqrt(D)
        gradients[0][b, i, h] = d_s @ K[b, keys, head]
        np.add.at(gradients[1][b, :, head], keys, np.outer(d_s, Q[b, i, h]))
        np.add.at(gradients[2][b, :, head], keys, np.outer(p, d_out[b, i, h]))
    own = attn.attention_backward(d_out, Q, K, V, out, lse, key_list=lists)
    for name, expected in zip("qkv", gradients, strict=True):
        np.testing.assert_allclose(own[name], expected, rtol=0, atol=1e-4)


def test_a_prefix_comes_before_the_keys_of_all():
    rng = np.random.default_rng(6)
    prefix_k, prefix_v = rng.standard_normal((2, 70, HK, D)).astype(np.float32)
    rows = rng.random((N, 70 + M)) < 0.5
    for options in ({}, {"causal": True}, {"window": (40, 0)}, {"mask": rows}):
        out, lse = attn.attention(
            Q, K, V, prefix_k=prefix_k, prefix_v=prefix_v, return_lse=True, **options
        )
        k, v = (
            np.concatenate([np.broadcast_to(x, (B, *x.shape)), y], 1)
            for x, y in ((prefix_k, K), (prefix_v, V))
        )
        o, sums = attn.attention(Q, k, v, return_lse=True, **options)
        np.testing.assert_allclose(out, o, rtol=0, atol=2e-6)
        np.testing.assert_allclose(lse, sums, rtol=1e-6, atol=2e-6)
    with pytest.raises(attn.InvalidArgument, match="mask is"):  # it lacks the prefix's columns
        attn.attention(Q, K, V, prefix_k=prefix_k, prefix_v=prefix_v, mask=rows[:, 70:])
    # Another length needs another plan.
    out = attn.attention(Q, K, V, prefix_k=prefix_k[:9], prefix_v=prefix_v[:9])
    o = attn.attention(Q, np.concatenate([k[:, :9], K], 1), np.concatenate([v[:, :9], V], 1))
    np.testing.assert_allclose(out, o, rtol=0, atol=2e-6)
    with pytest.raises(attn.Unsupported, match="seqlen_prefix is 70"):
        attn.attention_backward(out, Q, K, V, out, lse, prefix_k=prefix_k, prefix_v=prefix_v)


@pytest.mark.parametrize("integers", [np.int32, np.int64])
def test_a_prefix_may_lie_in_pages(integers):
    rng = np.random.default_rng(7)
    pages_k, pages_v = rng.standard_normal((2, 9, 16, HK, D)).astype(np.float32)
    table = np.array([[4, 0], [2, 8]], integers)[:B]
    used = np.array([20, 32], integers)[:B]
    prefix = np.array([7, 1, 5], integers)
    out = attn.attention(
        Q, pages_k, pages_v, page_table=table, seqused_k=used, prefix_page_table=prefix,
        seqlen_prefix=43, causal=True,
    )  # fmt: skip
    for b in range(B):
        keys = [
            np.concatenate([x[prefix].reshape(-1, HK, D)[:43], x[table[b]].reshape(-1, HK, D)])
            for x in (pages_k, pages_v)
        ]
        k, v = (x[None, : 43 + used[b]] for x in keys)
        one = attn.attention(Q[b : b + 1], k, v, causal=True)
        np.testing.assert_allclose(out[b], one[0], rtol=0, atol=2e-6)
    with pytest.raises(attn.InvalidArgument, match="without seqlen_prefix"):
        attn.attention(Q, pages_k, pages_v, page_table=table, prefix_page_table=prefix)
    with pytest.raises(attn.InvalidArgument, match="prefix_page_table is not given"):
        attn.attention(Q, K, V, seqlen_prefix=43)
    of_pages = {"prefix_page_table": prefix, "seqlen_prefix": 43}
    with pytest.raises(attn.InvalidArgument, match="without page_table"):
        attn.attention(Q, K, V, **of_pages)
    with pytest.raises(attn.InvalidArgument, match="prefix_v is given beside"):
        attn.attention(Q, pages_k, pages_v, page_table=table, prefix_v=pages_v[0], **of_pages)


def test_merge():
    parts = [
        attn.attention(Q, K[:, s], V[:, s], return_lse=True) for s in (slice(20), slice(20, M))
    ]
    out, lse = attn.merge(parts)
    o, sums = expected({}, None, None, {})
    np.testing.assert_allclose(out, o, rtol=0, atol=2e-6)
    np.testing.assert_allclose(lse, sums, rtol=0, atol=2e-6)


def test_gradients_have_the_names_asked_for():
    keywords = {"alibi": SLOPES, "bias": BIAS4, "sink": SINK}
    out, lse = attn.attention(Q, K, V, return_lse=True, **keywords)
    names = ("sink", "k", "alibi", "bias")
    found = attn.attention_backward(out, Q, K, V, out, lse, gradients=names, **keywords)
    assert {name: x.shape for name, x in found.items()} == {
        "sink": SINK.shape,
        "k": K.shape,
        "alibi": SLOPES.shape,
        "bias": BIAS4.shape,
    }


@pytest.mark.parametrize("slopes", [SLOPES, SLOPES2])
def test_gradient_of_slopes(slopes):
    """By differences of the loss in fp64."""
    wide = [x.astype(np.float64) for x in (Q, K, V)]
    d_out = RANDOM.standard_normal(Q.shape)
    out, lse = attn.attention(*wide, alibi=slopes, return_lse=True)
    found = attn.attention_backward(d_out, *wide, out, lse, gradients=["alibi"], alibi=slopes)

    def loss(step):
        moved = slopes.copy()
        moved.flat[1] += step
        return np.sum(d_out * attn.attention(*wide, alibi=moved)), moved.flat[1]

    (above, high), (below, low) = loss(1e-2), loss(-1e-2)
    slope = (above - below) / (float(high) - float(low))
    np.testing.assert_allclose(found["alibi"].flat[1], slope, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("planned", [False, True])
def test_gradient_through_lse(planned):
    """A loss that is the sum of LSE alone has dV = 0, and dQ by differences of the loss in fp64."""
    wide = [x.astype(np.float64) for x in (Q, K, V)]
    out, lse = attn.attention(*wide, return_lse=True)
    nothing, weights = np.zeros_like(out), RANDOM.standard_normal(lse.shape)
    call = attn.plan(*wide, backward=True).backward if planned else attn.attention_backward
    found = call(nothing, *wide, out, lse, d_lse=weights)

    def loss(step):
        q = wide[0].copy()
        q[1, 5, 2, 7] += step
        return np.sum(weights * attn.attention(q, *wide[1:], return_lse=True)[1])

    assert np.all(found["v"] == 0)
    slope = (loss(1e-4) - loss(-1e-4)) / 2e-4
    np.testing.assert_allclose(found["q"][1, 5, 2, 7], slope, rtol=1e-6)


def test_plan():
    plan = attn.plan(Q, K, V, causal=True, backward=True)
    out, lse = plan.forward(Q, K, V, return_lse=True)
    np.testing.assert_array_equal(out, attn.attention(Q, K, V, causal=True))
    found = plan.backward(out, Q, K, V, out, lse)
    again = attn.attention_backward(out, Q, K, V, out, lse, causal=True)
    for name in "qkv":
        np.testing.assert_array_equal(found[name], again[name])
    assert "causal" in plan.problem
    assert "flash_attention_2" in str(plan)
    assert plan.workspace_bytes > 0
    with pytest.raises(attn.InvalidArgument, match="seqlen_q|q is"):
        plan.forward(Q[:, :5], K, V)


@pytest.mark.parametrize("algorithm", ["standard", "flash_attention", "flash_decoding"])
def test_algorithms_and_threads_agree(algorithm):
    expected_out, _ = expected({}, None, None, {})
    for threads in (1, 2):
        out = attn.attention(Q, K, V, algorithm=algorithm, threads=threads)
        np.testing.assert_allclose(out, expected_out, rtol=0, atol=2e-6)


def test_info():
    info = attn.info()
    assert info["version"] == attn.__version__
    assert info["instruction_sets"]["portable"] == "available"
    assert info["cuda"]["available"] or info["cuda"]["reason"]


def test_alibi_slopes():
    np.testing.assert_allclose(attn.alibi_slopes(8), 2.0 ** -np.arange(1, 9))


def test_deterministic_changes_nothing_on_the_cpu():
    """The CPU keeps the promise anyway; tests/test_gpu.py has the rest."""
    q = normal(1, 5, 2, 8)
    assert np.array_equal(attn.attention(q, q, q, deterministic=True), attn.attention(q, q, q))
    out, lse = attn.attention(q, q, q, return_lse=True)
    plain, asked = (
        attn.attention_backward(out, q, q, q, out, lse, deterministic=x) for x in (False, True)
    )
    assert all(np.array_equal(plain[name], asked[name]) for name in plain)


def test_numbers_of_numpy():
    wanted = attn.attention(Q, K, V, dropout=0.25, rng=(3, 0), window=(5, None), softcap=2.0)
    for rng in (np.int64(3), np.uint8(3), np.array(3), (np.int32(3), np.uint64(0))):
        options = {"window": np.array([5, 2**40]), "softcap": np.array(2.0), "rng": rng}
        found = attn.attention(Q, K, V, dropout=np.float32(0.25), **options)
        np.testing.assert_array_equal(found, wanted)
    none = {"dropout": np.float32(0), "softcap": np.float32(0)}
    np.testing.assert_array_equal(attn.attention(Q, K, V, **none), attn.attention(Q, K, V))


def test_arrays_that_a_formula_names_but_does_not_need():
    """`f[key] >= 0 || true` was folded to true, and f said to be an array of no formula."""
    f = normal(M)
    mask = attn.Formula("f[key] >= 0.0 || true", f=f)
    score = attn.Formula("score + select(false, f[key], 0.0)", f=f)
    out, lse = attn.attention(Q, K, V, mask=mask, score=score, return_lse=True)
    assert np.array_equal(out, attn.attention(Q, K, V, score="score + 0.0 * 0.0"))
    gradients = attn.attention_backward(
        out, Q, K, V, out, lse, mask=mask, score=score, gradients=("q", "f")
    )
    assert np.array_equal(gradients["f"], np.zeros(M, np.float32))
    with pytest.raises(attn.Error, match="g"):
        attn.attention(Q, K, V, mask=attn.Formula("f[key] >= 0.0 || true", f=f, g=f))


@pytest.mark.parametrize(
    ("name", "keywords", "index"),
    [("slopes", {"alibi": SLOPES}, "head"), ("bias", {"bias": BIAS2}, "query, key")],
)
def test_names_of_keywords_are_not_those_of_another_array(name, keywords, index):
    """The array of a formula took the place of the keyword's: a wrong result without an error."""
    (own,) = keywords.values()
    text = f"score + {name}[{index}]"
    with pytest.raises(attn.InvalidArgument, match=f"buffer '{name}'.*one array a name"):
        attn.attention(Q, K, V, score=attn.Formula(text, **{name: own + 1}), **keywords)
    shared = attn.attention(Q, K, V, score=attn.Formula(text, **{name: own}), **keywords)
    other = attn.Formula(text.replace(name, "w"), w=own)
    assert np.array_equal(shared, attn.attention(Q, K, V, score=other, **keywords))


def test_a_buffer_is_not_named_as_a_tensor_of_the_call():
    score = attn.Formula("score + sink[head]", sink=SINK)
    with pytest.raises(attn.InvalidArgument, match="buffer 'sink' of a formula"):
        attn.attention(Q, K, V, sink=SINK, score=score)


def test_an_array_in_mask_and_score_is_one():
    f, n = normal(M), 3
    mask = attn.Formula("f[key] > 0.0 || key < n", f=f, n=n)
    out = attn.attention(Q, K, V, mask=mask, score=attn.Formula("score + n * f[key]", f=f, n=n))
    mask = attn.Formula("f[key] > 0.0 || key < 3", f=f)
    assert np.allclose(
        out, attn.attention(Q, K, V, mask=mask, score=attn.Formula("score + 3.0 * g[key]", g=f))
    )
    with pytest.raises(attn.InvalidArgument, match="buffer 'f'.*one array a name"):
        attn.attention(Q, K, V, mask=mask, score=attn.Formula("score + f[key]", f=f + 1))
