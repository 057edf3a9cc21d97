"""Masks and scores as people write them for FlexAttention and transformers, over a 64 x 64 grid.

Each builder takes a library, NumPy or torch, and returns a function of index grids or of symbols:
`xp` is the module, `array` makes an array of it. The names are those of the papers that
brought the masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

BATCH, HEADS, LENGTH = 2, 4, 64


class Library(NamedTuple):
    xp: Any
    array: Callable[[Any], Any]


CASES: dict[str, tuple[str, Callable[[Library], Callable[..., Any]]]] = {}


def _case(kind: str) -> Callable[[Callable[[Library], Any]], Callable[[Library], Any]]:
    def add(builder: Callable[[Library], Any]) -> Callable[[Library], Any]:
        CASES[builder.__name__] = (kind, builder)
        return builder

    return add


mask = _case("mask")
score = _case("score")


def _random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _sorted_ids(count: int, seed: int) -> np.ndarray:
    return np.sort(_random(seed).integers(0, count, LENGTH))


# ---- Masks of positions alone


@mask
def causal(lib):
    return lambda b, h, q, k: q >= k


@mask
def sliding_window(lib):
    width = 9
    return lambda b, h, q, k: (q - k >= 0) & (q - k <= width)


@mask
def prefix_lm(lib):
    prefix = 13
    return lambda b, h, q, k: (k < prefix) | (k <= q)


@mask
def dilated_sliding_window(lib):
    width, step = 24, 3
    return lambda b, h, q, k: (abs(q - k) <= width) & ((q - k) % step == 0)


@mask
def longformer(lib):
    def function(b, h, q, k):
        near = abs(q - k) <= 6
        return near | (q < 2) | (k < 2)

    return function


@mask
def heads_differ(lib):
    return lambda b, h, q, k: q - k <= 2**3 * (h + 1)


@mask
def natten_2d(lib):
    xp = lib.xp
    width, radius = 8, 2

    def function(b, h, q, k):
        row, column = q // width, q % width
        centre_row = xp.clip(row, radius, width - 1 - radius)
        centre_column = xp.clip(column, radius, width - 1 - radius)
        return (abs(centre_row - k // width) <= radius) & (abs(centre_column - k % width) <= radius)

    return function


@mask
def natten_tiled(lib):
    xp = lib.xp
    width, tile, radius = 8, 4, 2

    def place(i):
        which, inner = i // (tile * tile), i % (tile * tile)
        tiles = width // tile
        return which // tiles * tile + inner // tile, which % tiles * tile + inner % tile

    def function(b, h, q, k):
        (q_row, q_column), (k_row, k_column) = place(q), place(k)
        rows = xp.clip(q_row, radius, width - 1 - radius) - k_row
        columns = xp.clip(q_column, radius, width - 1 - radius) - k_column
        return (abs(rows) <= radius) & (abs(columns) <= radius)

    return function


@mask
def natten_morton(lib):
    xp = lib.xp
    radius, width = 2, 8

    def every_second_bit(i):
        return (i & 1) | ((i >> 1) & 2) | ((i >> 2) & 4)

    def function(b, h, q, k):
        rows = xp.clip(every_second_bit(q >> 1), radius, width - 1 - radius)
        columns = xp.clip(every_second_bit(q), radius, width - 1 - radius)
        return (abs(rows - every_second_bit(k >> 1)) <= radius) & (
            abs(columns - every_second_bit(k)) <= radius
        )

    return function


@mask
def sliding_tile_2d(lib):
    xp = lib.xp
    width, tile, reach = 8, 2, 1

    def tile_of(i):
        return i // width // tile, i % width // tile

    def function(b, h, q, k):
        (q_row, q_column), (k_row, k_column) = tile_of(q), tile_of(k)
        last = width // tile - 1
        q_row = xp.clip(q_row, reach, last - reach)
        q_column = xp.clip(q_column, reach, last - reach)
        return (abs(q_row - k_row) <= reach) & (abs(q_column - k_column) <= reach)

    return function


@mask
def sliding_tile_3d(lib):
    size, tile = (4, 4, 4), (2, 2, 2)

    def coordinates(i):
        return (
            i // (size[1] * size[2]) // tile[0],
            i // size[2] % size[1] // tile[1],
            i % size[2] // tile[2],
        )

    def function(b, h, q, k):
        seen = True
        for ours, theirs, reach in zip(coordinates(q), coordinates(k), (0, 1, 0), strict=True):
            seen = seen & (abs(ours - theirs) <= reach)
        return seen

    return function


@mask
def sparse_video_spatial(lib):
    frame = 16
    return lambda b, h, q, k: (abs(q // frame - k // frame) <= 1) | (k < frame // 2)


@mask
def sparse_video_temporal(lib):
    frame, text, band = 16, 5, 3

    def function(b, h, q, k):
        is_text = (q < text) | (k < text)
        return is_text | (abs(q % frame - k % frame) < band)

    return function


@mask
def block_diffusion(lib):
    xp = lib.xp
    half, block = LENGTH // 2, 8

    def function(b, h, q, k):
        q_clean, k_clean = q >= half, k >= half
        q_block = xp.where(q_clean, (q - half) // block, q // block)
        k_block = xp.where(k_clean, (k - half) // block, k // block)
        diagonal = (q_block == k_block) & (q_clean == k_clean)
        offset = (q_block > k_block) & k_clean & ~q_clean
        clean = (q_block >= k_block) & k_clean & q_clean
        return diagonal | offset | clean

    return function


@mask
def shifted_by_head_bits(lib):
    return lambda b, h, q, k: ((q ^ k) & (1 << h)) == 0


# ---- Masks that read arrays


@mask
def documents(lib):
    ids = lib.array(_sorted_ids(5, 1))
    return lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)


@mask
def documents_of_batch_int32(lib):
    ids = lib.array(np.stack([_sorted_ids(4, 2), _sorted_ids(7, 3)]).astype(np.int32))
    return lambda b, h, q, k: ids[b, q] == ids[b, k]


@mask
def documents_with_inner_mask(lib):
    ids_of = _sorted_ids(5, 4)
    starts = lib.array(np.searchsorted(ids_of, np.arange(5)))
    ids = lib.array(ids_of)

    def inner(b, h, q, k):
        return (k < 3) | (q - k <= 4)

    def function(b, h, q, k):
        q_inner, k_inner = q - starts[ids[q]], k - starts[ids[k]]
        return (ids[q] == ids[k]) & inner(b, h, q_inner, k_inner)

    return function


@mask
def padding_lengths(lib):
    lengths = lib.array(np.array([40, 64]))
    return lambda b, h, q, k: (k < lengths[b]) & (q < lengths[b])


@mask
def padding_table(lib):
    table = lib.array(_random(5).random((BATCH, LENGTH)) < 0.7)
    return lambda b, h, q, k: table[b, k] & (k <= q)


@mask
def shared_prefix(lib):
    owner = lib.array(np.repeat([-1, 0, 1, 2], 16))
    return lambda b, h, q, k: ((owner[k] == -1) | (owner[k] == owner[q])) & (k <= q)


@mask
def flamingo(lib):
    media = lib.array(_sorted_ids(4, 6))
    per_media = 16
    return lambda b, h, q, k: media[q] == k // per_media


@mask
def speculation_tree(lib):
    xp = lib.xp
    prefix, n = 48, 16
    ancestors = np.tril(_random(7).random((n, n)) < 0.4) | np.eye(n, dtype=bool)
    tree = lib.array(ancestors)

    def function(b, h, q, k):
        in_tree = (q >= prefix) & (k >= prefix)
        sees = tree[xp.clip(q - prefix, 0, n - 1), xp.clip(k - prefix, 0, n - 1)]
        return xp.where(in_tree, sees, k <= q) & (k <= q)

    return function


@mask
def speculation_parents(lib):
    parents = lib.array(np.maximum(np.arange(LENGTH) - _random(8).integers(1, 4, LENGTH), 0))

    def function(b, h, q, k):
        at, seen = q, q == k
        for _ in range(6):
            at = parents[at]
            seen = seen | (at == k)
        return seen | (k < 4)

    return function


@mask
def chosen_blocks(lib):
    chosen = lib.array(_random(9).random((BATCH, HEADS, 8, 8)) < 0.5)
    return lambda b, h, q, k: chosen[b, h, q // 8, k // 8]


@mask
def chosen_blocks_of_sizes(lib):
    of_token = lib.array(_sorted_ids(6, 10).astype(np.int32))
    chosen = lib.array(_random(11).random((HEADS, 6, 6)) < 0.5)
    return lambda b, h, q, k: chosen[h][of_token[q]][of_token[k]]


@mask
def chosen_blocks_partly_full(lib):
    chosen = lib.array(_random(12).integers(0, 2, (8, 8)).astype(np.uint8))
    used = lib.array(_random(13).integers(3, 9, 8))
    return lambda b, h, q, k: (chosen[q // 8, k // 8] != 0) & (k % 8 < used[k // 8])


# ---- What transformers combines


@mask
def transformers_chunked(lib):
    chunk = 16
    left = lib.array(np.array([3, 0]))

    def function(b, h, q, k):
        return ((q - left[b]) // chunk == (k - left[b]) // chunk) & (k <= q)

    return function


@mask
def transformers_and_or(lib):
    def either(*several):
        def function(b, h, q, k):
            result = several[0](b, h, q, k)
            for one in several[1:]:
                result = result | one(b, h, q, k)
            return result

        return function

    def both(first, second):
        return lambda b, h, q, k: first(b, h, q, k) & second(b, h, q, k)

    table = lib.array(np.arange(LENGTH) % 7 != 3)
    overlay = either(lambda b, h, q, k: k < 2, lambda b, h, q, k: k > q - 11)
    return both(both(overlay, lambda b, h, q, k: k <= q), lambda b, h, q, k: table[k])


@mask
def transformers_blocks_both_ways(lib):
    block = lib.array(np.where(np.arange(LENGTH) % 20 < 6, np.arange(LENGTH) // 20, -1))

    def function(b, h, q, k):
        image = (block[q] == block[k]) & (block[q] >= 0)
        return image | (k <= q)

    return function


@mask
def transformers_offsets(lib):
    q_offset, kv_offset = lib.array(np.array(5)), 2
    return lambda b, h, q, k: k + kv_offset <= q + q_offset


# ---- Scores


@score
def alibi(lib):
    xp = lib.xp
    return lambda s, b, h, q, k: s + xp.exp2(-((h + 1) * 8.0 / HEADS)) * (k - q)


@score
def alibi_of_slopes(lib):
    slopes = lib.array(np.array([0.5, 0.25, 0.125, 0.0625], np.float32))
    return lambda s, b, h, q, k: s - slopes[h] * abs(q - k)


@score
def softcap(lib):
    xp = lib.xp
    cap = 1.5
    return lambda s, b, h, q, k: cap * xp.tanh(s / cap)


@score
def softcap_by_exponentials(lib):
    xp = lib.xp

    def function(s, b, h, q, k):
        e = xp.exp(-2 * abs(s) / 1.5)
        return xp.where(s < 0, -1.0, 1.0) * 1.5 * (1 - e) / (1 + e)

    return function


@score
def softcap_and_mask(lib):
    xp = lib.xp

    def function(s, b, h, q, k):
        return xp.where(q >= k, 2 * xp.tanh(s / 2), float("-inf"))

    return function


@score
def graphormer(lib):
    distance = lib.array(_random(20).integers(0, 6, (LENGTH, LENGTH)))
    table = lib.array(_random(21).normal(size=(6, HEADS)).astype(np.float32))
    return lambda s, b, h, q, k: s + table[distance[q, k], h]


@score
def graphormer_edges(lib):
    edges = lib.array(_random(22).normal(size=(BATCH, LENGTH, LENGTH)).astype(np.float32))
    weight = lib.array(_random(23).normal(size=HEADS))
    return lambda s, b, h, q, k: s + edges[b][q][k] * weight[h]


@score
def sandwich(lib):
    waves = lib.array(np.cos(np.arange(LENGTH)[:, None] / 10000 ** (np.arange(4) / 4)))

    def function(s, b, h, q, k):
        distance, total = abs(q - k), 0.0
        for i in range(4):
            total = total + waves[distance, i]
        return s + total * (h + 1) / 8

    return function


@score
def activation(lib):
    exp, largest, sin, cos = lib.xp.exp, lib.xp.maximum, lib.xp.sin, lib.xp.cos
    return lambda s, b, h, q, k: s / (1 + exp(-s)) + largest(s, -s) + sin(s) * cos(q - k)


def _erf(x):
    """NumPy has none; tensors and symbols have it as a method."""
    return x.erf() if hasattr(x, "erf") else np.vectorize(math.erf)(x)


@score
def gelu(lib):
    return lambda s, b, h, q, k: 0.5 * s * (1 + _erf(s * 0.5**0.5)) + 0.1 * _erf((q - k) / 8)


@score
def gelu_by_tanh(lib):
    xp = lib.xp

    def function(s, b, h, q, k):
        return 0.5 * s * (1 + xp.tanh((2 / math.pi) ** 0.5 * (s + 0.044715 * s**3)))

    return function


@score
def sigmoid_gate(lib):
    xp = lib.xp
    return lambda s, b, h, q, k: s * (1 + xp.tanh(0.5 * (s - (q - k) * 0.1 * (h + 1)))) / 2


@score
def t5_buckets(lib):
    xp = lib.xp
    table = lib.array(_random(24).normal(size=(32, HEADS)).astype(np.float32))

    def function(s, b, h, q, k):
        size = abs(q - k)
        growth = xp.log(xp.clip(size, 1, LENGTH) / 4) / math.log(60 / 4) * 12
        to_int = growth.int() if hasattr(growth, "int") else growth.astype(np.int64)
        bucket = xp.where(size < 4, size, xp.clip(4 + to_int, 4, 15))
        return s + table[bucket + xp.where(k > q, 16, 0), h]

    return function


@mask
def bands_of_floats(lib):
    return lambda b, h, q, k: (lib.xp.floor(q / 3.75) == k // 3.75) & ((k / 8) % 2.5 < 1.75)


@score
def sawtooth(lib):
    return lambda s, b, h, q, k: s + ((q - k) * 0.25) % 1.5 - ((q + 1) * 0.5) // 3.5


@score
def logarithm_of_distance(lib):
    xp = lib.xp
    return lambda s, b, h, q, k: s - xp.log(abs(q - k) + 1.0) * xp.sqrt(1.0 + s * s)
