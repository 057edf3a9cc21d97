"""Caches of keys and values: rows in their types, and appending to them."""

from __future__ import annotations

from . import _attn
from .cache_types import cache_type
from .errors import InvalidArgument
from .options import backend_of, is_set, number_text, size_of

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any

    from .types import Array


def quantize(
    x: Array,
    type: str,
    out: Array,
    scale: Array | None = None,
    *,
    scales: str = "row",
    block: int = 128,
    rotate: int | None = None,
) -> Any:
    """Writes the rows of x, each element rounded to the nearest number of a cache's type.

    >>> import attn, numpy as np
    >>> out = np.empty((2, 68), np.uint8)  # a block of 32 numbers is 34 bytes
    >>> attn.quantize(np.ones((2, 64), np.float32), "q8_0", out).shape
    (2, 68)

    Args:
        x: float32, bfloat16, float16 or float64 `[..., head_dim]`; on a GPU not float64, and
            head_dim is up to 1024. `out` and `scale` are on its device.
        type: "f32", "bf16", "f16", "e4m3", "e5m2", "i8", "q8_0" or "q4_0", as type_k of
            attn.attention.
        out: Written, `[..., row]`: of floats as x and of their dtype; of "e4m3", "e5m2" and "i8"
            uint8 as x; of blocks uint8 with 34 ("q8_0") or 18 ("q4_0") bytes for 32 elements.
        scale: Written where it is given, float32 `[...]`, with "e4m3", "e5m2" and "i8" alone: what
            the elements of a row are divided by, its largest magnitude / 448 (57344; 127). Not
            given, 1.
        scales: Which rows share a scale, that of the largest of them: "row", none; "block",
            `block` neighbours along seqlen, each of which gets it; "head", all of a sequence and
            head, and scale is `[..., heads]`; "tensor", all, and scale is `[1]`. x is `[...,
            seqlen, heads, head_dim]` of "block" and "head".
        rotate: A seed: rows are multiplied by a random orthogonal matrix first, by which outliers
            are spread over all columns (incoherent processing, FlashAttention-3). Scores of q and
            k that are rotated by one seed stay as they are.

    Returns:
        `out`.

    Raises:
        attn.InvalidArgument: names the argument, its value and what is accepted.
    """
    if scales not in ("row", "block", "head", "tensor"):
        raise InvalidArgument(
            f"scales is {scales!r}; accepted are 'row', 'block', 'head' and 'tensor'"
        )
    if scales != "row" and scale is None:
        raise InvalidArgument(f"scale is not given and scales is {scales!r}; accepted is an array")
    rows = size_of("block", block) if scales == "block" else 1
    seed = None if rotate is None else size_of("rotate", rotate)
    _attn.quantize(x, cache_type("type", type), out, scale, scales, rows, seed)
    return out


