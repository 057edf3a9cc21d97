"""attn in JAX: jit, grad, vmap, shard_map, and dot_product_attention with jax.nn's signature.

import attn.jax
out = attn.jax.attention(q, k, v, mask=lambda s: s.key <= s.position)
out = attn.jax.dot_product_attention(q, k, v, is_causal=True)

A call is a foreign function of XLA (ops.py), on the CPU and on NVIDIA GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _attn, merging, nvrtc
from ..errors import InvalidArgument, Unsupported
from ..formula import Formula
from ..operations import asked_for, returned_too
from ..options import HEAD_SLOPES, MASK_ARRAY, OF_PREFIX, OF_SEQUENCES, keep, make_options
from ..trace.tracer import resolve
from .ops import Call, run

__all__ = ["attention", "dot_product_attention", "merge"]


@lru_cache(maxsize=1)
def _prepare() -> None:
    if jax.default_backend() == "gpu":
        nvrtc.load()


# Keywords of attn.attention that are arrays and are not formulas.
_ARRAYS = (
    "alibi",
    "bias",
    "sink",
    *OF_SEQUENCES,
    *OF_PREFIX,
)


@lru_cache(maxsize=4096)
def _stand_in(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of zeros, one row of memory, where only shape and dtype count."""
    return np.broadcast_to(np.zeros(shape[-1:], dtype), shape)


def _array(x: Any, name: str = "") -> Any:
    """An array of JAX, which would cut integers to 32 bits without a word."""
    if isinstance(x, jax.Array):
        return x
    found = jnp.asarray(x)
    if isinstance(x, np.ndarray) and x.dtype == np.int64 and found.dtype == jnp.int32:
        lost = x[x != x.astype(np.int32)]
        if lost.size:
            raise InvalidArgument(
                f"{name} has {lost.flat[0]}; accepted without jax_enable_x64 are numbers of 32 bits"
            )
    return found


def _like(array: Any) -> Any:
    return _stand_in(array.shape, np.dtype(array.dtype))


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    return_lse: bool = False,
    return_max_logit: bool = False,
    mask: Any = None,
    score: Any = None,
    rng: Any = None,
    **options: Any,
) -> Any:
    """attn.attention for jax.jit, jax.grad, jax.vmap and jax.shard_map, and by itself.

    Arguments, layouts, results and errors are those of attn.attention, with these differences.
    Results are new arrays: there is no out= and no lse=. Arrays may be traced; out and lse are
    differentiable by q, k, v, sink, bias, alibi and by the arrays that the score reads. rng may
    be a key (jax.random.key, or its data, uint32 [2]), which a compiled program takes as an
    argument. Numbers are part of what is compiled. Packed sequences need max_seqlen_q and
    max_seqlen_k on a GPU. vmap adds to the batch where nothing tells the sequences apart, else one
    element runs after the other, and so where max_logit is asked for. max_logit has no gradient;
    within jax.shard_map it is of a device's own rows and heads. Errors that show when the program
    runs are JAX's own, with attn's text. There is no second derivative.

    Returns:
        `out`, or a tuple of it and what else is asked for: `(out, lse, max_logit)`; lse is float32
        `[batch, heads_q, seqlen_q]`, natural logarithm, max_logit float32 `[heads_q]`.
    """
    return_lse, return_max_logit = returned_too(return_lse, return_max_logit)
    for name in ("type_q", "type_k", "type_v", "type_o"):
        if options.get(name) is not None:
            raise Unsupported(
                f"{name} is {options[name]!r}; accepted by attn.jax is None, and by attn.attention "
                "any type of a cache"
            )
    _prepare()
    q, k, v = map(_array, (q, k, v))
    arrays: dict[str, Any] = {}
    given: dict[str, Any] = {}  # the same before they were arrays of JAX, by the problem's names
    for name in _ARRAYS:
        if options.get(name) is not None:
            arrays[name] = _array(options[name], name)
            given[name] = options[name]
    if hasattr(mask, "dtype"):
        mask = arrays[MASK_ARRAY] = _array(mask)
        mask = _like(mask)
    placed = {name: _like(array) for name, array in arrays.items() if name in _ARRAYS}
    if "alibi" in arrays:  # as the problem calls it
        name = HEAD_SLOPES if arrays["alibi"].ndim == 2 else "slopes"
        arrays[name] = arrays.pop("alibi")
        given[name] = given.pop("alibi")
    formulas, read = _formulas(mask, score, given)
    arrays.update(read)
    if hasattr(rng, "dtype") and not isinstance(rng, np.integer):
        arrays["rng_state"] = _state(_words(rng))
        rng = _stand_in((2,), np.int64)
    made = make_options(**formulas, rng=rng, **{**options, **placed})
    backend = options.get("backend", "auto")
    if backend != "cuda" and not arrays.keys() & set(OF_SEQUENCES):
        _attn.plan(made, _like(q), _like(k), _like(v), False)  # what is wrong is said now
    call = Call(
        _with_numbers(made),
        tuple(arrays),
        q.ndim,
        made.heads_first,
        made.seqlen_q,
        made.seqlen_k,
        made.seed,
        made.offset,
        backend,
        options.get("algorithm", "auto"),
        options.get("threads", 0),
        bool(options.get("deterministic", False)),
        bool(options.get("batch_invariant", False)),
        return_max_logit,
    )
    out, lse, *others = run(call, q, k, v, tuple(arrays.values()))
    results = (out, lse, *map(jax.lax.stop_gradient, others))
    return asked_for(results, return_lse, return_max_logit)


