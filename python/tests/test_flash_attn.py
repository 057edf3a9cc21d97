"""attn.flash_attn's functions of attention against their documentation in fp64, on the CPU."""

from __future__ import annotations

import inspect
import random

import pytest

torch = pytest.importorskip("torch")

import attn  # noqa: E402
import attn.flash_attn as fa2  # noqa: E402
from attn.flash_attn import flash_attn_3 as fa3  # noqa: E402
from attn.flash_attn import flash_attn_interface as interface  # noqa: E402
from flash_reference import assert_close, batched, packed, stacked  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TAIL = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
    "alibi_slopes=None, deterministic=False, return_attn_probs=False"
)
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
DESCALES = "q_descale=None, k_descale=None, v_descale=None"
SIGNATURES = {
    "flash_attn_func": f"q, k, v, {TAIL}, learnable_sink=None",
    "flash_attn_kvpacked_func": f"q, kv, {TAIL}",
    "flash_attn_qkvpacked_func": f"qkv, {TAIL}",
    "flash_attn_varlen_func": f"q, k, v, {LENGTHS}, {TAIL}, block_table=None, learnable_sink=None",
    "flash_attn_varlen_kvpacked_func": f"q, kv, {LENGTHS}, {TAIL}",
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {TAIL}",
    "flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
        "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, "
        "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
        "rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False"
    ),
}
SIGNATURES_3 = {
    "flash_attn_func": (
        f"q, k, v, softmax_scale=None, causal=False, qv=None, {DESCALES}, window_size=(-1, -1), "
        "attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
        "sm_margin=0, return_attn_probs=False"
    ),
    "flash_attn_qkvpacked_func": (
        f"qkv, softmax_scale=None, causal=False, {DESCALES}, window_size=(-1, -1), "
        "attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0, "
        "return_attn_probs=False"
    ),
    "flash_attn_varlen_func": (
        f"q, k, v, {LENGTHS}, seqused_q=None, seqused_k=None, softmax_scale=None, causal=False, "
        f"qv=None, {DESCALES}, window_size=(-1, -1), attention_chunk=0, softcap=0.0, "
        "num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False"
    ),
    "flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, "
        "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None, "
        "cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, "
        f"{DESCALES}, softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, "
        "softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=0, "
        "pack_gqa=None, sm_margin=0, return_softmax_lse=False"
    ),
    "flash_attn_combine": "out_partial, lse_partial, out=None, out_dtype=None",
}


@pytest.mark.parametrize(
    ("module", "name"),
    [(fa2, name) for name in SIGNATURES] + [(fa3, name) for name in SIGNATURES_3],
)
def test_signature(module, name):
    parameters = inspect.signature(getattr(module, name)).parameters.values()
    found = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    assert ", ".join(found) == (SIGNATURES if module is fa2 else SIGNATURES_3)[name]


class Draw:
    """Random arguments that the functions share: `ours` for them, `exact` for the reference."""

    def __init__(self, seed, batch, heads_q):
        choose = random.Random(seed)
        causal = choose.random() < 0.5
        window = choose.choice([(-1, -1), (-1, -1), (3, 2), (0, -1), (-1, 4), (7, 0)])
        softcap = choose.choice([0.0, 0.0, 1.5])
        scale = choose.choice([None, 0.2])
        slopes = choose.choice([None, torch.rand(heads_q), torch.rand(batch, heads_q)])
        self.ours = {
            "causal": causal,
            "window_size": torch.tensor(window) if choose.random() < 0.2 else window,
            "softcap": softcap,
            "softmax_scale": scale,
            "alibi_slopes": slopes,
        }
        self.exact = {
            "causal": causal,
            "window_size": window,
            "softcap": softcap,
            "scale": scale,
            "slopes": None if slopes is None else slopes.double(),
        }


