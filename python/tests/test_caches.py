"""Caches in types of their own: attention over them, rows of them, and appending to them."""

import numpy as np
import pytest

import attn

RANDOM = np.random.default_rng(11)
B, H, HK, N, M, D = 2, 4, 2, 5, 37, 64
TYPES = ("f32", "f16", "e4m3", "e5m2", "i8", "q8_0", "q4_0")
BYTES = {"f32": 64, "f16": 64, "e4m3": 64, "e5m2": 64, "i8": 64, "q8_0": 68, "q4_0": 36}
STEPS = {"f32": 0, "f16": 1e-3, "e4m3": 0.13, "e5m2": 0.3, "i8": 0.02, "q8_0": 0.02, "q4_0": 0.5}


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def empty(kind, *shape):
    dtype = {"f32": np.float32, "f16": np.float16}.get(kind, np.uint8)
    return np.zeros((*shape, BYTES[kind]), dtype)


def e4m3(codes):
    magnitude = (codes & 0x7F).astype(int)
    exponent, mantissa = magnitude >> 3, magnitude & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.where(codes >> 7, -value, value)


def numbers(kind, cache, scale=None):
    """What a cache says, by the definitions of the types."""
    scale = 1.0 if scale is None else scale[..., None].astype(np.float64)
    if kind == "e4m3":
        return e4m3(cache) * scale
    if kind == "e5m2":  # the upper half of f16
        return (cache.astype(np.uint16) << 8).view(np.float16).astype(np.float64) * scale
    if kind == "i8":
        return cache.view(np.int8) * scale
    if kind in ("f32", "f16"):
        return cache.astype(np.float64)
    size = 34 if kind == "q8_0" else 18
    blocks = cache.reshape(*cache.shape[:-1], -1, size)
    factor = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
    codes = blocks[..., 2:]
    if kind == "q8_0":
        values = np.ascontiguousarray(codes).view(np.int8).astype(np.float64)
    else:
        values = np.concatenate([codes & 15, codes >> 4], -1).astype(np.float64) - 8
    return (values * factor).reshape(*cache.shape[:-1], -1)


def cached(kind, x):
    """x in a cache, the scales where it has them, and what it says."""
    out = empty(kind, *x.shape[:-1])
    scale = np.zeros(x.shape[:-1], np.float32) if kind in ("e4m3", "e5m2", "i8") else None
    assert attn.quantize(x, kind, out, scale) is out
    return out, scale, numbers(kind, out, scale)


