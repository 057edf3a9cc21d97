"""attn.jax against attn.attention, against the sum of its parts under vmap, and against jax.nn."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import attn.jax  # noqa: E402

# Where there is a GPU too, tests that do not name it run on the CPU.
jax.config.update("jax_default_device", jax.devices("cpu")[0])

SHAPE = (2, 12, 4, 8)  # batch, seqlen, heads, head_dim


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def qkv(*shape):
    return [normal(seed, *(shape or SHAPE)) for seed in (1, 2, 3)]


def allowed():
    mask = normal(4, 2, 1, 12, 12) > 0
    mask[..., 0] = True
    return mask


IDS = np.repeat([[0, 1, 2]], 4, axis=1).astype(np.int32)
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (3, 0), "softcap": 5.0, "scale": 0.5},
    "alibi": {"alibi": normal(5, 4)},
    "alibi of each sequence": {"alibi": normal(5, 2, 4), "causal": True},
    "bias": {"bias": normal(6, 2, 1, 12, 12)},
    "sink": {"sink": normal(7, 4), "score": "2.0 * score"},
    "array as mask": {"mask": allowed()},
    "text": {"mask": "key <= position && key % 3 != 1"},
    "Formula": {"mask": attn.Formula("ids[0, query] == ids[0, key] + step", ids=IDS, step=0)},
    "score reads an array": {"score": attn.Formula("score * w[head, key]", w=normal(8, 4, 12))},
    "used": {"seqused_k": np.array([5, 12], np.int32)},
    "reference": {"backend": "reference"},
    "algorithm": {"algorithm": "standard", "threads": 1},
    "dropout": {"dropout": 0.3, "rng": (2**63 + 5, 7)},
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_as_numpy(options, compiled):
    q, k, v = qkv()
    d_out, d_lse = normal(9, *SHAPE), normal(10, 2, 4, 12)
    out, lse = attn.attention(q, k, v, return_lse=True, **options)
    wanted = attn.attention_backward(d_out, q, k, v, out, lse, d_lse=d_lse, **options)

    def function(q, k, v):
        return attn.jax.attention(q, k, v, return_lse=True, **options)

    function = jax.jit(function) if compiled else function
    found, transposed = jax.vjp(function, q, k, v)
    np.testing.assert_array_equal(found[0], out)
    np.testing.assert_array_equal(found[1], lse)
    for name, gradient in zip("qkv", transposed((d_out, d_lse)), strict=True):
        np.testing.assert_array_equal(gradient, wanted[name])


@pytest.mark.parametrize("name", ["bias", "alibi", "sink"])
def test_gradients_of_arrays(name):
    q, k, v = qkv()
    array = {"bias": normal(6, 2, 4, 12, 12), "alibi": normal(5, 4), "sink": normal(7, 4)}[name]
    out, lse = attn.attention(q, k, v, return_lse=True, **{name: array})
    wanted = attn.attention_backward(2 * out, q, k, v, out, lse, gradients=(name,), **{name: array})
    found = jax.grad(lambda x: (attn.jax.attention(q, k, v, **{name: x}) ** 2).sum())(array)
    np.testing.assert_array_equal(found, wanted[name])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("form", ["function", "formula", "and the score"])
def test_no_gradient_reaches_what_a_mask_reads(form, compiled):
    q, k, v = qkv()
    t = normal(8, 12)

    def loss(q, t):
        mask = attn.Formula("t[key] > -0.5", t=t) if form == "formula" else lambda s: t[s.key] > 0
        score = (lambda s: s.score + t[s.key]) if form == "and the score" else None
        return (attn.jax.attention(q, k, v, mask=mask, score=score) ** 2).sum()

    grad = jax.grad(loss, argnums=(0, 1))
    d_q, d_t = (jax.jit(grad) if compiled else grad)(q, t)
    np.testing.assert_array_equal(d_q, jax.grad(loss)(q, t))
    assert d_t.any() == (form == "and the score")


def test_layouts():
    q, k, v = qkv()
    wanted = attn.attention(q, k, v, causal=True)
    found = attn.jax.attention(*(x.swapaxes(1, 2) for x in (q, k, v)), causal=True, layout="bhsd")
    np.testing.assert_array_equal(found.swapaxes(1, 2), wanted)
    lengths = np.array([0, 12, 24], np.int32)
    packed = attn.jax.attention(
        *(x.reshape(24, 4, 8) for x in (q, k, v)),
        causal=True,
        cu_seqlens_q=lengths,
        cu_seqlens_k=lengths,
    )
    np.testing.assert_array_equal(packed.reshape(SHAPE), wanted)
    pages = attn.jax.attention(
        q,
        k.reshape(6, 4, 4, 8)[::-1],
        v.reshape(6, 4, 4, 8)[::-1],
        causal=True,
        seqused_k=np.array([12, 12], np.int32),
        page_table=np.arange(5, -1, -1, dtype=np.int32).reshape(2, 3),
    )
    np.testing.assert_allclose(pages, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(dtype):
    q, k, v = (jnp.asarray(x).astype(dtype) for x in qkv())
    found = attn.jax.attention(q, k, v)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, attn.attention(q, k, v))
    gradient = jax.grad(lambda q: attn.jax.attention(q, k, v).sum())(q)
    assert gradient.dtype == dtype


def test_functions_read_what_is_traced():
    q, k, v = qkv()

    @jax.jit
    def function(q, ids, reach):
        mask = lambda b, h, q, k: (ids[b, q] == ids[b, k]) & (q - k <= reach)  # noqa: E731
        return attn.jax.attention(q, k, v, mask=mask)

    ids = np.repeat(IDS, 2, axis=0)
    for reach in (1, 3):
        wanted = attn.attention(
            q, k, v,
            mask=attn.Formula("ids[batch, query] == ids[batch, key] && query - key <= reach",
                              ids=ids, reach=reach),
        )  # fmt: skip
        np.testing.assert_array_equal(function(q, ids, reach), wanted)


VMAPPED = {
    "one batch": ({}, (0, 0, 0), {}),
    "axes": ({"causal": True}, (2, 0, 1), {}),
    "shared keys": ({"causal": True}, (0, None, None), {}),
    "shared bias": ({}, (0, 0, 0), {"bias": normal(6, 2, 4, 12, 12)}),
    "sink": ({}, (0, 0, 0), {"sink": normal(7, 4)}),
    "reads the batch": ({"mask": "(key + batch) % 3 != 1"}, (0, 0, 0), {}),
    "dropout": ({"dropout": 0.5, "rng": 3}, (0, 0, 0), {}),
    "lengths": ({"seqused_k": np.array([5, 12], np.int32)}, (0, 0, 0), {}),
}


@pytest.mark.parametrize("case", VMAPPED.values(), ids=VMAPPED)
def test_vmap(case):
    """Each element is a call of its own, forward and backward."""
    options, axes, arrays = case
    shape = [3, *SHAPE]
    q, k, v = (
        normal(seed, *SHAPE) if axis is None else np.moveaxis(normal(seed, *shape), 0, axis)
        for seed, axis in enumerate(axes)
    )

    def loss(q, k, v, arrays):
        out, lse = attn.jax.attention(q, k, v, return_lse=True, **options, **arrays)
        return (out**2).sum() + jnp.where(jnp.isinf(lse), 0, lse).sum(), out

    both = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)
    (_, outs), gradients = jax.jit(jax.vmap(both, (*axes, None)))(q, k, v, arrays)
    for i in range(3):
        one = [
            x if axis is None else np.take(x, i, axis)
            for x, axis in zip((q, k, v), axes, strict=True)
        ]
        (_, out), wanted = both(*one, arrays)
        np.testing.assert_array_equal(outs[i], out)
        for found, expected in zip(
            jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True
        ):
            np.testing.assert_allclose(found[i], expected, rtol=1e-5, atol=1e-5)


def test_vmap_within_vmap():
    q, k, v = qkv(2, 3, *SHAPE)
    bias = normal(6, 3, 1, 4, 12, 12)
    one = lambda q, k, v, bias: attn.jax.attention(q, k, v, bias=bias)  # noqa: E731
    found = jax.vmap(jax.vmap(one), (0, 0, 0, None))(q, k, v, bias)
    for i, j in np.ndindex(2, 3):
        np.testing.assert_array_equal(found[i, j], one(q[i, j], k[i, j], v[i, j], bias[j]))


def test_gradients_of_a_shared_bias_within_vmap():
    random = np.random.default_rng(12)
    q = jnp.asarray(random.normal(size=(3, 1, 4, 2, 8)), jnp.float32)
    bias = jnp.asarray(random.normal(size=(1, 2, 4, 4)), jnp.float32)

    def loss(attend, bias):
        return (attend(bias) ** 2).sum()

    def one(q, bias):
        return attn.jax.attention(q, q, q, bias=bias)

    mapped = jax.vmap(one, in_axes=(0, None))
    found = jax.grad(lambda b: loss(lambda b: mapped(q, b), b))(bias)
    wanted = sum(jax.grad(lambda b, x=x: loss(lambda b: one(x, b), b))(bias) for x in q)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    each = jax.vmap(jax.grad(lambda b, x: loss(lambda b: one(x, b), b)), in_axes=(None, 0))
    np.testing.assert_allclose(each(bias, q).sum(0), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("number", [np.float64(2.5), np.float32(0.3), True, np.bool_(True), 1e-50])
def test_numbers_of_a_formula(number):
    q, k, v = qkv()
    score = attn.Formula("score * x", x=number)
    found = attn.jax.attention(q, k, v, score=score)
    wanted = attn.attention(*map(np.asarray, (q, k, v)), score=score)
    np.testing.assert_array_equal(found, wanted)


def test_numbers_of_numpy_as_seeds():
    q = jnp.ones((1, 8, 2, 4))
    found = attn.jax.attention(q, q, q, dropout=0.5, rng=np.int64(7))
    assert (found == attn.jax.attention(q, q, q, dropout=0.5, rng=7)).all()


def test_keys_of_jax():
    q, k, v = qkv()
    high, low = np.asarray(jax.random.key_data(jax.random.key(11))).tolist()
    wanted = attn.attention(q, k, v, dropout=0.4, rng=high << 32 | low)

    def attend(key):
        return attn.jax.attention(q, k, v, dropout=0.4, rng=key)

    for device in (jax.devices("cpu")[0], *gpus()[:1]):
        with jax.default_device(device):
            key = jax.random.key(11)
            found = jax.jit(attend)(key)
            if device.platform == "cpu":
                np.testing.assert_array_equal(found, wanted)
            np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)
            several = jax.vmap(attend)(jax.random.split(key, 3))
            assert len({x.tobytes() for x in np.asarray(several)}) == 3


LENGTHS = np.array([7, 12], np.int32)
JAX_OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True, "scale": 0.3},
    "bias": {"bias": normal(6, 1, 4, 12, 12)},
    "mask": {"mask": allowed()},
    "window": {"local_window_size": 2},
    "sides": {"local_window_size": (3, 1), "is_causal": True},
    "lengths": {"key_value_seq_lengths": LENGTHS, "query_seq_lengths": LENGTHS},
}


@pytest.mark.parametrize("heads_k", [1, 2, 4])
@pytest.mark.parametrize("options", JAX_OPTIONS.values(), ids=JAX_OPTIONS)
def test_dot_product_attention(options, heads_k):
    q = normal(1, *SHAPE)
    k, v = (normal(seed, 2, 12, heads_k, 8) for seed in (2, 3))
    both = []
    for function in (attn.jax.dot_product_attention, jax.nn.dot_product_attention):

        def loss(q, k, v, function=function):
            out, lse = function(q, k, v, return_residual=True, **options)
            return (out**2).sum(), (out, lse)

        (_, (out, lse)), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(
            q, k, v
        )
        rows = np.arange(12)[None, :] < options.get("query_seq_lengths", np.array([12]))[:, None]
        both.append((out, np.where(rows[..., None], lse, 0), *gradients))
    for found, wanted in zip(*both, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_dot_product_attention_of_one():
    q, k, v = qkv(*SHAPE[1:])
    mask = allowed()[0]
    found = attn.jax.dot_product_attention(q, k, v, mask=mask, return_residual=True)
    wanted = jax.nn.dot_product_attention(q, k, v, mask=mask, return_residual=True)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


def test_refusals():
    q, k, v = qkv()
    with pytest.raises(attn.InvalidArgument, match="heads_k is 3"):
        jax.jit(attn.jax.attention)(q, k[:, :, :3], v[:, :, :3])
    with pytest.raises(attn.InvalidArgument, match="rng is an array of int32"):
        attn.jax.attention(q, k, v, dropout=0.5, rng=jnp.zeros(2, jnp.int32))
    with pytest.raises(attn.InvalidArgument, match="mask is of float32"):
        attn.jax.dot_product_attention(q, k, v, mask=jnp.zeros((12, 12)))
    for options in ({"mask": jnp.ones((11, 12), bool)}, {"bias": jnp.ones((1, 3, 12, 12))}):
        with pytest.raises(attn.InvalidArgument, match=f"{next(iter(options))} has shape"):
            attn.jax.dot_product_attention(q, k, v, **options)
    for lengths in (
        jnp.zeros(1, jnp.int32),
        jnp.zeros(2),
        jnp.int32(3),
        jnp.zeros((2, 1), jnp.int32),
    ):
        with pytest.raises(attn.InvalidArgument, match="key_value_seq_lengths is of"):
            attn.jax.dot_product_attention(q, k, v, key_value_seq_lengths=lengths)
    used = jnp.full(2, 9, jnp.int32)
    for options, message in (
        ({"mask": jnp.ones((3, 1, 12, 12), bool)}, "mask is"),
        ({"alibi": jnp.ones((3, 4))}, "alibi is"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            attn.jax.attention(q, k, v, seqused_k=used, **options).block_until_ready()
    for name, size, accepted in (("seqused_k", 2, "i32"), ("cu_seqlens_k", 3, "i32")):
        with pytest.raises(jax.errors.JaxRuntimeError, match=rf"{name} is bool.*are {accepted}"):
            attn.jax.attention(q, k, v, **{name: jnp.ones(size, bool)}).block_until_ready()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"sink is bool\[4\].*accepted are f32"):
        attn.jax.attention(q, k, v, seqused_k=used, sink=jnp.ones(4, bool)).block_until_ready()
    far = np.array([9, 2**32 + 9])
    with pytest.raises(attn.InvalidArgument, match="seqused_k has 4294967305"):
        attn.jax.attention(q, k, v, seqused_k=far)
    with pytest.raises(attn.InvalidArgument, match="key_value_seq_lengths has 4294967305"):
        attn.jax.dot_product_attention(q, k, v, key_value_seq_lengths=far)
    with pytest.raises(TypeError, match="reach"):
        attn.jax.attention(q, k, v, reach=3)
    lengths = np.array([0, 30], np.int32)  # past the 24 rows
    with pytest.raises(jax.errors.JaxRuntimeError, match="cu_seqlens_q"):
        attn.jax.attention(
            *(x.reshape(24, 4, 8) for x in (q, k, v)), cu_seqlens_q=lengths, cu_seqlens_k=lengths
        ).block_until_ready()


def gpus():
    try:
        return jax.devices("gpu")
    except RuntimeError:
        return []


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_on_a_gpu(options):
    if not gpus():
        pytest.skip("JAX has no GPU here")
    if options.get("backend") == "reference" or "algorithm" in options:
        pytest.skip("this option is of the CPU")
    q, k, v = qkv()
    d_out = normal(9, *SHAPE)

    def function(q, k, v):
        return attn.jax.attention(q, k, v, **options)

    results = []
    for device in (jax.devices("cpu")[0], gpus()[0]):
        arrays = [jax.device_put(x, device) for x in (q, k, v)]
        out, transposed = jax.vjp(jax.jit(function), *arrays)
        results.append([out, *transposed(jax.device_put(d_out, device))])
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)


def test_workspace_of_a_gpu_is_given_back():
    if not gpus():
        pytest.skip("JAX has no GPU here")
    device = gpus()[0]
    q, k, v = (jax.device_put(normal(seed, 2, 256, 4, 64), device) for seed in (1, 2, 3))
    # Forward in parts of the keys and backward need workspace.
    decode = jax.jit(attn.jax.attention)
    gradient = jax.jit(jax.grad(lambda q: attn.jax.attention(q, k, v, causal=True).sum()))
    used = []
    for repeats in (3, 100):
        for _ in range(repeats):
            decode(q[:1, :1], k[:1], v[:1]).block_until_ready()
            gradient(q).block_until_ready()
        used.append(device.memory_stats()["bytes_in_use"])
    assert used[0] == used[1]


def test_merge():
    q, k, v = qkv()
    sides = ("key % 3 == 0", "key < 0", "key % 3 != 0")

    def merged(q, k, v):
        parts = [attn.jax.attention(q, k, v, mask=side, return_lse=True) for side in sides]
        return attn.jax.merge(parts)

    d_out, d_lse = normal(9, *SHAPE), normal(10, 2, 4, 12)
    found, transposed = jax.vjp(jax.jit(merged), q, k, v)
    wanted, exact = jax.vjp(lambda *x: attn.jax.attention(*x, return_lse=True), q, k, v)
    for x, y in zip(
        (*found, *transposed((d_out, d_lse))), (*wanted, *exact((d_out, d_lse))), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("keyword", "name"), [("alibi", "slopes"), ("sink", "sink")])
def test_names_of_keywords_are_not_those_of_another_array(keyword, name):
    """The array of a formula took the place of the keyword's: a wrong result without an error."""
    q = jnp.ones((1, 5, 2, 8))
    own, other = jnp.array([0.5, 0.25]), jnp.array([2.0, 3.0])
    score = attn.Formula(f"score + {name}[head]", **{name: other})
    with pytest.raises(attn.InvalidArgument, match=f"buffer '{name}'.*one array a name"):
        attn.jax.attention(q, q, q, score=score, **{keyword: own})


