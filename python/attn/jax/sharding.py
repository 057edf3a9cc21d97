"""Which dimensions of attention's arrays may be split over the devices of JAX, and how they are.

Sequences and heads are computed by themselves, so that each device may have its own; rows and
keys are not split. A dimension that can be split has a factor here: BATCH, HEADS, or one of those
that jax.vmap added. Dimensions with the same factor are split alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

BATCH, HEADS = "batch", "head"  # as formulas call them
_ROWS = ("q", "out", "d_out")
_KEYS = ("k", "v")
_LSE = ("lse", "d_lse")
_OF_BATCH = ("seqused_q", "seqused_k", "page_table")
_OF_HEADS = ("sink", "slopes", "max_logit")

Factors = tuple[str | None, ...]  # of an array, one for each dimension; None: it is whole


class Described(NamedTuple):
    """What the factors depend on."""

    problem: str  # descriptor
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    added: int  # dimensions in front, of jax.vmap
    heads_first: bool


def tokens(problem: str) -> list[str]:
    """Those of a descriptor, which underscores outside of parentheses divide."""
    found, depth, start = [], 0, 0
    for i, character in enumerate(problem):
        depth += (character == "(") - (character == ")")
        if character == "_" and depth == 0:
            found.append(problem[start:i])
            start = i + 1
    return [*found, problem[start:]]


def with_shapes(problem: str, shapes: dict[str, tuple[int, ...]]) -> str:
    """The descriptor of arrays of other shapes, by name."""

    def changed(token: str) -> str:
        if token.startswith("buffer("):
            name, dtype, _ = token[len("buffer(") : -1].split(":")
            return f"buffer({name}:{dtype}:{'x'.join(map(str, shapes[name]))})"
        if "slopes" in shapes and re.fullmatch(r"hq\d+", token):
            return f"hq{shapes['slopes'][0]}"
        if "bias" in shapes and (known := re.fullmatch(r"bias[\dx]+(\D.*)?", token)):
            return f"bias{'x'.join(map(str, shapes['bias']))}{known[1] or ''}"
        return token

    return "_".join(map(changed, tokens(problem)))


def _loads(formula: str) -> tuple[list[tuple[str, list[str]]], str]:
    """Name and indices of each load of an array, and the formula without plain batch and head."""
    loads: list[tuple[str, list[str]]] = []
    open_ones: list[tuple[int, list[int]]] = []  # where a bracket and its commas are
    rest = list(formula)
    for i, character in enumerate(formula):
        if character in "([":
            open_ones.append((i, []))
        elif character == "," and open_ones:
            open_ones[-1][1].append(i)
        elif character in ")]" and open_ones:
            start, commas = open_ones.pop()
            if character == ")":
                continue
            name = re.search(r"\w*\s*$", formula[:start])
            ends = [start, *commas, i]
            indices = []
            for first, last in pairwise(ends):
                index = formula[first + 1 : last].strip()
                indices.append(index)
                if index in (BATCH, HEADS):
                    rest[first + 1 : last] = " " * (last - first - 1)
            loads.append((name[0].strip() if name else "", indices))
    return loads, "".join(rest)


@lru_cache(maxsize=4096)
def factors(described: Described) -> dict[str, Factors]:
    """Of each array, out, lse and max_logit as well, without what jax.vmap added.

    What a device could not tell of its part alone is left whole.
    """
    shapes = {
        name: shape[described.added :]
        for name, shape in zip(described.names, described.shapes, strict=True)
    }
    q, k, v = shapes["q"], shapes["k"], shapes["v"]
    shapes["out"] = (*q[:-1], v[-1])
    heads_at = 1 if described.heads_first else -2
    heads_q, heads_k = q[heads_at], k[heads_at]
    is_packed = len(q) == 3 or "cu_seqlens_k" in shapes
    batch = (None,) if is_packed else (BATCH,)
    shapes["lse"] = (heads_q, 0) if len(q) == 3 else (q[0], heads_q, 0)
    shapes["max_logit"] = (heads_q,)
    is_paged = "page_table" in shapes
    every = tokens(described.problem)
    allowed = {BATCH, HEADS}
    if is_packed:
        allowed.discard(BATCH)
    if any(token.startswith("dropout") for token in every):  # drawn by sequence and head
        allowed.clear()
    if v[heads_at] != heads_k or heads_k == 0 or heads_q % heads_k != 0:
        allowed.discard(HEADS)
    if not is_paged and (k[0] != q[0] or v[0] != q[0]):
        allowed.discard(BATCH)

    result: dict[str, list[str | None]] = {}
    for name, shape in shapes.items():
        found: list[str | None] = [None] * len(shape)
        if name in (*_ROWS, *_KEYS):
            if name in _ROWS or heads_k > 1:
                found[heads_at if len(shape) == 4 else -2] = HEADS
            if len(shape) == 4 and (name in _ROWS or not is_paged):
                found[0] = BATCH
        elif name in _LSE:
            found = [HEADS, None] if len(q) == 3 else [*batch, HEADS, None]
        elif name in _OF_BATCH:
            found[0] = BATCH
        elif name == "key_list":
            found[-3] = HEADS if shape[-3] > 1 else None
            if len(shape) == 4:
                found[0] = BATCH
        elif name in ("prefix_k", "prefix_v"):
            found[1] = HEADS if heads_k > 1 else None
        elif name in _OF_HEADS:
            found[0] = HEADS
        elif name == "bias" and len(shape) == 4:
            found[:2] = [BATCH, HEADS]
        result[name] = found
    read = []
    for token in every:
        if token.startswith(("mask(", "score(")):
            loads, rest = _loads(token)
            read += loads
            allowed -= {factor for factor in allowed if re.search(rf"\b{factor}\b", rest)}
    for name, indices in read:
        for i, index in enumerate(indices):
            if index in (BATCH, HEADS):
                result[name][i] = index
    extents = {BATCH: q[0], HEADS: heads_q}
    for name, found in result.items():
        for i, factor in enumerate(found):
            if factor is not None and shapes[name][i] == 1:
                found[i] = None
            elif factor is not None and name not in _KEYS and shapes[name][i] != extents[factor]:
                allowed.discard(factor)
    for name, indices in read:  # an array that is read in two ways is whole
        for i, index in enumerate(indices):
            if result[name][i] not in (index, None):
                allowed -= {result[name][i], index}
    return {
        name: tuple(factor if factor in allowed else None for factor in found)
        for name, found in result.items()
    }


def added(described: Described, shape: tuple[int, ...]) -> Factors:
    """Of the dimensions that jax.vmap added: an array that all elements share has 1 there."""
    return tuple(f"vmap{i}" if shape[i] != 1 else None for i in range(described.added))


Axes = dict[str, tuple[str, ...]]  # of the mesh, over which a factor is split


def chosen(mesh: Any, arrays: Iterable[tuple[Any, Factors]]) -> Axes:
    """The split of the first array that has one, of what every array can have.

    arrays: each with its shape and sharding, and its factors.
    """
    every = list(arrays)
    found: Axes = {}
    used: set[str] = set()
    for array, dimensions in every:
        spec = array.sharding.spec if isinstance(array.sharding, NamedSharding) else ()
        for factor, named in zip(dimensions, spec, strict=False):
            if factor is None or named is None or factor in found:
                continue
            axes = named if isinstance(named, tuple) else (named,)
            count = prod(mesh.shape[axis] for axis in axes)
            if used.isdisjoint(axes) and all(
                size % count == 0
                for other, others in every
                for size, one in zip(other.shape, others, strict=True)
                if one == factor
            ):
                found[factor] = axes
                used.update(axes)
    return found


def split(axes: Axes, dimensions: Factors) -> PartitionSpec:
    """Of an array with these factors."""
    return PartitionSpec(*(axes.get(factor) if factor else None for factor in dimensions))


def summed(axes: Axes, dimensions: Factors) -> tuple[str, ...]:
    """Axes of the mesh whose devices each have a part of the sum that the gradient is."""
    return tuple(axis for factor in axes if factor not in dimensions for axis in axes[factor])


def devices_of(mesh: Any, sharding: Any) -> Any:
    """The mesh, or where JAX has none of the program, one of its devices without a split."""
    if not mesh.empty:
        return mesh
    return Mesh(np.array(sorted(sharding.device_set, key=lambda device: device.id)), ("devices",))


def manual(mesh: Any) -> AbstractMesh:
    """The mesh as it is where each device has its part."""
    sizes, names = tuple(mesh.shape.values()), tuple(mesh.shape)
    return AbstractMesh(sizes, names, axis_types=(AxisType.Manual,) * len(names))


def varying(x: Any) -> frozenset[str]:
    """Axes of jax.shard_map over which an array varies."""
    aval = jax.typeof(x)
    manual = getattr(aval, "mat", None)
    found: frozenset[str] = aval.vma if manual is None else manual.varying
    return found


def vary_alike(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each made to vary over the axes that any varies over: the gradient is summed over them."""
    every: frozenset[str] = frozenset().union(*map(varying, arrays))
    return tuple(
        jax.lax.pcast(x, missing, to="varying")
        if (missing := tuple(sorted(every - varying(x))))
        else x
        for x in arrays
    )


def result(shape: tuple[int, ...], dtype: Any, like: Any) -> Any:
    """What a foreign function gives: it varies over the axes of jax.shard_map that `like` does."""
    axes = varying(like)
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    whole = NamedSharding(jax.typeof(like).sharding.mesh, PartitionSpec())
    manual = getattr(jax.sharding, "ManualAxisType", None)
    named = {"vma": axes} if manual is None else {"manual_axis_type": manual(varying=axes)}
    return jax.ShapeDtypeStruct(shape, dtype, sharding=whole, **named)
