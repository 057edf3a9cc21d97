"""attn.jax on several devices: within jax.shard_map, and under jax.jit on arrays that are split.

conftest.py makes JAX show four devices of the CPU.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import attn.jax  # noqa: E402

BATCH, ROWS, HEADS, SIZE = 4, 6, 4, 8


@pytest.fixture(scope="module")
def mesh():
    devices = jax.devices("cpu")
    if len(devices) < 4:
        pytest.skip("XLA_FLAGS gives JAX fewer than four devices of the CPU")
    return Mesh(np.array(devices[:4]).reshape(2, 2), ("x", "y"))


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def qkv(heads_k=HEADS):
    return (
        normal(1, BATCH, ROWS, HEADS, SIZE),
        normal(2, BATCH, ROWS, heads_k, SIZE),
        normal(3, BATCH, ROWS, heads_k, SIZE),
    )


def close(found, wanted):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


# Within jax.shard_map: specs of q, k, v and of the result; what is whole has its batch cut to fit.
ARRANGEMENTS = {
    "whole k": (P("x"), P(), P("x")),
    "whole q": (P(), P("x"), P("x")),
    "whole k and v": (P("x"), P(), P()),
    "heads": (P(None, None, "y"), P(None, None, "y"), P(None, None, "y")),
    "batch and heads": (P("x", None, "y"), P("x", None, "y"), P("x", None, "y")),
    "different axes": (P("x"), P("y"), P(("x", "y"))),
}


def part(array, spec, specs):
    """As many sequences that devices agree on how many they have."""
    count = {None: 1, "x": 2, "y": 2, ("x", "y"): 4}
    wanted = BATCH // max(count[s[0] if len(s) else None] for s in specs)
    return array[: wanted * count[spec[0] if len(spec) else None]]


@pytest.mark.parametrize("specs", ARRANGEMENTS.values(), ids=ARRANGEMENTS)
def test_gradients_within_shard_map(mesh, specs):
    arrays = [part(x, spec, specs) for x, spec in zip(qkv(), specs, strict=True)]
    results = []
    for attend in (attn.jax.dot_product_attention, jax.nn.dot_product_attention):

        def loss(q, k, v, attend=attend):
            out = attend(q, k, v, is_causal=True)
            axes = tuple({axis for spec in specs for axis in jax.tree.leaves(tuple(spec))})
            return jax.lax.psum((out**2).sum(), axes)

        mapped = jax.shard_map(loss, mesh=mesh, in_specs=specs, out_specs=P())
        results.append(jax.jit(jax.value_and_grad(mapped, (0, 1, 2)))(*arrays))
    close(*results)


def scanned(attend, q, k, v):
    return jax.lax.scan(lambda sum, _: (attend(sum, k, v), None), q, None, length=3)[0]


FORMS = {
    "alone": lambda attend, *x: attend(*x),
    "scan": scanned,
    "remat": lambda attend, *x: jax.checkpoint(attend)(*x),
    "vmap": lambda attend, q, k, v: jax.vmap(attend, (0, None, None))(q[:, None], k[:1], v[:1]),
    "within jit": lambda attend, *x: jax.jit(attend)(*x),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_within_shard_map(mesh, form):
    q, k, v = qkv()
    specs = (P("x"), P(), P())
    results = []
    for attend in (attn.jax.dot_product_attention, jax.nn.dot_product_attention):
        mapped = jax.shard_map(partial(form, attend), mesh=mesh, in_specs=specs, out_specs=P("x"))
        gradient = jax.grad(lambda *x, f=mapped: (f(*x) ** 2).sum(), (0, 1, 2))
        results.append(jax.jit(gradient)(q, k[:2], v[:2]))
    close(*results)


def test_what_varies_is_not_taken_for_replicated(mesh):
    for specs in ((P("x"), P(), P()), (P(), P(), P("x"))):
        arrays = [part(x, spec, specs) for x, spec in zip(qkv(), specs, strict=True)]
        attend = jax.shard_map(attn.jax.attention, mesh=mesh, in_specs=specs, out_specs=P())
        with pytest.raises(ValueError, match="replicat"):
            attend(*arrays)


ARRAYS = {  # each whole on every device, and differentiable
    "bias": normal(6, 1, HEADS, ROWS, ROWS),
    "sink": normal(7, HEADS),
    "alibi": normal(5, HEADS),
    "score": normal(8, HEADS, ROWS),
}


def attend_with(name, q, k, v, array, **more):
    if name == "score":
        return attn.jax.attention(q, k, v, score=lambda s: s.score * array[s.head, s.key], **more)
    return attn.jax.attention(q, k, v, **{name: array}, **more)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_within_shard_map(mesh, name, check):
    """Beside lengths of each sequence, which vary as well."""
    arrays = (*qkv(), ARRAYS[name])
    used = np.array([6, 3, 1, 5], np.int32)

    def one(q, k, v, array, used):
        return attend_with(name, q, k, v, array, seqused_k=used)

    mapped = jax.shard_map(
        one, mesh=mesh, in_specs=(P("x"), P("x"), P("x"), P(), P("x")), out_specs=P("x"),
        check_vma=check,
    )  # fmt: skip
    found, wanted = (
        jax.jit(jax.grad(lambda *x, f=f: (f(*x, used) ** 2).sum(), (0, 1, 2, 3)))(*arrays)
        for f in (mapped, one)
    )
    close(found, wanted)


# Under jax.jit on arrays that are split.
def compiled(function, arrays):
    """What it gives, and which kinds of communication it needs."""
    program = jax.jit(function).lower(*arrays).compile()
    kinds = r"(all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    return program(*arrays), set(re.findall(kinds, program.as_text()))


def both(attend):
    """Results and gradients, of which those of what all read need a sum."""

    def function(*arrays):
        out, pull = jax.vjp(attend, *arrays)
        return out, pull(jax.tree.map(jnp.cos, out))

    return function


def split(mesh, arrays, specs):
    return [
        jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs, strict=True)
    ]


with_lse = partial(attn.jax.attention, return_lse=True)
SPLIT = {
    "batch": (P("x"), {}, 4, set()),
    "batch over two axes": (P(("x", "y")), {}, 4, set()),
    "heads": (P(None, None, "y"), {"causal": True}, 4, set()),
    "both": (P("x", None, "y"), {"window": (2, 0)}, 4, set()),
    "groups": (P("x", None, "y"), {}, 2, set()),
    "one head of keys": (P("x", None, "y"), {}, 1, {"all-reduce"}),
    "a formula of both": (P("x", None, "y"), {"mask": "(batch + head + key) % 3 != 1"}, 4, None),
    "rows": (P(None, "x"), {"causal": True}, 4, None),
    "sizes": (P("x", None, None, "y"), {}, 4, None),
    "fewer heads of keys": (P(None, None, ("x", "y")), {}, 2, None),
    "dropout": (P("x", None, "y"), {"dropout": 0.5, "rng": 3}, 4, None),
    "reference": (P("x", None, "y"), {"backend": "reference"}, 4, set()),
}


@pytest.mark.parametrize("case", SPLIT.values(), ids=SPLIT)
def test_split(mesh, case):
    """None: what must be gathered is, and the results are the same."""
    spec, options, heads_k, needed = case
    arrays = qkv(heads_k)
    function = both(partial(with_lse, **options))
    of_keys = spec if heads_k == HEADS or needed == set() else P(spec[0])
    given = split(mesh, arrays, (spec, of_keys, of_keys))
    found, kinds = compiled(function, given)
    close(found, function(*arrays))
    if needed is not None:
        assert kinds == needed
        assert found[0][0].sharding.is_equivalent_to(given[0].sharding, 4)


WITH_ARRAYS = {
    "bias": (P(None, "y"), {"all-reduce"}),
    "sink": (P("y"), {"all-reduce"}),
    "alibi": (P("y"), {"all-reduce"}),
    "score": (P("y"), {"all-reduce"}),
}


@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_split_with_arrays(mesh, name):
    """Their gradients are sums over the devices that share them."""
    array_spec, needed = WITH_ARRAYS[name]
    specs = (*[P("x", None, "y")] * 3, array_spec)
    arrays = (*qkv(), ARRAYS[name])
    function = both(partial(attend_with, name, causal=True))
    given = split(mesh, arrays, specs)
    found, kinds = compiled(function, given)
    close(found, function(*arrays))
    assert kinds == needed


JAX_OPTIONS = {
    "mask": {"mask": normal(4, BATCH, 1, ROWS, ROWS) > -1},
    "mask of heads": {"mask": normal(4, BATCH, HEADS, ROWS, ROWS) > -1},
    "lengths": {"key_value_seq_lengths": np.array([6, 3, 1, 5], np.int32)},
    "bias": {"bias": normal(6, BATCH, HEADS, ROWS, ROWS)},
}


@pytest.mark.parametrize("options", JAX_OPTIONS.values(), ids=JAX_OPTIONS)
def test_split_dot_product_attention(mesh, options):
    ((name, array),) = options.items()
    arrays = (*qkv(2), array)
    spec = P("x", "y") if array.ndim == 4 and array.shape[1] > 1 else P("x")
    given = split(mesh, arrays, (*[P("x", None, "y")] * 3, spec))
    results = []
    for attend in (attn.jax.dot_product_attention, jax.nn.dot_product_attention):

        def loss(q, k, v, array, attend=attend):
            return (attend(q, k, v, **{name: array}) ** 2).sum()

        function = jax.value_and_grad(loss, (0, 1, 2))
        found, kinds = compiled(function, given)
        results.append(found)
        assert "all-gather" not in kinds
    close(*results)


FORMULAS = {  # and the shapes of what they read
    "an index of each": ("w[batch, head] + u[head]", {"w": (BATCH, HEADS), "u": (HEADS,)}),
    "an array in two ways": ("w[head] * w[key]", {"w": (HEADS,)}),
    "by batch and by head": ("w[batch] * w[head]", {"w": (HEADS,)}),
    "an index within an index": ("w[to_int(u[batch, key])]", {"w": (9,), "u": (BATCH, ROWS)}),
    "a sum as index": ("w[head + 1] + w[head]", {"w": (HEADS,)}),
    "one that outruns its array": ("w[head, key]", {"w": (HEADS - 2, ROWS)}),
    "one that falls short of it": ("w[batch]", {"w": (BATCH + 4,)}),
    "of size 1": ("w[batch, head]", {"w": (1, HEADS)}),
    "an argument of a function": ("max(to_float(head), w[head])", {"w": (HEADS,)}),
    "without any": ("w[key]", {"w": (ROWS,)}),
}


@pytest.mark.parametrize("case", FORMULAS.values(), ids=FORMULAS)
def test_formulas_of_what_is_split(mesh, case):
    text, shapes = case
    buffers = {name: normal(8, *shape) for name, shape in shapes.items()}

    def attend(q, k, v, buffers):
        return with_lse(q, k, v, score=attn.Formula(f"score + {text}", **buffers))

    arrays = (*qkv(), buffers)
    function = both(attend)
    given = (*split(mesh, arrays[:3], [P("x", None, "y")] * 3), buffers)
    close(jax.jit(function)(*given), function(*arrays))


def test_layouts_that_are_split(mesh):
    arrays = [x.swapaxes(1, 2) for x in qkv(2)]
    function = both(partial(with_lse, layout="bhsd", causal=True))
    given = split(mesh, arrays, [P("x", "y")] * 3)
    found, kinds = compiled(function, given)
    close(found, function(*arrays))
    assert not kinds
    lengths = np.array([0, 9, 24], np.int32)
    packed = [x.reshape(24, -1, SIZE) for x in qkv(2)]
    function = both(partial(with_lse, cu_seqlens_q=lengths, cu_seqlens_k=lengths))
    given = split(mesh, packed, [P(None, "y")] * 3)
    found, kinds = compiled(function, given)
    close(found, function(*packed))
    assert not kinds


def test_pages_that_are_split(mesh):
    q, k, v = qkv(2)
    pages = np.arange(7, -1, -1, dtype=np.int32).reshape(4, 2)
    used = np.array([6, 3, 1, 5], np.int32)
    arrays = (
        q[:, :1], k.reshape(8, 3, 2, SIZE), v.reshape(8, 3, 2, SIZE), used, pages,
    )  # fmt: skip

    def function(q, k, v, used, pages):
        return attn.jax.attention(q, k, v, seqused_k=used, page_table=pages)

    of_keys = P(None, None, "y")
    given = split(mesh, arrays, (P("x", None, "y"), of_keys, of_keys, P("x"), P("x")))
    found, kinds = compiled(function, given)
    close(found, function(*arrays))
    assert not kinds


def test_vmap_that_is_split(mesh):
    """Each element's own dimension, and one within it."""
    q, k, v = (normal(seed, 2, BATCH, ROWS, HEADS, SIZE) for seed in (1, 2, 3))
    function = both(jax.vmap(with_lse, (0, 0, None)))
    arrays = (q, k, v[0])
    given = split(mesh, arrays, (P("x", "y"), P("x", "y"), P("y")))
    found, kinds = compiled(function, given)
    close(found, function(*arrays))
    assert "all-gather" not in kinds


