"""flash_attn_with_kvcache against its documentation in fp64, on the CPU."""

from __future__ import annotations

import itertools
import random
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import attn  # noqa: E402
import attn.flash_attn as fa2  # noqa: E402
from attn.flash_attn import flash_attn_3 as fa3  # noqa: E402
from attn.flash_attn import kvcache  # noqa: E402
from flash_reference import assert_close, batched, stacked  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROOM = 24
PAGE = 8


def turned(x, angles, interleaved):
    """x [n, H, D] with pairs of dimensions turned by angles [n, rotary_dim / 2], in fp64."""
    x = x.double().clone()
    half = angles.shape[1]
    first = torch.arange(half) * 2 if interleaved else torch.arange(half)
    second = first + (1 if interleaved else half)
    pair = torch.complex(x[..., first], x[..., second])
    pair = pair * torch.polar(torch.ones_like(angles), angles)[:, None]
    x[..., first], x[..., second] = pair.real, pair.imag
    return x


class Cache:
    """A cache of `batch` sequences: `k` and `v` as the functions take them, and how to read one."""

    def __init__(self, kind, batch, heads, d):
        self.table = self.batch_idx = None
        if kind == "pages":
            pages = torch.randperm(batch * ROOM // PAGE + 2)[: batch * ROOM // PAGE]
            self.table = pages.view(batch, -1).int()
            shape = (len(pages) + 2, PAGE, heads, d)
        elif kind == "indices":
            self.batch_idx = torch.randperm(batch + 2)[:batch].int()
            shape = (batch + 2, ROOM, heads, d)
        else:
            shape = (batch + (kind == "larger"), ROOM, heads, d)
        self.k, self.v = torch.randn(shape), torch.randn(shape)

    def rows(self, cache, b):
        """[ROOM, heads, d] of sequence b."""
        if self.table is not None:
            return cache[self.table[b].long()].flatten(0, 1)
        return cache[b if self.batch_idx is None else self.batch_idx[b].item()]


def cases():
    for seed, (kind, rotary) in enumerate(
        itertools.product(("plain", "larger", "indices", "pages"), (0, 16, 32))
    ):
        for more in range(2):
            yield kind, rotary, 2 * seed + more


@pytest.mark.parametrize(("kind", "rotary", "seed"), list(cases()))
def test_cache(kind, rotary, seed):
    torch.manual_seed(seed)
    choose = random.Random(seed)
    batch, heads, heads_k, d = 2, 4, choose.choice([1, 2, 4]), 32
    n = choose.choice([1, 3])
    new = choose.choice([n, 1, 5]) if rotary or choose.random() < 0.6 else 0
    causal = choose.random() < 0.5
    window = choose.choice([(-1, -1), (6, 1)])
    interleaved = choose.random() < 0.5
    slopes = torch.rand(batch, heads) if choose.random() < 0.3 else None
    leftpad = torch.tensor([0, 3]) if choose.random() < 0.4 else None
    used = [choose.randint(4, ROOM - 5) for _ in range(batch)]
    if choose.random() < 0.2:
        used = [used[0]] * batch
    cache = Cache(kind, batch, heads_k, d)
    q = torch.randn(batch, n, heads, d)
    k, v = (torch.randn(batch, new, heads_k, d) if new else None for _ in range(2))
    angles = torch.rand(ROOM + 2, rotary // 2).double() * 6
    before = cache.k.clone(), cache.v.clone()

    lengths = used[0] if used[0] == used[1] else torch.tensor(used).int()
    options = {} if not rotary else {
        "rotary_cos": angles.cos().float(),
        "rotary_sin": angles.sin().float(),
        "rotary_interleaved": interleaved,
    }  # fmt: skip
    out, lse = fa2.flash_attn_with_kvcache(
        q, cache.k, cache.v, k, v, cache_seqlens=lengths, cache_batch_idx=cache.batch_idx,
        cache_leftpad=None if leftpad is None else leftpad.int(), block_table=cache.table,
        causal=causal, window_size=window, alibi_slopes=slopes, return_softmax_lse=True, **options,
    )  # fmt: skip

    is_local = causal or window != (-1, -1)
    for b in range(batch):
        start, total = used[b], used[b] + new
        keys = [cache.rows(x, b)[:total].double() for x in before]
        at_b = q[b].double()
        if rotary:
            places = torch.arange(n) if is_local else torch.zeros(n, dtype=torch.long)
            at_b = turned(q[b], angles[start + places], interleaved)
        if new:
            added = turned(k[b], angles[start:total], interleaved) if rotary else k[b].double()
            keys[0] = torch.cat((keys[0][:start], added))
            keys[1] = torch.cat((keys[1][:start], v[b].double()))
        exact, exact_lse = stacked(
            batched(
                [at_b], [keys[0]], [keys[1]], causal=causal, window_size=window,
                slopes=None if slopes is None else slopes[b].double(),
                leftpad=0 if leftpad is None else leftpad[b],
            )
        )  # fmt: skip
        assert_close(out[b : b + 1], exact)
        assert_close(lse[b : b + 1], exact_lse.masked_fill(exact_lse == -torch.inf, torch.inf))
        assert_close(cache.rows(cache.k, b)[:total], keys[0], 1e-6)
        assert torch.equal(cache.rows(cache.v, b)[:total], keys[1].float())
        for now, then in zip((cache.k, cache.v), before, strict=True):  # nothing else is written
            assert torch.equal(cache.rows(now, b)[total:], cache.rows(then, b)[total:])


def test_cache_of_which_all_is_used():
    q, k, v = torch.randn(2, 1, 2, 8), torch.randn(2, 9, 2, 8), torch.randn(2, 9, 2, 8)
    exact, _ = stacked(batched(q.double(), k.double(), v.double()))
    assert_close(fa2.flash_attn_with_kvcache(q, k, v), exact)
    q.requires_grad_()
    assert not fa2.flash_attn_with_kvcache(q, k, v, causal=True).requires_grad


@pytest.mark.parametrize("paged", [False, True])
def test_packed_queries_and_keys(paged):
    torch.manual_seed(3)
    cache = Cache("pages" if paged else "indices", 2, 2, 16)
    used, lengths_q, new = (5, 11), (4, 2), (3, 1)
    q, k, v = torch.randn(6, 4, 16), torch.randn(4, 2, 16), torch.randn(4, 2, 16)
    angles = torch.rand(ROOM, 8).double()
    before = cache.k.clone(), cache.v.clone()
    places = torch.tensor([2, 7]).int()
    cu_q, cu_k = torch.tensor([0, 4, 6]).int(), torch.tensor([0, 3, 4]).int()
    out, lse, *rest = fa3.flash_attn_with_kvcache(
        q, cache.k, cache.v, k, v, rotary_cos=angles.cos().float(),
        rotary_sin=angles.sin().float(), cache_seqlens=torch.tensor(used).int(),
        cache_batch_idx=cache.batch_idx, page_table=cache.table, cu_seqlens_q=cu_q,
        cu_seqlens_k_new=cu_k, max_seqlen_q=4, rotary_seqlens=places, causal=True,
        attention_chunk=6, return_softmax_lse=True,
    )  # fmt: skip
    assert [t.numel() for t in rest] == [0, 0]
    assert lse.shape == (4, 6)
    parts = zip(q.split(lengths_q), k.split(new), v.split(new), strict=True)
    for b, (at, k_new, v_new) in enumerate(parts):
        start = places[b]
        at = turned(at, angles[start : start + len(at)], True)
        k_new = turned(k_new, angles[start : start + len(k_new)], True)
        keys, values = (cache.rows(x, b)[: used[b]].double() for x in before)
        keys, values = torch.cat((keys, k_new)), torch.cat((values, v_new.double()))
        exact, _ = stacked(batched([at], [keys], [values], causal=True, chunk=6))
        assert_close(out[cu_q[b] : cu_q[b + 1]], exact[0])
        assert_close(cache.rows(cache.k, b)[used[b] : used[b] + len(k_new)], k_new, 1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["plain", "indices", "pages"])
def test_chunks_begin_at_the_first_key_that_counts(kind, causal):
    torch.manual_seed(6)
    cache = Cache(kind, 3, 2, 16)
    q = torch.randn(3, 7, 4, 16)
    used, leftpad = torch.tensor([20, 11, 9]), torch.tensor([0, 4, 5])  # of 9, 4 count: q has more
    out, lse, *_ = fa3.flash_attn_with_kvcache(
        q, cache.k, cache.v, cache_seqlens=used.int(), cache_batch_idx=cache.batch_idx,
        cache_leftpad=leftpad.int(), page_table=cache.table, causal=causal, attention_chunk=3,
        return_softmax_lse=True,
    )  # fmt: skip
    for b in range(3):
        # As if the cache held nothing but what counts.
        k, v = (cache.rows(x, b)[leftpad[b] : used[b]].double() for x in (cache.k, cache.v))
        exact, exact_lse = stacked(batched([q[b].double()], [k], [v], causal=causal, chunk=3))
        assert_close(out[b : b + 1], exact)
        assert_close(lse[b : b + 1], exact_lse)


def test_rows_of_a_page_table_and_qv():
    torch.manual_seed(4)
    cache = Cache("pages", 3, 2, 16)
    q, qv = torch.randn(2, 3, 4, 16), torch.randn(2, 3, 4, 16)
    rows = torch.tensor([2, 0]).int()
    out = fa3.flash_attn_with_kvcache(
        q, cache.k, cache.v, qv=qv, cache_seqlens=10, cache_batch_idx=rows, page_table=cache.table
    )
    k, v = ([cache.rows(x, b)[:10].double() for b in rows] for x in (cache.k, cache.v))
    both = torch.cat((q, qv), -1).double()
    keys = [torch.cat(pair, -1) for pair in zip(k, v, strict=True)]
    exact, _ = stacked(batched(both, keys, v))
    assert_close(out, exact)


def test_a_cache_of_latent_attention_is_not_copied():
    """Rows that hold v and then k are K, and V is its first columns."""
    torch.manual_seed(6)
    rows = torch.randn(5, 4, 1, 24)  # pages of 4 rows
    v, k = rows[..., :16], rows[..., 16:]
    q, qv = torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 16)
    table = torch.tensor([[1, 4, 0], [3, 2, 0]]).int()
    given = {"cache_seqlens": torch.tensor([7, 5]).int(), "page_table": table, "causal": True}
    with mock.patch.object(kvcache.attn_torch, "attention", wraps=attn.torch.attention) as call:
        out = fa3.flash_attn_with_kvcache(q, k, v, qv=qv, **given)
    _, keys, values = call.call_args.args
    assert keys.data_ptr() == values.data_ptr() == rows.data_ptr()
    assert keys.shape[-1] == 24
    copied = fa3.flash_attn_with_kvcache(q, k.clone(), v.clone(), qv=qv, **given)
    assert_close(out, copied, 1e-6)


def test_decoding_step_by_step_is_attention():
    torch.manual_seed(5)
    q, k, v = (torch.randn(2, 7, 2, 8) for _ in range(3))
    k_cache, v_cache = torch.full((2, 7, 2, 8), torch.nan), torch.full((2, 7, 2, 8), torch.nan)
    steps = [
        fa2.flash_attn_with_kvcache(
            *(q[:, i : i + 1], k_cache, v_cache, k[:, i : i + 1], v[:, i : i + 1]),
            cache_seqlens=i, causal=True,
        )
        for i in range(7)
    ]  # fmt: skip
    assert_close(torch.cat(steps, 1), fa2.flash_attn_func(q, k, v, causal=True), 1e-6)


def numbers(*values):
    return torch.tensor(values, dtype=torch.int32)


ROTARY = torch.ones(4, 4)
# What would be written to other rows, or broadcast.
HOSTILE = {
    "cache_seqlens has -1; accepted are 0 to": {"cache_seqlens": numbers(3, -1)},
    "cache_seqlens is -1; accepted are int32": {"cache_seqlens": -1},
    "cache_seqlens is 1.5; accepted are": {"cache_seqlens": 1.5},
    r"cache_seqlens is torch.int64 \(2,\)": {"cache_seqlens": torch.tensor([1, 2])},
    r"cache_seqlens is torch.int32 \(3,\); accepted is int32 \(2,\)": {
        "cache_seqlens": numbers(1, 2, 3)
    },
    "cache_batch_idx has 2; accepted are 0 to 1": {"cache_batch_idx": numbers(0, 2)},
    "cache_batch_idx has -1": {"cache_batch_idx": numbers(0, -1)},
    r"cache_batch_idx is torch.int32 \(1,\)": {"cache_batch_idx": numbers(0)},
    r"cache_leftpad is torch.int32 \(3,\)": {"cache_leftpad": numbers(0, 0, 0)},
    "block_table has 2; accepted are 0 to 1, the cache's pages": {
        "block_table": numbers(2, 1)[:, None]
    },
    r"k has shape \(2, 1, 1, 8\); accepted is \(2, seqlen_new, 2, 8\)": {
        "k": torch.ones(2, 1, 1, 8)
    },
    r"k has shape \(1, 1, 2, 8\)": {"k": torch.ones(1, 1, 2, 8)},
    r"v has shape \(2, 1, 2, 1\)": {"v": torch.ones(2, 1, 2, 1)},
    r"v has shape \(2, 2, 2, 8\)": {"v": torch.ones(2, 2, 2, 8)},
    "cos has 4 rows and row 5 is needed": {
        "rotary_cos": ROTARY, "rotary_sin": ROTARY, "cache_seqlens": 5
    },
}  # fmt: skip


@pytest.mark.parametrize("sentence", HOSTILE)
def test_refused_before_a_row_is_written(sentence):
    q, cache = torch.randn(2, 1, 2, 8), torch.zeros(2, 6, 2, 8)
    arguments = {"k": q, "v": q, "cache_seqlens": 3, **HOSTILE[sentence]}
    with pytest.raises(attn.InvalidArgument, match=sentence):
        fa2.flash_attn_with_kvcache(q, cache, cache, **arguments)
    assert not cache.any()


def test_lengths_of_numpy():
    numpy = pytest.importorskip("numpy")
    q = torch.randn(2, 1, 2, 8)
    caches = [torch.zeros(2, 6, 2, 8) for _ in range(3)]
    for cache, rows in zip(caches, (3, numpy.int64(3), torch.tensor(3)), strict=True):
        fa2.flash_attn_with_kvcache(q, cache, cache.clone(), q, q, cache_seqlens=rows)
        assert torch.equal(cache, caches[0])


def test_compiles_as_one_graph():
    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 1, 2, 8) for _ in range(3))
    angles = torch.rand(6, 4)
    used = numbers(1, 4)

    def step(q, k_cache, v_cache, k, v, used):
        return fa2.flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, angles.cos(), angles.sin(), used, causal=True
        )

    caches = [[torch.randn(2, 6, 2, 8) for _ in range(2)]]
    caches.append([t.clone() for t in caches[0]])
    wanted = step(q, *caches[0], k, v, used)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert_close(compiled(q, *caches[1], k, v, used), wanted, 1e-6)
    for found, expected in zip(*caches, strict=True):
        assert_close(found, expected, 1e-6)


