"""attn.torch and FlashAttention 3's functions on tensors of 8-bit floats."""

import pytest

torch = pytest.importorskip("torch")

import attn  # noqa: E402
import attn.torch  # noqa: E402
from attn.flash_attn import flash_attn_3 as fa3  # noqa: E402

B, H, HK, N, M, D, DV = 2, 4, 2, 9, 37, 32, 48
KINDS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def inputs(kind="e4m3"):
    return [normal(B, n, h, d).to(KINDS[kind]) for n, h, d in ((N, H, D), (M, HK, D), (M, HK, DV))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", ["bf16", "f16", "f32"])
def test_numbers_are_those_of_the_tensors(kind, out):
    q, k, v = inputs(kind)
    scales = {"scale_q": torch.tensor([0.5]), "scale_v": torch.tensor([2.0, 0.25])}
    got = attn.torch.attention(q, k, v, causal=True, type_o=out, **scales)
    want = attn.torch.attention(
        q.float() * 0.5, k.float(), v.float() * scales["scale_v"][:, None], causal=True
    )
    assert got.dtype == {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[out]
    torch.testing.assert_close(got.float(), want, rtol=0, atol=1e-5 if out == "f32" else 2e-2)


def test_keys_alone_may_be_of_8_bits_and_types_may_differ():
    q, k, v = normal(B, N, H, D), inputs()[1], inputs("e5m2")[2]
    with torch.no_grad():
        got, lse = attn.torch.attention(q, k, v, return_lse=True)
    want, of_want = attn.torch.attention(q, k.float(), v.float(), return_lse=True)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(lse, of_want)


def test_out_is_bfloat16_and_lies_in_memory_as_q():
    q, k, v = inputs()
    assert attn.torch.attention(q, k, v).dtype == torch.bfloat16
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    out = attn.torch.attention(turned, k, v)
    assert out.transpose(1, 2).is_contiguous()
    assert (out == attn.torch.attention(q, k, v)).all()


def test_a_graph_breaks_there():
    q, k, v = inputs()
    compiled = torch.compile(lambda *t: attn.torch.attention(*t) + 1, backend="eager")
    assert (compiled(q, k, v) == attn.torch.attention(q, k, v) + 1).all()


def test_gradients_are_refused():
    q, k, v = inputs()
    x = normal(B, N, H, D).requires_grad_()
    y = v.float().requires_grad_()
    with pytest.raises(attn.Unsupported, match="q requires a gradient, and 8-bit floats"):
        attn.torch.attention(x, k, v)
    with pytest.raises(attn.Unsupported, match="k requires a gradient, and"):
        attn.torch.attention(q, k.clone().requires_grad_(), v)
    with pytest.raises(attn.Unsupported, match="v requires a gradient, and"):
        attn.torch.attention(x.detach(), k, y)
    with pytest.raises(attn.Unsupported, match="q requires a gradient, and"):
        attn.torch.attention(x, x, x, type_o="f32")
    with torch.no_grad():
        attn.torch.attention(x, k, y)


def test_views_blocks_and_prefixes():
    q, k, v = inputs()
    turned = k.transpose(2, 3).contiguous().transpose(2, 3)
    assert (attn.torch.attention(q, turned, v) == attn.torch.attention(q, k, v)).all()
    blocks = torch.zeros(B, M, HK, 34 * D // 32, dtype=torch.uint8)
    attn.quantize(v[..., :D].float().contiguous(), "q8_0", blocks)
    out = attn.torch.attention(q, k, blocks, type_v="q8_0")
    assert out.shape == (B, N, H, D)
    torch.testing.assert_close(out, attn.torch.attention(q, k, v[..., :D]), rtol=0.02, atol=0.02)
    given = attn.torch.attention(q, k, v, prefix_k=k[0], prefix_v=v[0])
    keys, values = (torch.cat((t[:1].expand_as(t), t), 1) for t in (k, v))
    torch.testing.assert_close(given, attn.torch.attention(q, keys, values), rtol=0.02, atol=0.02)
    with torch.autocast("cpu", torch.bfloat16):
        assert attn.torch.attention(q.float(), k, v).dtype == torch.bfloat16


def test_refusals():
    q, k, v = inputs()
    with pytest.raises(attn.InvalidArgument, match="type_k is 'i8' and k is torch.float8_e4m3fn"):
        attn.torch.attention(q, k, v, type_k="i8")
    with pytest.raises(TypeError, match="k is a list"):
        attn.torch.attention(q, [1], v)
    with pytest.raises(attn.InvalidArgument, match="type_o is 'f64'; accepted are 'bf16', 'f16'"):
        attn.torch.attention(q, k, v, type_o="f64")


DESCALES = [torch.tensor([[1.0, 0.5], [2.0, 0.25]]) * x for x in (1.0, 0.5, 3.0)]


def scaled(t, descale):
    """Of the heads of q or of k, each a factor of its group of heads and its sequence."""
    return t.float() * descale.repeat_interleave(t.shape[-2] // HK, -1)[:, None, :, None]


def test_descales_of_flash_attention_3():
    q, k, v = inputs()
    of_q, of_k, of_v = DESCALES
    options = {"causal": True, "softcap": 5.0, "window_size": (20, 0)}
    got = fa3.flash_attn_func(q, k, v, q_descale=of_q, k_descale=of_k, v_descale=of_v, **options)
    assert got.dtype == torch.bfloat16
    want = fa3.flash_attn_func(scaled(q, of_q), scaled(k, of_k), scaled(v, of_v), **options)
    torch.testing.assert_close(got.float(), want, rtol=1e-2, atol=1e-2)


def test_descales_of_packed_sequences():
    q, k, v = inputs()
    of_q, of_k, of_v = DESCALES
    starts_q, starts_k = (torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (N, M))
    packed = [t.flatten(0, 1) for t in (q, k, v)]
    got = fa3.flash_attn_varlen_func(
        *packed, starts_q, starts_k, N, M, q_descale=of_q, k_descale=of_k, v_descale=of_v
    )
    want = fa3.flash_attn_func(q, k, v, q_descale=of_q, k_descale=of_k, v_descale=of_v)
    assert (got.view_as(want) == want).all()


def test_descales_of_no_sequence_and_of_heads_that_do_not_fit():
    q, k, v = inputs()
    none = torch.zeros(1, dtype=torch.int32)
    out = fa3.flash_attn_varlen_func(
        q[0], k[0], v[0], none, none, N, M, q_descale=torch.ones(0, HK), k_descale=torch.ones(0, HK)
    )
    assert (out == 0).all()
    with pytest.raises(attn.InvalidArgument, match="q has 3 heads and k 2"):
        fa3.flash_attn_func(q[:, :, :3], k, v, q_descale=torch.ones(B, HK))


def test_descales_are_refused_by_name():
    q, k, v = inputs()
    with pytest.raises(attn.Unsupported, match=r"k_descale is given and q is torch\.float32"):
        fa3.flash_attn_func(normal(B, N, H, D), k, v, k_descale=DESCALES[0])
    with pytest.raises(attn.InvalidArgument, match=r"q_descale is torch\.float32 \(2, 4\)"):
        fa3.flash_attn_func(q, k, v, q_descale=torch.ones(B, H))
    with pytest.raises(
        attn.Unsupported, match=r"q is torch\.float8_e4m3fn; accepted in flash_attn_w"
    ):
        fa3.flash_attn_with_kvcache(q, k, v)