def _formulas(
    mask: Any, score: Any, given: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Mask and score with stand-ins for the arrays that they read, and these arrays by name.

    given: the arrays that have names already; those of the formulas are added.
    """
    found: dict[str, Any] = {"mask": mask, "score": score}
    arrays: dict[str, Any] = {}
    traced = {
        name: f
        for name, f in found.items()
        if f is not None and not isinstance(f, (str, Formula)) and not hasattr(f, "dtype")
    }
    if traced:
        mask_text, score_text, read = resolve(traced.get("mask"), traced.get("score"))
        texts = {"mask": mask_text, "score": score_text}
        for name in traced:
            found[name] = Formula(texts[name], **read)
            read = {}
    for name in ("mask", "score"):
        if isinstance(found[name], Formula):
            buffers = dict(found[name].buffers)
            for label, value in buffers.items():
                if getattr(value, "ndim", 0) > 0:
                    keep(given, label, value)
                    arrays[label] = _array(value, label)
                    buffers[label] = _like(arrays[label])
            found[name] = Formula(found[name].text, **buffers)
    return found, arrays


def _with_numbers(made: _attn.Options) -> str:
    """The descriptor, where numbers of the mask and score have their values."""
    problem = made.problem
    for name, value in made.buffers.items():
        if isinstance(value, int):
            problem = problem.replace(f"scalar({name}:i32)", f"scalar({name}={int(value)})")
        elif isinstance(value, float):
            with np.errstate(over="ignore"):
                rounded = float(np.float32(value))  # as in a call that is not traced
            problem = problem.replace(f"scalar({name}:f32)", f"scalar({name}={rounded!r})")
    return problem


def _words(rng: Any) -> Any:
    if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
        rng = jax.random.key_data(rng)
    if rng.shape != (2,) or rng.dtype != jnp.uint32:
        raise InvalidArgument(
            f"rng is an array of {rng.dtype} {tuple(rng.shape)}; accepted are a key of "
            "jax.random.key, its uint32 [2], or numbers"
        )
    return rng


@jax.jit
def _state(words: Any) -> Any:
    """Seed and offset as the library reads them, two integers of 64 bits: the key, and 0."""
    return jnp.concatenate((words[::-1], jnp.zeros(2, jnp.uint32)))


def _of_batch(name: str, lengths: Any, query: Any) -> Any:
    """One for each sequence, since an index out of range reads 0."""
    lengths = _array(lengths, name)
    if lengths.dtype != jnp.int32 or lengths.shape != query.shape[:1]:
        raise InvalidArgument(
            f"{name} is of {lengths.dtype} {tuple(lengths.shape)}; accepted is int32 "
            f"[{query.shape[0]}], one for each sequence"
        )
    return lengths


def _of_scores(name: str, array: Any, query: Any, key: Any) -> Any:
    """With four dimensions, each that of the scores or 1, since an index out of range reads 0."""
    scores = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    shape = (1,) * (4 - array.ndim) + array.shape
    if len(shape) != 4 or any(shape[i] not in (1, scores[i]) for i in range(4)):
        raise InvalidArgument(
            f"{name} has shape {array.shape}; accepted is what broadcasts to [B, N, T, S], {scores}"
        )
    return array.reshape(shape)


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """jax.nn.dot_product_attention: same arguments, shapes and meaning.

    query `[B, T, N, H]` or `[T, N, H]`, key and value `[B, S, K, H]` or `[S, K, H]`, K divides N;
    value may have a last dimension of its own. bias and mask broadcast to `[B, N, T, S]`; bias may
    be differentiated. is_causal and local_window_size align the first query with the first key.
    implementation is accepted and changes nothing. A row without keys gives 0, and a residual of
    -inf, where jax.nn gives the mean of the values. The residual, `[B, T, N]`, is float32, and
    differentiable.
    """
    query, key, value = map(jnp.asarray, (query, key, value))
    is_single = query.ndim == 3
    if is_single:
        query, key, value = query[None], key[None], value[None]
    terms = ["key <= query"] if is_causal else []
    if local_window_size is not None:
        left, right = (
            (local_window_size, local_window_size)
            if isinstance(local_window_size, int)
            else local_window_size
        )
        terms += [f"query - key <= {int(left)}", f"key - query <= {int(right)}"]
    buffers: dict[str, Any] = {}
    for name, symbol, argument, lengths in (
        ("lengths_q", "query", "query", query_seq_lengths),
        ("lengths_k", "key", "key_value", key_value_seq_lengths),
    ):
        if lengths is not None:
            buffers[name] = _of_batch(f"{argument}_seq_lengths", lengths, query)
            terms.append(f"{symbol} < {name}[batch]")
    if mask is not None:
        mask = jnp.asarray(mask)
        if mask.dtype != jnp.bool_:
            raise InvalidArgument(f"mask is of {mask.dtype}; accepted is bool, or numbers as bias")
        buffers["allowed"] = _of_scores("mask", mask, query, key)
        terms.append("allowed[batch, head, query, key] != 0")
    if bias is not None:
        bias = _of_scores("bias", jnp.asarray(bias), query, key)
    out, lse = attention(
        query,
        key,
        value,
        bias=bias,
        mask=Formula(" && ".join(terms), **buffers) if terms else None,
        scale=scale,
        return_lse=True,
    )
    residual = lse.swapaxes(1, 2)
    if is_single:
        out, residual = out[0], residual[0]
    return (out, residual) if return_residual else out


def merge(parts: Iterable[tuple[Any, Any]]) -> tuple[Any, Any]:
    """attn.merge for jax.jit, jax.grad and jax.vmap: attention over all keys from that over parts.

    Args:
        parts: `(out, lse)` of each set, out `[batch, seqlen_q, heads, head_dim]` or packed
            `[total_q, heads, head_dim]`, lse `[batch, heads, seqlen_q]` or `[heads, total_q]`. A
            sink belongs to one of them only.

    Returns:
        `(out, lse)`, out of the dtype of the first.
    """
    result: tuple[Any, Any] = merging.merge(parts, jnp, jax.lax.stop_gradient)
    return result