def doubles(*tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


def assert_gradients(out, exact, tensors, exact_tensors):
    gradient = torch.randn(out.shape)
    ours = torch.autograd.grad(out, tensors, gradient)
    theirs = torch.autograd.grad(exact, exact_tensors, gradient.double())
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("seed", range(24))
def test_dense(seed):
    torch.manual_seed(seed)
    form = seed % 3
    choose = random.Random(seed)
    batch, heads_k, d = 2, choose.choice([1, 2]), choose.choice([8, 20, 64])
    heads = heads_k * (1 if form == 2 else choose.choice([1, 3]))
    n, m = (33, 33) if form == 2 else choose.choice([(33, 33), (9, 40), (40, 9), (1, 17)])
    draw = Draw(seed, batch, heads)
    q, k, v = (
        torch.randn(batch, length, h, d, requires_grad=True)
        for length, h in ((n, heads), (m, heads_k), (m, heads_k))
    )
    q64, k64, v64 = doubles(q, k, v)
    exact, exact_lse = stacked(batched(q64, k64, v64, **draw.exact))
    exact_lse = exact_lse.masked_fill(exact_lse == -torch.inf, torch.inf)
    options = {**draw.ours, "return_attn_probs": True}
    if form == 0:
        out, lse, probabilities = fa2.flash_attn_func(q, k, v, **options)
    elif form == 1:
        out, lse, probabilities = fa2.flash_attn_kvpacked_func(q, torch.stack((k, v), 2), **options)
    else:
        qkv = torch.stack((q, k, v), 2)
        out, lse, probabilities = fa2.flash_attn_qkvpacked_func(qkv, **options)
    assert probabilities.shape == (0,)
    assert lse.dtype == torch.float32
    assert_close(out, exact)
    assert_close(lse, exact_lse)
    assert_gradients(out, exact, (q, k, v), (q64, k64, v64))


def sequences(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


@pytest.mark.parametrize("seed", range(18))
def test_varlen(seed):
    torch.manual_seed(seed)
    form = seed % 3
    choose = random.Random(seed)
    lengths_k = choose.choice([(9, 17, 5), (0, 12, 3), (30,)])
    lengths_q = lengths_k if form == 2 else tuple(choose.choice([n, n + 3, 1]) for n in lengths_k)
    heads, heads_k = (2, 2) if form == 2 else choose.choice([(2, 2), (4, 2)])
    draw = Draw(seed, len(lengths_q), heads)
    q, k, v = (
        torch.randn(sum(lengths), h, 16, requires_grad=True)
        for lengths, h in ((lengths_q, heads), (lengths_k, heads_k), (lengths_k, heads_k))
    )
    exact_tensors = doubles(q, k, v)
    parts = [
        t.split(lengths)
        for t, lengths in zip(exact_tensors, (lengths_q, lengths_k, lengths_k), strict=True)
    ]
    exact, exact_lse = packed(batched(*parts, **draw.exact))
    exact_lse = exact_lse.masked_fill(exact_lse == -torch.inf, torch.inf)
    cu_q, cu_k = sequences(lengths_q), sequences(lengths_k)
    longest = (cu_q, cu_k, max(lengths_q), max(lengths_k) + seed % 2)
    options = {**draw.ours, "return_attn_probs": True}
    if form == 0:
        found = fa2.flash_attn_varlen_func(q, k, v, *longest, **options)
    elif form == 1:
        kv = torch.stack((k, v), 1)
        found = fa2.flash_attn_varlen_kvpacked_func(q, kv, *longest, **options)
    else:
        qkv = torch.stack((q, k, v), 1)
        found = fa2.flash_attn_varlen_qkvpacked_func(qkv, cu_k, max(lengths_k), **options)
    assert_close(found[0], exact)
    assert_close(found[1], exact_lse)
    assert_gradients(found[0], exact, (q, k, v), exact_tensors)


def test_varlen_of_pages():
    torch.manual_seed(0)
    lengths_q, lengths_k = (3, 5), (21, 9)
    pages_k, pages_v = torch.randn(7, 8, 2, 16), torch.randn(7, 8, 2, 16)
    table = torch.tensor([[4, 0, 6], [2, 5, 1]]).int()
    q = torch.randn(8, 4, 16)
    out = fa2.flash_attn_varlen_func(
        q, pages_k, pages_v, sequences(lengths_q), sequences(lengths_k), 5, 21, causal=True,
        block_table=table,
    )  # fmt: skip
    k, v = (
        [p[table[b].long()].flatten(0, 1)[:n].double() for b, n in enumerate(lengths_k)]
        for p in (pages_k, pages_v)
    )
    exact, _ = packed(batched(q.double().split(lengths_q), k, v, causal=True))
    assert_close(out, exact)


@pytest.mark.parametrize("is_packed", [False, True])
def test_dropout_is_what_the_signs_say(is_packed):
    options = {"dropout_p": 0.3, "causal": True, "softcap": 2.0, "return_attn_probs": True}
    slopes = torch.rand(2, 4)
    torch.manual_seed(1)
    lengths = (40, 25)
    q, k, v = (torch.randn(65, h, 8, requires_grad=True) for h in (4, 2, 2))
    if not is_packed:
        lengths = (65,)
        slopes = slopes[:1]
        q, k, v = (t.detach()[None].requires_grad_() for t in (q, k, v))
    cu = sequences(lengths)

    def call():
        torch.manual_seed(5)
        if is_packed:
            return fa2.flash_attn_varlen_func(
                q, k, v, cu, cu, 40, 40, alibi_slopes=slopes, **options
            )
        return fa2.flash_attn_func(q, k, v, alibi_slopes=slopes, **options)

    out, lse, signed = call()
    n = max(lengths)
    assert signed.shape == (len(lengths), 4, 128, 128)
    assert signed.dtype == q.dtype
    kept = signed[:, :, :n, :n] >= 0
    exact_tensors = doubles(q, k, v)
    parts = [t.split(lengths) for t in exact_tensors] if is_packed else exact_tensors
    exact = batched(
        *parts, slopes=slopes.double(), kept=kept, dropout_p=0.3, causal=True, softcap=2.0
    )
    exact, exact_lse = (packed if is_packed else stacked)(exact)
    assert_close(out, exact)
    assert_close(lse, exact_lse)
    assert_gradients(out, exact, (q, k, v), exact_tensors)
    fraction = kept[:, :, :25, :25].float().mean().item()
    assert abs(fraction - 0.7) < 0.03
    assert torch.equal(call()[0], out)
    # A row's magnitudes are P times one number: the largest is 1.
    p = signed[0, 0, 7, :8].abs().double()
    assert p.max() == 1
    one = q[:8, :1] if is_packed else q[0, :8, :1]
    other = k[:8, :1] if is_packed else k[0, :8, :1]
    s = torch.einsum("d,jd->j", one[7, 0].double(), other[:, 0].double()) / 8**0.5
    s = 2 * torch.tanh(s / 2) - slopes[0, 0] * (7 - torch.arange(8))
    assert_close(p, torch.exp(s - s.max()).detach())


@pytest.mark.parametrize("seed", range(12))
def test_functions_of_version_3(seed):
    torch.manual_seed(seed)
    choose = random.Random(seed)
    chunk = choose.choice([0, 5])
    options = {"causal": choose.random() < 0.5, "window_size": choose.choice([(-1, -1), (4, 3)])}
    with_qv = choose.random() < 0.5
    q, k, v = torch.randn(2, 13, 4, 8), torch.randn(2, 20, 2, 8), torch.randn(2, 20, 2, 24)
    qv = torch.randn(2, 13, 4, 24) if with_qv else None
    tensors = [t.requires_grad_() for t in (q, k, v) + ((qv,) if with_qv else ())]
    q64, k64, v64, *qv64 = exact_tensors = doubles(*tensors)
    if with_qv:
        q64, k64 = torch.cat((q64, *qv64), -1), torch.cat((k64, v64), -1)
    exact, exact_lse = stacked(batched(q64, k64, v64, chunk=chunk, **options))
    out, lse = fa3.flash_attn_func(
        q, k, v, qv=qv, attention_chunk=chunk, return_attn_probs=True, **options
    )
    assert_close(out, exact)
    assert_close(lse, exact_lse)
    assert_gradients(out, exact, tensors, exact_tensors)
    only = fa3.flash_attn_func(q, k, v, qv=qv, attention_chunk=chunk, num_splits=4, **options)
    assert torch.equal(only, out)


def test_version_3_packed_heads_and_lengths_in_use():
    torch.manual_seed(0)
    qkv = torch.randn(1, 9, 4 + 2 * 2, 8, requires_grad=True)
    out = fa3.flash_attn_qkvpacked_func(qkv, causal=True, num_heads_q=4)
    (qkv64,) = doubles(qkv)
    exact, _ = stacked(batched(*qkv64.split((4, 2, 2), 2), causal=True))
    assert_close(out, exact)
    assert_gradients(out, exact, (qkv,), (qkv64,))

    q, k, v = (torch.randn(30, 2, 8) for _ in range(3))
    cu, used_q, used_k = (torch.tensor(x).int() for x in ([0, 12, 30], [7, 18], [12, 3]))
    out, lse = fa3.flash_attn_varlen_func(
        q, k, v, cu, cu, 18, 18, used_q, used_k, window_size=(2, 1), return_attn_probs=True
    )
    parts = (
        [t[:a].double(), t[12 : 12 + b].double()]
        for t, (a, b) in ((q, (7, 18)), (k, (12, 3)), (v, (12, 3)))
    )
    first, second = batched(*parts, window_size=(2, 1))
    assert_close(out[:7], first[0])
    assert_close(out[12:], second[0])
    assert_close(lse[:, 12:], second[1])


def test_combine():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 2, 8).double() for n in (5, 12, 12))
    whole, whole_lse = stacked(batched(q, k, v))
    parts = [stacked(batched(q, k[:, a:b], v[:, a:b])) for a, b in ((0, 4), (4, 12))]
    outs = torch.stack([out for out, _ in parts] + [torch.full_like(whole, torch.nan)]).float()
    lses = torch.stack([lse.mT for _, lse in parts] + [torch.full_like(whole_lse.mT, -torch.inf)])
    out, lse = fa3.flash_attn_combine(outs, lses.float(), out_dtype=torch.bfloat16)
    assert out.dtype == torch.bfloat16
    assert_close(out, whole, 2**-8)
    assert_close(lse, whole_lse.mT)


