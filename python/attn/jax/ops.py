"""The foreign functions of python/bindings/jax.cpp: their gradient, under vmap, and on a mesh.

From outside to inside: jax.custom_vjp, jax.custom_batching.custom_vmap, custom_partitioning, the
foreign function. Each layer is JAX's own; this file says what they need to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    SdyShardingRule,
    custom_partitioning,
)
from jax.sharding import AxisType, NamedSharding

from .. import _attn
from . import sharding

for _backward in (False, True):
    for _platform in ("cpu", "CUDA"):
        jax.ffi.register_ffi_target(
            "attn_backward" if _backward else "attn_forward",
            _attn.xla_handler(_backward, _platform == "CUDA"),
            platform=_platform,
        )


class Call(NamedTuple):
    """What a compiled call is made for: attributes of the foreign function."""

    problem: str  # descriptor
    names: tuple[str, ...]  # of the arrays beside q, k, v
    rank: int  # of q
    heads_first: bool
    seqlen_q: int
    seqlen_k: int
    seed: int
    offset: int
    backend: str
    algorithm: str
    threads: int
    deterministic: bool
    batch_invariant: bool
    max_logit: bool  # a third result of the forward pass

    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {**self._asdict(), "names": ",".join(self.names)}
        for name, value in found.items():
            if not isinstance(value, str):  # seeds of 64 bits keep their bits
                found[name] = np.int64(value if value < 2**63 else value - 2**64)
        return found


class _Pass(NamedTuple):
    """A foreign function with its attributes."""

    call: Call
    wanted: tuple[str, ...] | None  # gradients that a backward pass gives; None: forward
    added: int = 0  # dimensions in front, of jax.vmap

    def operands(self) -> tuple[str, ...]:
        first = ("q", "k", "v") if self.wanted is None else ("d_out", "q", "k", "v", "out", "lse")
        return (*first, *self.call.names)

    def results(self) -> tuple[str, ...]:
        if self.wanted is not None:
            return self.wanted
        return ("out", "lse", "max_logit") if self.call.max_logit else ("out", "lse")

    def described(self, arrays: Any) -> sharding.Described:
        shapes = tuple(tuple(x.shape) for x in arrays)
        call = self.call
        return sharding.Described(
            call.problem, self.operands(), shapes, self.added, call.heads_first
        )

    def factors(self, arrays: Any) -> tuple[list[sharding.Factors], list[sharding.Factors]]:
        """Of the operands and of the results."""
        described = self.described(arrays)
        known = sharding.factors(described)
        each = [sharding.added(described, x.shape) for x in arrays]
        front = tuple(next(filter(None, those), None) for those in zip(*each, strict=True))
        return (
            [
                (*of_front, *known[name])
                for of_front, name in zip(each, self.operands(), strict=True)
            ],
            [(*front, *known[name]) for name in self.results()],
        )


def _foreign(one: _Pass, *operands: Any) -> tuple[Any, ...]:
    """The foreign function; operands of one device."""
    operands = sharding.vary_alike(operands)
    every = dict(zip(one.operands(), operands, strict=True))
    q, v = every["q"], every["v"]
    sizes = [{x.shape[i] for x in operands} - {1} for i in range(one.added)]
    front = tuple(next(iter(those), 1) for those in sizes)

    of_scores = jnp.float64 if q.dtype == jnp.float64 else jnp.float32

    def described(name: str) -> Any:
        if name == "out":
            shape, dtype = (*q.shape[one.added : -1], v.shape[-1]), q.dtype
        elif name == "lse":
            shape = q.shape[one.added : -1]  # with the heads before the rows
            if not one.call.heads_first or one.call.rank == 3:
                shape = (*shape[:-2], shape[-1], shape[-2])
            dtype = of_scores
        elif name == "max_logit":
            shape, dtype = (q.shape[-3 if one.call.heads_first else -2],), of_scores
        else:
            shape = every[name].shape[one.added :]
            dtype = q.dtype if name in ("q", "k", "v") else jnp.float32
        return sharding.result((*front, *shape), dtype, q)

    attributes = one.call.attributes()
    if one.wanted is not None:
        attributes["wanted"] = ",".join(one.wanted)
    function: Any = jax.ffi.ffi_call(
        "attn_forward" if one.wanted is None else "attn_backward",
        [described(name) for name in one.results()],
    )
    return tuple(function(*operands, **attributes))


_partitioned = custom_partitioning(_foreign, static_argnums=(0,))


def _axes(one: _Pass, mesh: Any, arrays: Any, results: Any) -> sharding.Axes:
    of_operands, of_results = one.factors(arrays)
    every = dict(zip(one.operands(), zip(arrays, of_operands, strict=True), strict=True))
    first = every.pop("q")
    others = zip(results, of_results, strict=False)  # none where they are to be chosen
    return sharding.chosen(mesh, (first, *every.values(), *others))


def _shardings(
    one: _Pass, mesh: Any, arrays: Any, results: Any
) -> tuple[tuple[NamedSharding, ...], tuple[NamedSharding, ...]]:
    axes = _axes(one, mesh, arrays, results)
    return tuple(  # type: ignore[return-value]
        tuple(NamedSharding(mesh, sharding.split(axes, dimensions)) for dimensions in those)
        for those in one.factors(arrays)
    )


def _partition(one: _Pass, mesh: Any, arrays: Any, results: Any) -> Any:
    mesh = sharding.devices_of(mesh, arrays[0].sharding)
    axes = _axes(one, mesh, arrays, results)
    of_operands, of_results = _shardings(one, mesh, arrays, results)

    def part(*operands: Any) -> tuple[Any, ...]:
        shapes = {
            name: x.shape[one.added :] for name, x in zip(one.operands(), operands, strict=True)
        }
        call = one.call._replace(problem=sharding.with_shapes(one.call.problem, shapes))
        found = _foreign(one._replace(call=call), *operands)
        # A gradient is a sum over devices, max_logit a maximum; out and lse are split alike.
        joined = jax.lax.pmax if one.wanted is None else jax.lax.psum
        overs = [sharding.summed(axes, those) for those in one.factors(arrays)[1]]
        return tuple(
            joined(result, over) if over else result
            for result, over in zip(found, overs, strict=True)
        )

    def manually(*operands: Any) -> tuple[Any, ...]:
        # Each device has its part here. JAX 0.11 lowers a sum over explicit axes, which the
        # program's mesh may have, to what XLA refuses.
        with jax.sharding.use_abstract_mesh(sharding.manual(mesh)):
            return part(*operands)

    return mesh, manually, of_results, of_operands


def _inferred(one: _Pass, mesh: Any, arrays: Any, results: Any) -> Any:
    mesh = sharding.devices_of(mesh, arrays[0].sharding)
    return _shardings(one, mesh, arrays, ())[1]


def _rule(one: _Pass, mesh: Any, operands: Any, results: Any) -> Any:
    """For Shardy, which splits what has one name alike and leaves the rest whole."""
    arrays = [jax.ShapeDtypeStruct(tuple(x.shape), np.float32) for x in operands]
    whole: list[str] = []

    def mapping(shape: Any, dimensions: sharding.Factors) -> Any:
        names = []
        for size, factor in zip(shape, dimensions, strict=True):
            # Heads of q and of k may be of other numbers: what is left of them is _partition's.
            names.append(f"{factor}{size}" if factor else f"whole{len(whole)}")
            if not factor:
                whole.append(names[-1])
        return ArrayMapping(*names)

    of_operands, of_results = one.factors(arrays)
    return SdyShardingRule(
        tuple(mapping(x.shape, those) for x, those in zip(arrays, of_operands, strict=True)),
        tuple(mapping(x.shape, those) for x, those in zip(results, of_results, strict=True)),
        need_replication_factors=tuple(whole),
    )


_partitioned.def_partition(_partition, infer_sharding_from_operands=_inferred, sharding_rule=_rule)


@lru_cache(maxsize=4096)
def _mapped(one: _Pass) -> Callable[..., tuple[Any, ...]]:
    """The pass, which jax.vmap gives one dimension more in front."""

    @custom_vmap
    def function(*operands: Any) -> tuple[Any, ...]:
        # Within jax.shard_map each device has its part already.
        is_split = jax.sharding.get_abstract_mesh().manual_axes
        return (_foreign if is_split else _partitioned)(one, *operands)

    @function.def_vmap
    def _(size: int, are_mapped: Any, *operands: Any) -> Any:
        more = [
            x if is_mapped else x[None] for x, is_mapped in zip(operands, are_mapped, strict=True)
        ]
        found = _mapped(one._replace(added=one.added + 1))(*more)
        return found, (True,) * len(found)

    return function


def _passed(one: _Pass, *operands: Any) -> tuple[Any, ...]:
    """The pass. Where types say how arrays are split, those of results: a gradient is split as what
    it belongs to, the others as the compiler is to choose.
    """
    types = dict(zip(one.operands(), map(jax.typeof, operands), strict=True))
    meshes = [kind.sharding.mesh for kind in types.values()]
    mesh = next((each for each in meshes if not each.empty), meshes[0])
    explicit = tuple(
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Explicit
    )
    if not explicit:
        return _mapped(one)(*operands)
    if one.wanted is None:
        of_results = _shardings(one, mesh, list(types.values()), ())[1]
    else:
        specs = [types[name].sharding.spec for name in one.wanted]
        of_results = tuple([NamedSharding(mesh, spec) for spec in specs])
    inner: Any = jax.sharding.auto_axes(_mapped(one), axes=explicit, out_sharding=of_results)
    return tuple(inner(*operands))


def _shape_of(wanted: Sequence[bool]) -> Any:
    """An array without elements whose shape says which of q, k, v and the arrays need a gradient.

    The backward pass is traced for the residuals of a forward pass that may have been traced long
    ago: their shapes are of that one, but JAX keeps one tree for all, the last one's.
    """
    return jnp.zeros((*map(int, wanted), 0), jnp.int8)


def _wanted(shape: Sequence[int]) -> tuple[bool, ...]:
    return tuple(map(bool, shape[:-1]))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(call: Call, q: Any, k: Any, v: Any, arrays: tuple[Any, ...]) -> Any:
    return _passed(_Pass(call, None), q, k, v, *arrays)


def _forward(call: Call, q: Any, k: Any, v: Any, arrays: tuple[Any, ...]) -> Any:
    given = (q, k, v, *arrays)
    q, k, v, *values = (x.value for x in given)
    results: Any = _differentiable(call, q, k, v, tuple(values))
    out, lse = results[:2]
    wanted = [x.perturbed and jnp.issubdtype(x.value.dtype, jnp.floating) for x in given]
    return results, (_shape_of(wanted), q, k, v, tuple(values), out, lse)


def _backward_pass(call: Call, kept: Any, cotangents: Any) -> Any:
    shape, q, k, v, arrays, out, lse = kept
    wanted = _wanted(shape.shape)
    d_out, d_lse = cotangents[:2]  # attention() lets none through to max_logit
    if isinstance(d_out, SymbolicZero):
        d_out = jnp.zeros_like(out)
    names, operands = call.names, arrays
    if not isinstance(d_lse, SymbolicZero):
        names, operands = (*names, "d_lse"), (*operands, d_lse)
    every = dict(zip(("q", "k", "v", *call.names), (q, k, v, *arrays), strict=True))
    # Backward refuses a prefix: that its gradient is asked for must not get lost either.
    reached = (
        "q", "k", "v", "sink", "prefix_k", "prefix_v", *_attn.score_buffers(call.problem),
    )  # fmt: skip
    asked = tuple(
        n for n, is_wanted in zip(every, wanted, strict=True) if is_wanted and n in reached
    )
    found: dict[str, Any] = {}
    if asked:
        one = _Pass(call._replace(names=names), asked)
        gradients = _passed(one, d_out, q, k, v, out, lse, *operands)
        found = {
            name: gradient.astype(every[name].dtype)
            for name, gradient in zip(asked, gradients, strict=True)
        }
    return (*map(found.get, ("q", "k", "v")), tuple(map(found.get, call.names)))


_differentiable.defvjp(_forward, _backward_pass, symbolic_zeros=True)


@partial(jax.jit, static_argnums=0)
def run(call: Call, q: Any, k: Any, v: Any, arrays: tuple[Any, ...]) -> Any:
    """(out, lse), and max_logit where the call asks for it."""
    q, k, v, *others = sharding.vary_alike((q, k, v, *arrays))
    return _differentiable(call, q, k, v, tuple(others))