@pytest.mark.parametrize("name", ["prefix_k", "prefix_v", "q"])
def test_a_gradient_beside_a_shared_prefix_is_refused(name):
    q, k, v = qkv()
    given = {"q": q, "prefix_k": normal(4, 70, 4, 8), "prefix_v": normal(5, 70, 4, 8)}

    def loss(x):
        return attn.jax.attention(k=k, v=v, **{**given, name: x}).sum()

    with pytest.raises(jax.errors.JaxRuntimeError, match="seqlen_prefix is 70"):
        jax.grad(loss)(given[name])


@pytest.mark.parametrize("is_loop", [False, True])
def test_gradients_do_not_depend_on_those_that_were_asked_for_before(is_loop):
    """JAX keeps a forward pass traced for all of q, k, v, and one tree of residuals: the last."""
    arrays = [jnp.asarray(x) for x in qkv(1, 7, 2, 8 + 8 * is_loop)]

    def once_more(q, k, v):
        if is_loop:
            return jax.lax.fori_loop(0, 2, lambda i, x: attn.jax.attention(x, k, v), q).sum()
        return 3.0 * attn.jax.attention(q, k, v).sum()

    def by_jax(q, k, v):
        for _ in range(2 if is_loop else 1):
            q = jax.nn.dot_product_attention(q, k, v)
        return (1.0 if is_loop else 3.0) * q.sum()

    jax.grad(lambda *a: attn.jax.attention(*a).sum(), argnums=(0, 1, 2))(*arrays)
    jax.grad(lambda q: attn.jax.attention(q, *arrays[1:]).sum())(arrays[0])
    found = jax.grad(once_more, argnums=(0, 1, 2))(*arrays)
    for one, want in zip(found, jax.grad(by_jax, argnums=(0, 1, 2))(*arrays), strict=True):
        np.testing.assert_allclose(one, want, atol=2e-5)


def test_arrays_in_lists_and_dicts():
    """Which JAX would index itself, and give its own error."""
    q = jnp.asarray(np.random.default_rng(3).standard_normal((1, 4, 1, 8)), jnp.float32)
    a = jnp.asarray([0.5, -1.0, 2.0, 0.0], jnp.float32)
    tables, named = [a], {"a": a}
    want = attn.jax.attention(q, q, q, score=lambda s: s.score + a[s.key])
    for score in (lambda s: s.score + tables[0][s.key], lambda s: s.score + named["a"][s.key]):
        assert np.array_equal(attn.jax.attention(q, q, q, score=score), want)
        grad = jax.grad(lambda a, f=score: attn.jax.attention(q * a, q, q, score=f).sum())(1.0)
        assert np.isfinite(grad)