def test_sinks():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 6, 2, 8, requires_grad=True) for _ in range(3))
    sink = torch.randn(2, requires_grad=True)
    exact_tensors = doubles(q, k, v, sink)
    exact, _ = stacked(batched(*exact_tensors[:3], sink=exact_tensors[3], causal=True))
    out = fa2.flash_attn_func(q, k, v, causal=True, learnable_sink=sink)
    assert_close(out, exact)
    assert_gradients(out, exact, (q, k, v, sink), exact_tensors)


@pytest.mark.parametrize("is_packed", [False, True])
def test_calls_without_autograd(is_packed):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 10, 2, 8, requires_grad=True) for _ in range(3))
    torch.manual_seed(1)
    options = {"dropout_p": 0.2, "causal": True}
    expected, lse, signed = fa2.flash_attn_func(q, k, v, return_attn_probs=True, **options)
    gradient = torch.randn(expected.shape)
    gradients = torch.autograd.grad(expected, (q, k, v), gradient)
    raw = [t.detach()[0] if is_packed else t.detach() for t in (q, k, v)]
    lengths = (sequences([10]), sequences([10]), 10, 10) if is_packed else ()
    torch.manual_seed(1)
    tail = (0.2, None, True, -1, -1, 0.0, None)
    prefix = "_flash_attn_varlen_" if is_packed else "_flash_attn_"
    found = getattr(interface, f"{prefix}forward")(*raw, *lengths, *tail, True)
    for a, b in zip(found[:2], (expected, lse), strict=True):
        assert torch.equal(a, b[0] if is_packed else b)
    assert torch.equal(found[2], signed)
    made = [torch.full_like(t, torch.nan) for t in raw]
    d_out = gradient[0] if is_packed else gradient
    softmax_d = getattr(interface, f"{prefix}backward")(
        d_out, *raw, *found[:2], *made, *lengths, *tail, False, rng_state=found[3]
    )
    for a, b in zip(made, gradients, strict=True):
        assert torch.equal(a, b[0] if is_packed else b)
    assert_close(softmax_d, (d_out * found[0]).sum(-1).mT)