def test_refusals():
    q, cache = torch.randn(2, 1, 2, 8), torch.randn(2, 6, 2, 8)
    table = torch.zeros(2, 1).int()
    call = fa2.flash_attn_with_kvcache
    with pytest.raises(RuntimeError, match="accepted are at most 6, for which block_table has"):
        call(q, cache, cache, cache_seqlens=7, block_table=table)
    with pytest.raises(RuntimeError, match="needs 7 rows.*at most 6, for which k_cache has room"):
        call(q, cache, cache, q, q, cache_seqlens=torch.tensor([2, 6]).int())
    with pytest.raises(attn.InvalidArgument, match="k is given and v is None"):
        call(q, cache, cache, q, cache_seqlens=1)
    with pytest.raises(attn.InvalidArgument, match="cache_seqlens is None and k is given"):
        call(q, cache, cache, q, q)
    with pytest.raises(attn.InvalidArgument, match="rotary_cos, rotary_sin, k and v are not all"):
        call(q, cache, cache, rotary_cos=torch.ones(6, 4), rotary_sin=torch.ones(6, 4))
    with pytest.raises(attn.InvalidArgument, match="cos has 2 rows and row 3 is needed"):
        call(
            q, cache, cache, q, q, cache_seqlens=3, rotary_cos=torch.ones(2, 4),
            rotary_sin=torch.ones(2, 4),
        )  # fmt: skip
    assert torch.equal(cache, cache.clone())