@pytest.mark.parametrize("kind", ["explicit", "gspmd", "partly manual"])
def test_other_partitioners(mesh, kind):
    arrays, spec = qkv(), P("x", None, "y")
    function = both(with_lse)
    wanted = function(*arrays)
    if kind == "explicit":
        mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    if kind == "partly manual":
        function = jax.shard_map(
            function, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}
        )
    given = split(mesh, arrays, [spec] * 3)
    shardy = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", kind != "gspmd")
    try:
        found, kinds = compiled(function, given)
    finally:
        jax.config.update("jax_use_shardy_partitioner", shardy)
    close(found, wanted)
    assert kind == "partly manual" or not kinds
    if kind == "explicit":
        assert jax.typeof(found[0][0]).sharding.spec == P(*spec, None)


@pytest.mark.parametrize("of_k", [P("x", None, "y"), P("y"), P(None, "x"), P(), None])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_gradients_where_types_say_how_arrays_are_split(mesh, of_k, is_compiled):
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    arrays, bias = qkv(), normal(4, ROWS, ROWS)
    given = [
        x if spec is None else jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip((*arrays, bias), (P("x", None, "y"), of_k, of_k, P()), strict=True)
    ]

    def loss(q, k, v, bias):
        return (attn.jax.attention(q, k, v, bias=bias) ** 2).sum()

    gradients = jax.grad(loss, (0, 1, 2, 3))
    wanted = gradients(*arrays, bias)
    with jax.set_mesh(mesh):
        found = (jax.jit(gradients) if is_compiled else gradients)(*given)
    close(found, wanted)
    if of_k is not None:
        assert [jax.typeof(x) for x in found] == [jax.typeof(x) for x in given]