@pytest.mark.parametrize("kind", TYPES)
def test_rows_are_rounded_to_the_nearest_number(kind):
    x = normal(3, 5, D)
    *_, says = cached(kind, x)
    assert np.abs(says - x).max() <= STEPS[kind]
    assert (kind == "f32") == bool((says == x).all())


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("kind", TYPES)
def test_attention_reads_what_the_cache_says(kind, layout):
    other = TYPES[(TYPES.index(kind) + 3) % len(TYPES)]
    q, x, y = normal(B, N, H, D), normal(B, M, HK, D), normal(B, M, HK, D)
    k, scale_k, says_k = cached(kind, x)
    v, scale_v, says_v = cached(other, y)
    want = np.asarray(attn.attention(q, says_k.astype(np.float32), says_v.astype(np.float32)))
    turn = (lambda t: t if t is None else np.swapaxes(t, 1, 2)) if layout == "bhsd" else lambda t: t
    options = {"type_k": kind, "type_v": other, "layout": layout}
    for name, scale in (("scale_k", scale_k), ("scale_v", scale_v)):
        if scale is not None:
            options[name] = turn(scale)
    got = turn(attn.attention(turn(q), turn(k), turn(v), **options))
    assert got.shape == (B, N, H, D)
    assert np.abs(got - want).max() < 2e-5
    plan = attn.plan(turn(q), turn(k), turn(v), **options)
    assert (turn(plan(turn(q), turn(k), turn(v))) == got).all()
    assert f"k({kind})" in plan.problem or f"kv({kind})" in plan.problem or kind == "f32"


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("scales", ["row", "block", "head", "tensor"])
def test_queries_of_8_bits_are_what_they_say(scales, layout):
    x, k = normal(B, M, H, D), normal(B, M, HK, D)
    scale = np.zeros({"head": (B, H), "tensor": (1,)}.get(scales, (B, M, H)), np.float32)
    q = attn.quantize(x, "e4m3", empty("e4m3", B, M, H), scale, scales=scales, block=16)
    of_rows = scale[:, None] if scales == "head" else scale
    of_rows = np.broadcast_to(of_rows if scales != "tensor" else scale[0], (B, M, H))
    largest = np.abs(x).max(-1)
    for b, i, h in ((0, 0, 0), (1, 20, 3), (1, 36, 1)):
        shared = {
            "row": largest[b, i, h],
            "head": largest[b, :, h].max(),
            "tensor": largest.max(),
            "block": largest[b, i // 16 * 16 : i // 16 * 16 + 16, h].max(),
        }[scales]
        assert of_rows[b, i, h] == np.float32(shared / 448)
    says = numbers("e4m3", q, of_rows)
    assert np.abs(says - x).max() < 0.2
    turn = (lambda t: np.swapaxes(t, 1, 2)) if layout == "bhsd" else lambda t: t
    want = attn.attention(says.astype(np.float32), k, k)
    options = {"type_q": "e4m3", "type_o": "f32", "layout": layout}
    options["scale_q"] = scale if scales == "tensor" else turn(of_rows)
    got = attn.attention(turn(q), turn(k), turn(k), **options)
    assert got.dtype == np.float32
    assert np.abs(turn(got) - want).max() < 2e-5
    plan = attn.plan(turn(q), turn(k), turn(k), **options)
    assert (plan(turn(q), turn(k), turn(k)) == got).all()
    assert "q(e4m3)" in plan.problem


def test_output_of_float32_is_not_rounded_to_the_type_of_q():
    q, k, v = (normal(B, *t).astype(np.float16) for t in ((M, H, D), (N, HK, D), (N, HK, D)))
    got, lse = attn.attention(q, k, v, type_o="f32", return_lse=True)
    assert got.dtype == np.float32
    assert (got.astype(np.float16) == attn.attention(q, k, v)).all()
    assert (got != got.astype(np.float16)).mean() > 0.9
    plan = attn.plan(q, k, v, type_o="f32")
    assert (plan(q, k, v) == got).all()
    assert "o(f32)" in plan.problem
    refused(["o is f16", "f32"], attn.attention, q, k, v, out=empty("f16", B, M, H), type_o="f32")
    with pytest.raises(attn.Unsupported, match="type_o is f32"):
        attn.attention_backward(got, q, k, v, got, lse, type_o="f32")


def test_rotation_spreads_outliers_and_keeps_scores():
    q, k = normal(B, N, H, D), normal(B, N, H, D)
    q[..., 7] *= 50
    rows = [attn.quantize(x, "f32", empty("f32", *x.shape[:-1]), rotate=5) for x in (q, k)]
    assert np.abs(rows[0]).max() < np.abs(q).max() / 2
    exact = np.einsum("bihd,bjhd->bhij", q, k)
    assert np.abs(np.einsum("bihd,bjhd->bhij", *rows) - exact).max() < 1e-3
    other = attn.quantize(k, "f32", empty("f32", B, N, H), rotate=6)
    assert np.abs(other - rows[1]).max() > 0.1


def test_refusals_of_8_bit_queries():
    attend = attn.attention
    q, k = np.zeros((B, N, H, D), np.uint8), normal(B, N, HK, D)
    refused(["type_q is 'i8'"], attend, q, k, k, type_q="i8")
    refused(["type_o is 'f64'"], attend, q, k, k, type_q="e4m3", type_o="f64")
    refused(["type_o is bf16 and dtype is f32"], attend, k, k, k, type_o="bf16")
    refused(["out is not given", "bf16"], attend, q, k, k, type_q="e4m3")
    refused(["q is u8"], attend, q, k, k)
    refused(["q is f32"], attend, k, k, k, type_q="e4m3", type_o="f32")
    refused(["scale_q"], attend, k, k, k, scale_q=np.ones(1, np.float32))
    out, scale = empty("e4m3", B, N, HK), np.ones((B, N, HK), np.float32)
    refused(["scales is 'row2'"], attn.quantize, k, "e4m3", out, scale, scales="row2")
    refused(["scale is not given"], attn.quantize, k, "e4m3", out, scales="head")
    refused(["f32[..., heads]"], attn.quantize, k, "e4m3", out, scale, scales="head")
    refused(["f32[1]"], attn.quantize, k, "e4m3", out, scale, scales="tensor")
    refused(["rotate is -1"], attn.quantize, k, "e4m3", out, scale, rotate=-1)
    refused(["block is 0"], attn.quantize, k, "e4m3", out, scale, scales="block", block=0)


def rotated(x, positions, inv_freq, interleaved=False):
    x = x.astype(np.float64)
    r = 2 * len(inv_freq)
    angle = positions[..., None, None] * inv_freq.astype(np.float64)
    cos, sin = np.cos(angle), np.sin(angle)
    first = np.s_[..., 0:r:2] if interleaved else np.s_[..., : r // 2]
    second = np.s_[..., 1:r:2] if interleaved else np.s_[..., r // 2 : r]
    y = x.copy()
    y[first] = x[first] * cos - x[second] * sin
    y[second] = x[first] * sin + x[second] * cos
    return y


@pytest.mark.parametrize("interleaved", [False, True])
def test_appended_rows_are_the_models(interleaved):
    q, k, v = normal(B, N, H, D), normal(B, N, HK, D), normal(B, N, HK, D)
    weight = normal(D)
    inv_freq = (10000.0 ** -(np.arange(D // 4) / (D // 4))).astype(np.float32)
    integers = np.int64 if interleaved else np.int32
    lengths = np.array([3, 6], integers)
    table = np.array([[4, 1, -1], [0, 3, 5]], integers)
    pages_k, pages_v = empty("f32", 6, 4, HK), empty("q8_0", 6, 4, HK)
    pages_k[:], pages_v[:] = -7, 77
    out = attn.append_kv(
        q=q, k=k, v=v, cache_k=pages_k, cache_v=pages_v, cache_seqlens=lengths, page_table=table,
        norm=True, norm_eps=1e-5, norm_weight_q=weight, norm_weight_k=weight, inv_freq=inv_freq,
        rope_pairs="interleaved" if interleaved else "halves", type_v="q8_0",
    )  # fmt: skip
    positions = lengths[:, None] + np.arange(N)

    def treated(x):
        x = x.astype(np.float64)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight
        return rotated(x, positions, inv_freq, interleaved)

    assert np.abs(out - treated(q)).max() < 1e-5
    want_k = np.full(pages_k.shape, -7.0)
    says_v = numbers("q8_0", pages_v)
    new = np.zeros((6, 4), bool)
    for b in range(B):
        for i, position in enumerate(positions[b]):
            page, row = table[b, position // 4], position % 4
            want_k[page, row] = treated(k)[b, i]
            new[page, row] = True
            assert np.abs(says_v[page, row] - v[b, i]).max() < 0.02
    assert np.abs(pages_k - want_k).max() < 1e-5
    assert (pages_v[~new] == 77).all()


def test_appends_in_place_and_only_what_is_given():
    q = normal(1, N, H, D)
    before = q.copy()
    assert attn.append_kv(q=q, out_q=q, hadamard=True) is q
    assert np.abs(q - before).max() > 0.1
    attn.append_kv(q=q, out_q=q, hadamard=True)
    assert np.abs(q - before).max() < 1e-5
    v, cache = normal(3, HK, D), empty("i8", 1, 4, HK)
    scale = np.zeros((1, 4, HK), np.float32)
    starts, positions = np.array([0, 3]), np.array([2, -1, 0])
    assert attn.append_kv(
        v=v, cache_v=cache, cache_scale_v=scale, positions=positions, cu_seqlens=starts, type_v="i8"
    ) is None  # fmt: skip
    says = numbers("i8", cache, scale)
    assert np.abs(says[0, [2, 0]] - v[[0, 2]]).max() < 0.02
    assert not says[0, [1, 3]].any()


@pytest.mark.parametrize("integer", [np.int32, np.int64])
def test_padding_of_a_batch_is_left_out(integer):
    q, k, cache = normal(2, 3, H, D), normal(2, 3, HK, D), np.full((2, 4, HK, D), 9, np.float32)
    out = np.full_like(q, 9)
    attn.append_kv(
        q=q, k=k, out_q=out, cache_k=cache, cache_seqlens=np.array([1, 2], integer),
        seqused=np.array([3, 2], integer),
    )  # fmt: skip
    for b, first, count in [(0, 1, 3), (1, 2, 2)]:
        assert (cache[b, first : first + count] == k[b, :count]).all()
        assert (cache[b, :first] == 9).all()
        assert (out[b, :count] == q[b, :count]).all()
    assert (out[1, 2] == 9).all()


def refused(words, call, *arguments, error=attn.InvalidArgument, **keywords):
    with pytest.raises(error) as caught:
        call(*arguments, **keywords)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_refusals_name_the_argument():
    q, k = normal(1, 1, 2, D), normal(1, 3, 2, D)
    bytes_of_k = empty("i8", 1, 3, 2)
    attend = attn.attention
    refused(["type_k is 'q9'", "'q8_0'"], attend, q, k, k, type_k="q9")
    refused(["type_v is 3"], attend, q, k, k, type_v=3)
    refused(["k is u8[1, 3, 2, 64]"], attend, q, bytes_of_k, k)
    refused(["k is f32", "i8"], attend, q, k, k, type_k="i8")
    refused(["scale_k", "i32"], attend, q, bytes_of_k, k, type_k="i8",
            scale_k=np.ones(1, np.int32))  # fmt: skip
    refused(["scale_v"], attend, q, k, k, scale_v=np.ones(1, np.float32))
    out, lse = attend(q, bytes_of_k, k, type_k="i8", return_lse=True)
    with pytest.raises(attn.Unsupported):
        attn.attention_backward(out, q, bytes_of_k, k, out, lse, type_k="i8")
    refused(["to is"], attn.quantize, k, "q8_0", bytes_of_k)
    refused(["type is 'int8'"], attn.quantize, k, "int8", bytes_of_k)
    refused(["scale is", "q8_0"], attn.quantize, k, "q8_0", empty("q8_0", 1, 3, 2),
            np.ones((1, 3, 2), np.float32))  # fmt: skip
    append, length = attn.append_kv, np.array([1], np.int32)
    refused(["q, k and v are not given"], append)
    cache = normal(1, 3, 2, D)
    was = cache.copy()
    refused(["position of new row 2", "is 3"], append, k=k, cache_k=cache, cache_seqlens=length)
    refused(["seqused[0] is 4", "0 to 3"], append, k=k, cache_k=cache, cache_seqlens=length,
            seqused=np.array([4]))  # fmt: skip
    refused(["rope_pairs", "'pairs'"], append, k=k, cache_k=cache, cache_seqlens=length, ring=True,
            rope_pairs="pairs")  # fmt: skip
    refused(["norm_eps"], append, k=k, cache_k=cache, cache_seqlens=length, norm_eps="small")
    refused(["ring is 'yes'"], append, k=k, cache_k=cache, cache_seqlens=length, ring="yes")
    refused(["threads"], append, k=k, cache_k=cache, cache_seqlens=length, threads=-1)
    cache.flags.writeable = False
    refused(["cache_k", "read-only"], append, k=k, cache_k=cache, cache_seqlens=length, ring=True)
    assert (cache == was).all()


class TestTorch:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    def test_bf16_caches_beside_a_q_of_f32(self, torch):
        import attn.torch

        q = torch.from_numpy(normal(B, N, H, D))
        k, v = (torch.from_numpy(normal(B, M, HK, D)).bfloat16() for _ in range(2))
        want = attn.attention(q, k.float(), v.float())
        for attend in (attn.attention, attn.torch.attention):
            got = attend(q, k, v, type_k="bf16", type_v="bf16")
            assert (got - want).abs().max() < 1e-5
        out, lse = attn.torch.attention(q, k, v, type_k="bf16", type_v="bf16", return_lse=True)
        assert out.shape == q.shape
        assert lse.shape == (B, H, N)

    def test_append_writes_tensors(self, torch):
        k = torch.from_numpy(normal(1, 3, HK, D)).bfloat16()
        cache = torch.zeros(1, 8, HK, D, dtype=torch.bfloat16)
        version = cache._version
        length = torch.tensor([2], dtype=torch.int32)
        attn.append_kv(k=k, cache_k=cache, cache_seqlens=length)
        assert torch.equal(cache[:, 2:5], k)
        assert not cache[:, :2].any()
        assert not cache[:, 5:].any()
        assert cache._version > version
        rotated_k = attn.append_kv(q=k, inv_freq=torch.ones(4), cache_seqlens=length)
        assert rotated_k.dtype == torch.bfloat16
        assert isinstance(rotated_k, torch.Tensor)
        with pytest.raises(attn.InvalidArgument, match="requires a gradient"):
            attn.append_kv(k=k.requires_grad_(), cache_k=cache, cache_seqlens=length)

    def test_compiled_calls_see_the_types(self, torch):
        import attn.torch

        q = torch.from_numpy(normal(B, N, H, D))
        k, v = torch.from_numpy(normal(B, M, HK, D)), torch.from_numpy(normal(B, M, HK, D))
        out = torch.zeros(B, M, HK, 68, dtype=torch.uint8)
        attn.quantize(v, "q8_0", out)

        def attend(q, k, v):
            return attn.torch.attention(q, k, v, type_v="q8_0")

        want = attend(q, k, out)
        meta = attend(q.to("meta"), k.to("meta"), out.to("meta"))
        assert meta.shape == want.shape
        got = torch.compile(attend, backend="aot_eager", fullgraph=True)(q, k, out)
        assert torch.equal(got, want)

    def test_there_is_no_gradient(self, torch):
        import attn.torch

        q = torch.from_numpy(normal(B, N, H, D)).requires_grad_()
        k = torch.from_numpy(normal(B, M, HK, D)).bfloat16()
        out = attn.torch.attention(q, k, k, type_k="bf16", type_v="bf16")
        with pytest.raises(attn.Unsupported, match="type_k is bf16"):
            out.sum().backward()


def test_jax_refuses_the_types_by_name():
    pytest.importorskip("jax")
    import attn.jax

    q = normal(1, 2, 2, D)
    refused(["type_v is 'i8'"], attn.jax.attention, q, q, q, type_v="i8", error=attn.Unsupported)