def test_compiles_as_one_graph():
    torch._dynamo.reset()

    def function(q, k, v):
        return fa2.flash_attn_func(q, k, v, causal=True, window_size=(4, 0), softcap=2.0)

    q, k, v = (torch.randn(1, 12, 2, 8, requires_grad=True) for _ in range(3))
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(q, k, v), function(q, k, v))


REFUSALS = {
    "window_size is 5": {"window_size": 5},
    "dropout_p is 1.5": {"dropout_p": 1.5},
    r"alibi_slopes is torch.float32 \(3,\); accepted is float32 \(2,\) or \(1, 2\)": {
        "alibi_slopes": torch.ones(3)
    },
}


@pytest.mark.parametrize("sentence", REFUSALS)
def test_refusals(sentence):
    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(attn.InvalidArgument, match=sentence):
        fa2.flash_attn_func(q, q, q, **REFUSALS[sentence])


def test_refusals_of_packed_tensors_and_of_float8():
    with pytest.raises(RuntimeError, match=r"qkv has shape \(1, 4, 2, 2, 8\); accepted is"):
        fa2.flash_attn_qkvpacked_func(torch.randn(1, 4, 2, 2, 8))
    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(NotImplementedError, match="k_descale is given and q is torch.float32"):
        fa3.flash_attn_func(q, q, q, k_descale=torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="num_splits > 1 is not supported"):
        interface._flash_attn_varlen_forward(
            q[0], q[0], q[0], sequences([4]), sequences([4]), 4, 4, 0.0, None, False, num_splits=2
        )
    with pytest.raises(RuntimeError, match="`generator` argument is no longer supported"):
        interface.flash_attn_gpu.fwd(
            q, q, q, None, None, 0.0, 0.3, True, -1, -1, 0.0, False, torch.Generator()
        )