@pytest.mark.parametrize("axis", ["x", "y"])
def test_gradients_within_shard_map_of_one_axis_where_types_say_it_of_the_other(mesh, axis):
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    arrays = qkv()
    spec = P("x") if axis == "x" else P(None, None, "y")
    attend = partial(attn.jax.attention, causal=True)
    mapped = jax.shard_map(attend, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={axis})

    def gradients(function, *given):
        return jax.grad(lambda *x: (function(*x) ** 2).sum(), (0, 1, 2))(*given)

    with jax.set_mesh(mesh):
        given = split(mesh, arrays, [P("x", None, "y")] * 3)
        found = jax.jit(partial(gradients, mapped))(*given)
    close(found, gradients(attend, *arrays))


@pytest.mark.parametrize("spec", [P("x", None, "y"), P(("x", "y")), P(None, "x", "y")])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_max_logit_is_of_all_devices(mesh, spec, axis_type):
    mesh = Mesh(mesh.devices, ("x", "y"), axis_types=(axis_type,) * 2)
    arrays = qkv()
    wanted = attn.jax.attention(*arrays, causal=True, return_lse=True, return_max_logit=True)
    attend = partial(attn.jax.attention, causal=True, return_lse=True, return_max_logit=True)
    close(jax.jit(attend)(*split(mesh, arrays, [spec] * 3)), wanted)


def test_max_logit_within_shard_map_is_of_one_device(mesh):
    arrays, specs = qkv(), P("x", None, "y")

    def largest(*given):
        return attn.jax.attention(*given, return_max_logit=True)[1][None]

    mapped = jax.shard_map(largest, mesh=mesh, in_specs=specs, out_specs=P("x", "y"))
    found = jax.jit(mapped)(*arrays)
    assert found.shape == (2, HEADS)
    wanted = attn.jax.attention(*arrays, return_max_logit=True)[1]
    close(found.max(0), wanted)
    close(found[0], attn.jax.attention(*(x[:2] for x in arrays), return_max_logit=True)[1])
