"""return_max_logit: the largest score of each head."""

from __future__ import annotations

import numpy as np
import pytest

import attn

HEADS, DIM = 4, 8


def arrays(seed, rows_q, rows_k, heads_k=2):
    random = np.random.default_rng(seed)
    q = random.standard_normal((*rows_q, HEADS, DIM), np.float32)
    k = random.standard_normal((*rows_k, heads_k, DIM), np.float32)
    return q, k, random.standard_normal((*rows_k, heads_k, DIM), np.float32)


def scores(q, k):
    """[heads, queries, keys] of one sequence, in float64."""
    k = np.repeat(k.astype(np.float64), HEADS // k.shape[1], axis=1)
    return np.einsum("ihd,jhd->hij", q.astype(np.float64), k) / np.sqrt(DIM)


def causal(queries, keys):
    return np.arange(keys) <= np.arange(queries)[:, None] + keys - queries


def close(got, want):
    assert got.dtype == np.float32
    assert got.shape == (HEADS,)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_dense_batch(backend):
    q, k, v = arrays(1, (2, 5), (2, 7))
    changed = np.stack([3 * np.tanh(scores(q[b], k[b]) / 3) for b in range(2)])
    want = np.where(causal(5, 7), changed, -np.inf).max(axis=(0, 2, 3))
    options = {"causal": True, "softcap": 3.0, "backend": backend}
    out, max_logit = attn.attention(q, k, v, return_max_logit=True, **options)
    close(max_logit, want)
    again, lse, same = attn.attention(q, k, v, return_lse=True, return_max_logit=True, **options)
    np.testing.assert_array_equal(again, out)
    np.testing.assert_array_equal(same, max_logit)
    assert lse.shape == (2, HEADS, 5)
    planned = attn.plan(q, k, v, **options)
    np.testing.assert_array_equal(planned(q, k, v, return_max_logit=True)[1], max_logit)


def test_packed_and_heads_first():
    q, k, v = arrays(2, (9,), (11,))
    starts_q, starts_k = np.array([0, 4, 9], np.int32), np.array([0, 8, 11], np.int32)
    want = np.maximum(scores(q[:4], k[:8]).max(axis=(1, 2)), scores(q[4:], k[8:]).max(axis=(1, 2)))
    packed = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    close(attn.attention(q, k, v, return_max_logit=True, **packed)[1], want)
    one = [x[None].transpose(0, 2, 1, 3) for x in (q, k, v)]
    got = attn.attention(*one, layout="bhsd", return_max_logit=True)[1]
    close(got, scores(q, k).max(axis=(1, 2)))


def test_sink_and_hidden_keys_are_no_part_of_it():
    q, k, v = arrays(3, (1, 5), (1, 7))
    sink = np.full(HEADS, 100, np.float32)
    got = attn.attention(q, k, v, mask="head != 1", sink=sink, return_max_logit=True)[1]
    want = scores(q[0], k[0]).max(axis=(1, 2))
    want[1] = -np.inf
    close(got, want)


def test_float64():
    q, k, v = (x.astype(np.float64) for x in arrays(4, (1, 5), (1, 7)))
    got = attn.attention(q, k, v, return_max_logit=True)[1]
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, scores(q[0], k[0]).max(axis=(1, 2)), rtol=1e-14)


def test_torch_records_no_gradient_of_it():
    torch = pytest.importorskip("torch")
    import attn.torch

    q, k, v = map(torch.from_numpy, arrays(5, (1, 5), (1, 7)))
    want = attn.attention(q.numpy(), k.numpy(), v.numpy(), causal=True, return_max_logit=True)
    close(attn.torch.attention(q, k, v, causal=True, return_max_logit=True)[1].numpy(), want[1])
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    plain = [x.clone().requires_grad_() for x in (q, k, v)]
    out, lse, max_logit = attn.torch.attention(
        *given, causal=True, return_lse=True, return_max_logit=True
    )
    assert out.requires_grad
    assert lse.requires_grad
    assert not max_logit.requires_grad
    close(max_logit.numpy(), want[1])
    out.sum().backward()
    attn.torch.attention(*plain, causal=True).sum().backward()
    for mine, theirs in zip(given, plain, strict=True):
        assert torch.equal(mine.grad, theirs.grad)


@pytest.mark.parametrize("given", [False, True])
def test_torch_compiled(given):
    torch = pytest.importorskip("torch")
    import attn.torch

    def attend(q, k, v, slopes):
        out, lse, max_logit = attn.torch.attention(
            q, k, v, score=lambda s: s.score - slopes[s.head] * (s.position - s.key) / 2,
            causal=True, return_lse=True, return_max_logit=True,
        )  # fmt: skip
        return out, lse, max_logit + 0

    attend_compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    tensors = [torch.from_numpy(x).requires_grad_(given) for x in arrays(6, (2, 5), (2, 7))]
    slopes = torch.linspace(0.5, 2, HEADS)
    want = attend(*tensors, slopes)
    got = attend_compiled(*tensors, slopes)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.requires_grad == theirs.requires_grad
    close(got[2].numpy(), want[2].numpy())
    if given:
        mine = torch.autograd.grad(got[0].sum() + got[1].square().sum(), tensors)
        theirs = torch.autograd.grad(want[0].sum() + want[1].square().sum(), tensors)
        for x, y in zip(mine, theirs, strict=True):
            assert y.abs().max() > 0
            assert torch.equal(x, y)