REFUSED = {
    "alibi_slopes": {"alibi_slopes": torch.rand(3)},
    "window_size": {"window_size": (1,)},
    "softmax_scale": {"softmax_scale": float("nan")},
    "softmax_scale is text": {"softmax_scale": "x"},
    "softcap": {"softcap": float("nan")},
    "heads of q": {"q": torch.randn(2, 3, 3, 8)},
    "dtype of q": {"q": torch.randn(2, 3, 4, 8).half()},
    "headdim of q": {"q": torch.randn(2, 3, 4, 6)},
    "rows of v_cache": {"v_cache": torch.zeros(2, 19, 2, 8)},
    "batch of v_cache": {"v_cache": torch.zeros(1, 20, 2, 8)},
    "dtype of v_cache": {"v_cache": torch.zeros(2, 20, 2, 8).half()},
    "batch of k_cache": {"k_cache": torch.zeros(1, 20, 2, 8), "v_cache": torch.zeros(1, 20, 2, 8)},
    "batch of block_table": {"block_table": torch.zeros(3, 2, dtype=torch.int32)},
    "dtype of block_table": {"block_table": torch.zeros(2, 2, dtype=torch.int64)},
    "pages of v_cache": {
        "block_table": torch.tensor([[0], [1]], dtype=torch.int32),
        "v_cache": torch.zeros(1, 20, 2, 8),
    },
    "qv": {"qv": torch.randn(2, 3, 4, 7)},
    "attention_chunk": {"attention_chunk": "a"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_writes_nothing(name):
    given = {
        "q": torch.randn(2, 3, 4, 8),
        "k_cache": torch.zeros(2, 20, 2, 8),
        "v_cache": torch.zeros(2, 20, 2, 8),
        "k": torch.ones(2, 3, 2, 8),
        "v": torch.ones(2, 3, 2, 8),
        "cache_seqlens": torch.tensor([4, 5], dtype=torch.int32),
    } | REFUSED[name]
    version = fa3 if name in ("qv", "attention_chunk") else fa2
    with pytest.raises(attn.Error):
        version.flash_attn_with_kvcache(**given)
    assert not given["k_cache"].any()
    assert not given["v_cache"].any()
