"""Calls alike share a plan; what differs between them counts all the same."""

import itertools

import numpy as np
import pytest

import attn
from attn import _attn


def arrays(*shape, seed=5):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape, np.float32) for _ in range(3)]


def made_by(call):
    before = _attn.plans_made()
    call()
    return _attn.plans_made() - before


def test_calls_alike_plan_once():
    q, k, v = arrays(1, 19, 2, 24)
    slopes = np.array([0.5, 0.25], np.float32)

    def call(q=q, k=k, v=v, seed=1):
        out, lse = attn.attention(
            q, k, v, causal=True, alibi=slopes, dropout=0.2, rng=seed, return_lse=True
        )
        attn.attention_backward(
            q, q, k, v, out, lse, causal=True, alibi=slopes, dropout=0.2, rng=seed
        )

    assert made_by(call) == 2  # forward and backward
    assert made_by(call) == 0
    assert made_by(lambda: call(seed=2)) == 0
    strided = [np.stack([t, t], axis=2)[:, :, 0] for t in (q, k, v)]
    assert made_by(lambda: call(*strided)) == 0


@pytest.mark.parametrize("change", [{"causal": True}, {"softcap": 5.0}, {"backend": "reference"}])
def test_what_differs_is_planned(change):
    q, k, v = arrays(1, 21, 2, 24)
    attn.attention(q, k, v)
    assert made_by(lambda: attn.attention(q, k, v, **change)) == 1
    assert made_by(lambda: attn.attention(q, k[:, :9], v[:, :9], **change)) == 1


def test_seeds_of_dropout_differ():
    q, k, v = arrays(1, 16, 2, 8)
    v = np.broadcast_to(np.eye(16, dtype=np.float32)[None, :, None], (1, 16, 2, 16))
    for seed in (3, 4, (3, 1), 3):
        out = attn.attention(q, k, v, dropout=0.4, rng=seed)  # P, as v is the identity
        kept = attn.dropout_mask(np.zeros((1, 2, 16, 16), bool), 0.4, seed)
        np.testing.assert_array_equal(out.transpose(0, 2, 1, 3) != 0, kept)


def test_lengths_are_read_anew():
    q, k, v = arrays(12, 2, 8)
    for places in ([0, 1, 12], [0, 6, 12], [0, 12, 12], [0, 3, 9]):
        cu = np.array(places, np.int32)
        out = attn.attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True)
        for first, last in itertools.pairwise(places):
            alone = [t[None, first:last] for t in (q, k, v)]
            if last > first:
                found = attn.attention(*alone, causal=True)[0]
                np.testing.assert_allclose(out[first:last], found, rtol=1e-5, atol=1e-6)


def test_packed_batches_of_other_totals_share_a_plan():
    def packed(total, places):
        q, k, v = arrays(total, 3, 12)
        cu = np.array(places, np.int32)
        return q, k, v, {"cu_seqlens_q": cu, "cu_seqlens_k": cu}

    for number, places in enumerate(([0, 4, 16], [0, 10, 23], [0, 0, 5])):
        q, k, v, cu = packed(places[-1], places)
        out = np.empty_like(q)
        made = made_by(
            lambda q=q, k=k, v=v, out=out, cu=cu: attn.attention(
                q, k, v, out=out, max_seqlen_q=13, max_seqlen_k=13, **cu
            )
        )
        assert made == (number == 0)
        for first, last in itertools.pairwise(places):
            if last > first:
                found = attn.attention(*(t[None, first:last] for t in (q, k, v)))[0]
                np.testing.assert_allclose(out[first:last], found, rtol=1e-5, atol=1e-6)
    q, k, v, cu = packed(9, [0, 4, 16])  # fewer rows than the sequences have
    with pytest.raises(attn.InvalidArgument):
        attn.attention(q, k, v, max_seqlen_q=13, max_seqlen_k=13, **cu)


def test_arguments_are_checked_again():
    q, k, v = arrays(1, 17, 2, 24)
    attn.attention(q, k, v)
    for wrong in (
        (q, k.astype(np.float16), v),
        (q, k, v.astype(np.float16)),
        (q, k, v[:, :5]),
        (q, k[:, :5], v),
        (q[:, :, :1], k, v),
    ):
        with pytest.raises(attn.InvalidArgument):
            attn.attention(*wrong)
    with pytest.raises(attn.InvalidArgument, match="o is"):
        attn.attention(q, k, v, out=np.empty((1, 17, 2, 23), np.float32))


def test_more_problems_than_are_kept():
    for n in (*range(1, 300), 7, 150, 299):
        q, k, v = arrays(1, n, 1, 4, seed=n)
        out = attn.attention(q, k, v)[0, :, 0]
        p = np.exp(q[0, :, 0] @ k[0, :, 0].T / 2)
        np.testing.assert_allclose(
            out, p / p.sum(1, keepdims=True) @ v[0, :, 0], rtol=2e-4, atol=2e-5
        )


def test_a_plan_takes_other_arrays_numbers_and_seeds():
    q, k, v = arrays(1, 19, 2, 8)
    factor = 0.5
    slopes = np.array([0.5, 0.25], np.float32)

    def score(s):
        return s.score * factor

    plan = attn.compile(q, k, v, backward=True, score=score, alibi=slopes, dropout=0.3, rng=1)
    for factor, seed in ((0.5, 1), (2.0, 1), (2.0, (7, 8))):
        changed = {"score": score, "alibi": slopes * factor, "rng": seed}
        out, lse = plan(q, k, v, return_lse=True, **changed)
        expected, _ = attn.attention(q, k, v, return_lse=True, dropout=0.3, **changed)
        np.testing.assert_array_equal(out, expected)
        found = plan.backward(q, q, k, v, out, lse, **changed)
        expected = attn.attention_backward(q, q, k, v, out, lse, dropout=0.3, **changed)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize(
    "change", [{"causal": True}, {"softcap": 2.0}, {"mask": "key < 3"}, {"sink": np.ones(2, "f4")}]
)
def test_a_plan_refuses_another_problem(change):
    q, k, v = arrays(1, 19, 2, 8)
    plan = attn.compile(q, k, v)
    with pytest.raises(attn.InvalidArgument, match="the same problem"):
        plan(q, k, v, **change)