def test_torch_operator():
    torch = pytest.importorskip("torch")
    import attn.torch
    from attn.torch import ops

    layouts = {None: (2, 5, HEADS, DIM), "bhsd": (2, HEADS, 5, DIM)}
    for layout, shape in layouts.items():
        for dtype in (torch.float32, torch.float64):
            q = torch.randn(shape, dtype=dtype)
            call = ops.describe((), "", "", True, layout, "cpu", "auto", False, False, "", "")
            torch.library.opcheck(torch.ops.attn.forward_max_logit.default, (q, q, q, call))
            on_meta = attn.torch.attention(
                *[q.to("meta")] * 3, layout=layout, return_max_logit=True
            )[1]
            assert on_meta.shape == (HEADS,)
            assert on_meta.dtype == dtype


def test_torch_vmap_and_grad():
    torch = pytest.importorskip("torch")
    import attn.torch

    q, k, v = map(torch.from_numpy, arrays(6, (3, 5), (3, 7)))

    def largest(q, k, v):
        return attn.torch.attention(q[None], k[None], v[None], return_max_logit=True)[1]

    got = torch.func.vmap(largest)(q, k, v)
    assert got.shape == (3, HEADS)
    for i in range(3):
        close(got[i].numpy(), largest(q[i], k[i], v[i]).numpy())

    def loss(q, k, v, asked=True):
        results = attn.torch.attention(q, k, v, return_lse=True, return_max_logit=asked)
        return results[0].sum() + results[1].square().sum(), results[2:]

    got, (max_logit,) = torch.func.grad(loss, has_aux=True)(q, k, v)
    assert torch.equal(got, torch.func.grad(lambda *a: loss(*a, asked=False)[0])(q, k, v))
    close(max_logit.numpy(), attn.attention(q, k, v, return_max_logit=True)[1].numpy())


@pytest.mark.parametrize("layout", [None, "bhsd"])
def test_torch_nested(layout):
    torch = pytest.importorskip("torch")
    import attn.torch

    lengths = (4, 9, 2)
    parts = [[torch.from_numpy(x) for x in arrays(n, (n,), (n,), HEADS)] for n in lengths]
    q, k, v = (
        torch.nested.nested_tensor(list(x), layout=torch.jagged) for x in zip(*parts, strict=True)
    )
    if layout:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    options = {"layout": layout, "causal": True}
    got = attn.torch.attention(q, k, v, return_lse=True, return_max_logit=True, **options)
    want = [
        attn.torch.attention(*(x[None] for x in part), causal=True, return_max_logit=True)[1]
        for part in parts
    ]
    close(got[2].numpy(), torch.stack(want).amax(0).numpy())
    out, lse = attn.torch.attention(q, k, v, return_lse=True, **options)
    assert torch.equal(got[0].values(), out.values())
    assert torch.equal(got[1].values(), lse.values())
    out, max_logit = attn.torch.attention(q, k, v, return_max_logit=True, **options)
    assert torch.equal(max_logit, got[2])
    assert torch.equal(out.values(), got[0].values())


def test_jax():
    jax = pytest.importorskip("jax")
    import attn.jax

    q, k, v = arrays(7, (3, 5), (3, 7))
    options = {"causal": True, "softcap": 3.0}
    want = attn.attention(q, k, v, return_lse=True, return_max_logit=True, **options)

    def attend(q, k, v, **asked):
        return attn.jax.attention(q, k, v, **asked, **options)

    compiled = jax.jit(lambda *given: attend(*given, return_lse=True, return_max_logit=True))
    for mine, theirs in zip(compiled(q, k, v), want, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    out, max_logit = attend(q, k, v, return_max_logit=True)
    np.testing.assert_array_equal(out, want[0])
    close(max_logit, want[2])
    assert len(attend(q, k, v, return_lse=True)) == 2

    heads_first = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    got = attn.jax.attention(*heads_first, layout="bhsd", return_max_logit=True, **options)[1]
    close(got, want[2])

    each = jax.vmap(lambda *given: attend(*(x[None] for x in given), return_max_logit=True)[1])
    got = each(q, k, v)
    assert got.shape == (3, HEADS)
    for i in range(3):
        one = [x[i : i + 1] for x in (q, k, v)]
        close(got[i], attn.attention(*one, return_max_logit=True, **options)[1])


def test_jax_gives_no_gradient_of_it():
    jax = pytest.importorskip("jax")
    import attn.jax

    def loss_of(asked, weight):
        def of_given(*given):
            out, lse, *others = attn.jax.attention(*given, return_lse=True, return_max_logit=asked)
            return out.sum() + (lse**2).sum() + weight * sum(x.sum() for x in others)

        return of_given

    given = arrays(8, (2, 5), (2, 7))
    want = jax.grad(loss_of(False, 0.0), (0, 1, 2))(*given)
    got = jax.grad(loss_of(True, 3.0), (0, 1, 2))(*given)
    for mine, theirs in zip(got, want, strict=True):
        assert np.abs(theirs).max() > 0
        np.testing.assert_array_equal(mine, theirs)