def append_kv(
    *,
    q: Array | None = None,
    k: Array | None = None,
    v: Array | None = None,
    cache_k: Array | None = None,
    cache_v: Array | None = None,
    out_q: Array | None = None,
    cache_seqlens: Array | None = None,
    positions: Array | None = None,
    rope_positions: Array | None = None,
    page_table: Array | None = None,
    cu_seqlens: Array | None = None,
    seqused: Array | None = None,
    ring: bool = False,
    norm: bool = False,
    norm_eps: float = 1e-6,
    norm_weight_q: Array | None = None,
    norm_weight_k: Array | None = None,
    inv_freq: Array | None = None,
    cos: Array | None = None,
    sin: Array | None = None,
    rope_pairs: str = "halves",
    hadamard: bool = False,
    hadamard_v: bool = False,
    type_k: str | None = None,
    type_v: str | None = None,
    scale_k: Array | None = None,
    scale_v: Array | None = None,
    cache_scale_k: Array | None = None,
    cache_scale_v: Array | None = None,
    backend: str = "auto",
    threads: int = 0,
) -> Any:
    """Writes new rows of K and V to their places in the caches, and of Q, treated on the way.

    In this order, where asked for: RMS norm, rotary embedding, Hadamard rotation, rounding to the
    cache's type. All arrays are on one device.

    Args:
        q, k, v: float32, bfloat16 or float16 `[batch, seqlen, heads, head_dim]`, or `[total, heads,
            head_dim]` with `cu_seqlens`, of the same tokens; any of them.
        cache_k, cache_v: Written at the positions of the new rows and nowhere else: `[batch, rows,
            heads_k, head_dim]`, or `[pages, page_size, heads_k, head_dim]` with `page_table`.
        out_q: Written, as q; may be q. A new array where it is not given, of which rows that are
            left out hold anything.
        cache_seqlens: int32 or int64 `[batch]`, keys that a sequence had: its new rows follow them.
        positions: Or int32 or int64 `[batch, seqlen]` or `[total]`, that of each row; for a row
            with a negative one nothing is written.
        rope_positions: As positions, where the rotary embedding counts otherwise.
        page_table: int32 or int64 `[batch, pages of a sequence]`.
        cu_seqlens: int32 or int64 `[batch + 1]`, first rows of packed sequences.
        seqused: int32 or int64 `[batch]`: so many of a sequence's rows are real, the first ones;
            the others are neither read nor written.
        ring: A position's row is its remainder by the rows of a sequence.
        norm, norm_eps: x / sqrt(mean(x^2) + norm_eps), over rows of q and k.
        norm_weight_q, norm_weight_k: float32, bfloat16 or float16 `[head_dim]`, factors of it.
        inv_freq: float32 `[r / 2]`: the first r columns of q and k are rotated by position *
            inv_freq.
        cos, sin: Or float32 `[positions, r / 2]`, those of each position.
        rope_pairs: "halves" (columns i and r / 2 + i), "interleaved" (2 i and 2 i + 1).
        hadamard, hadamard_v: Rotate q and k, or v, by a Walsh-Hadamard matrix, which is its own
            inverse. Scores stay as they are; attention over a rotated v gives a rotated result.
        type_k, type_v, scale_k, scale_v: As of attn.attention; scales are float32 `[1]` or
            `[heads_k]`, by which rows are divided.
        cache_scale_k, cache_scale_v: Or float32, as the caches without head_dim: one for each key
            and head, chosen as attn.quantize does, and written.
        backend: "auto", "cpu", "cuda" or "reference".
        threads: Workers on a CPU; 0: as many as attn has.

    Returns:
        `out_q`, None where there is no q.

    Raises:
        attn.InvalidArgument: names the argument, its value and what is accepted, as a position past
            the cache, a page that is none, or two rows of one place. Nothing is written then. On a
            GPU values are not looked at: rows without a place are not written.
    """
    # What C++ calls them beside inputs of the same names.
    written = {
        "q": out_q,
        "k": cache_k,
        "v": cache_v,
        "scale_k": cache_scale_k,
        "scale_v": cache_scale_v,
    }
    read = {
        "q": q,
        "k": k,
        "v": v,
        "cu_seqlens": cu_seqlens,
        "seqused": seqused,
        "cache_seqlens": cache_seqlens,
        "positions": positions,
        "rope_positions": rope_positions,
        "page_table": page_table,
        "inv_freq": inv_freq,
        "cos": cos,
        "sin": sin,
        "norm_weight_q": norm_weight_q,
        "norm_weight_k": norm_weight_k,
        "scale_k": scale_k,
        "scale_v": scale_v,
    }
    if not isinstance(rope_pairs, str):
        raise InvalidArgument(
            f"rope_pairs is {rope_pairs!r}; accepted are 'halves' and 'interleaved'"
        )
    return _attn.append_kv(
        {name: array for name, array in read.items() if array is not None},
        {name: array for name, array in written.items() if array is not None},
        "as_q" if type_k is None else cache_type("type_k", type_k),
        "as_q" if type_v is None else cache_type("type_v", type_v),
        rope_pairs,
        float(number_text("norm_eps", norm_eps)),
        is_set("ring", ring),
        is_set("norm", norm),
        is_set("hadamard", hadamard),
        is_set("hadamard_v", hadamard_v),
        backend_of(backend),
        size_of("threads", threads),
    )
