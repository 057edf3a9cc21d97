"""Attention on arrays: forward, backward, plans, merging."""

from __future__ import annotations

from . import _attn
from .errors import InvalidArgument
from .options import HEAD_SLOPES, is_set, make_options, rng_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Literal, TypeVar, overload

    from typing_extensions import Unpack

    from .types import Array, Options

    _Array = TypeVar("_Array")  # of q's library
else:  # typing is slow to import

    def overload(function: Any) -> Any:
        return function


@overload
def attention(
    q: _Array,
    k: _Array,
    v: _Array,
    *,
    out: _Array | None = None,
    lse: _Array | None = None,
    return_lse: Literal[False] = False,
    return_max_logit: Literal[False] = False,
    **options: Unpack[Options],
) -> _Array: ...
@overload
def attention(  # noqa: F811
    q: _Array,
    k: _Array,
    v: _Array,
    *,
    out: _Array | None = None,
    lse: _Array | None = None,
    return_lse: Literal[True],
    return_max_logit: Literal[False] = False,
    **options: Unpack[Options],
) -> tuple[_Array, _Array]: ...
@overload
def attention(  # noqa: F811
    q: _Array,
    k: _Array,
    v: _Array,
    *,
    out: _Array | None = None,
    lse: _Array | None = None,
    return_lse: bool,
    return_max_logit: Literal[False] = False,
    **options: Unpack[Options],
) -> _Array | tuple[_Array, _Array]: ...
@overload
def attention(  # noqa: F811
    q: _Array,
    k: _Array,
    v: _Array,
    *,
    out: _Array | None = None,
    lse: _Array | None = None,
    return_lse: bool = False,
    return_max_logit: bool,
    **options: Unpack[Options],
) -> Any: ...
def attention(  # noqa: F811
    q: Array,
    k: Array,
    v: Array,
    *,
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
    return_max_logit: bool = False,
    **options: Unpack[Options],
) -> Any:
    """Exact attention: softmax(scale * q k^T, masked and changed as asked) v.

    Arrays are NumPy's (bfloat16 by ml_dtypes), PyTorch's, JAX's, CuPy's or any with `__dlpack__`,
    all on one device; results are of the library of `q`. Inputs are never copied; the last
    dimension must be contiguous, other strides are free.

    Args:
        q: `[batch, seqlen_q, heads_q, head_dim]`, or `[total_q, heads_q, head_dim]` with
            `cu_seqlens_q`. float32, bfloat16, float16, float64 (on a CPU).
        k: `[batch, seqlen_k, heads_k, head_dim]`, `[total_k, heads_k, head_dim]` with
            `cu_seqlens_k`, or `[pages, page_size, heads_k, head_dim]` with `page_table`. `heads_k`
            divides `heads_q` (MHA, GQA, MQA).
        v: As `k`, with a head_dim of its own.
        out: Array to write, shaped as `q` with v's head_dim; else a new one.
        lse: Array to write the logarithms of the sums of exponentials to (natural, -inf for a row
            that sees nothing), float32 `[batch, heads_q, seqlen_q]` or `[heads_q, total_q]`.
        return_lse: Return `(out, lse)`.
        return_max_logit: Return the largest score of each head as well, last: float32 `[heads_q]`,
            over all queries and the keys that they see, after scale and score, without the sink;
            -inf where none is seen. Not differentiable.

    Options, all by keyword and all optional:
        mask: Which keys a query sees: text such as `"key <= position && key % 2 == 0"`
            (docs/expressions.md), an attn.Formula, an expression, a Python function of the symbols,
            or a bool or uint8 array `[seqlen_q, seqlen_k]` or `[batch, heads_q, seqlen_q,
            seqlen_k]` (sizes of 1 broadcast), true where the key is seen.
        score: How scores change: text, expression or function, as in `"30.0 * tanh(score / 30.0)"`.
        scale: Factor of q k^T; 1 / sqrt(head_dim).
        causal: Keys up to the query's place; the last query stands at the last key.
        window: `(left, right)`, keys around the query's place; -1 or None for no bound.
        softcap: c tanh(score / c).
        alibi: Slopes, float32 `[heads_q]` or `[batch, heads_q]`: score - slope * |place - key|.
        bias: Added to scores: float32, bfloat16 or float16 `[seqlen_q, seqlen_k]` or
            `[batch, heads_q, seqlen_q, seqlen_k]`; sizes of 1 broadcast.
        sink: float32 `[heads_q]`, a logit of each head in the denominator.
        dropout: Probability in [0, 1); needs `rng`.
        rng: Seed or (seed, offset) of dropout, or an int64 array `[2]` of them in q's memory, which
            kernels read while they run: a CUDA graph draws anew at each replay if it is written
            between them. The backward pass must find what the forward pass found. The same numbers
            give the same mask everywhere.
        cu_seqlens_q, cu_seqlens_k: int32 or int64 `[batch + 1]`, first rows of packed sequences.
        max_seqlen_q, max_seqlen_k: Longest packed sequences; needed on a GPU.
        seqused_q, seqused_k: int32 or int64 `[batch]`, lengths in use.
        page_table: int32 or int64 `[batch, pages of a sequence]`, pages of K and V.
        key_list: int32 or int64 `[batch, 1 or heads_k, seqlen_q, n]`, with `cu_seqlens_q` `[1 or
            heads_k, total_q, n]`: each row attends to exactly the keys that its list names, in any
            order.
            What is no key, as -1, adds nothing; a key that stands twice counts twice. Without
            dropout; backward not of paged keys, and on a GPU neither of what a score reads nor
            deterministic.
        prefix_k, prefix_v: `[n, heads_k, head_dim]` and `[n, heads_k, head_dim_v]` in every layout:
            keys that all sequences share and that come before their own, as of a common prompt.
            Those that every query is sure to see are read once for the batch. Masks, scores and
            columns of a bias count keys from the first one of the prefix; lengths are those of own
            keys. Forward only, without dropout, lists of keys and `batch_invariant`.
        prefix_page_table, seqlen_prefix: The same where the prefix lies in pages of k and v, beside
            `page_table`: int32 or int64 `[pages]`, and how many keys the prefix has.
        type_k, type_v: How k and v are stored, where not as q: "f32", "bf16", "f16", or uint8
            arrays of "e4m3", "e5m2" and "i8", or of ggml's blocks "q8_0" and "q4_0", whose last
            dimension is the bytes of a row (attn.quantize). Any pair beside any q but of float64.
            Forward only.
        scale_k, scale_v: Factors of "e4m3", "e5m2" and "i8": float32 `[1]`, `[heads_k]`, or one a
            key and head, laid out as k without head_dim; 1.
        type_q, scale_q: "e4m3" or "e5m2": q is uint8, of 8-bit floats, and its factors likewise.
            Forward only.
        type_o: Of `out`: "f32" beside q of bfloat16 or float16, so that parts which attn.merge
            joins are rounded once; forward only. Beside type_q: "bf16", "f16" or "f32"; "bf16", and
            `out` must be given, but where it is "f32".
        layout: "bshd" as above; "bhsd": tensors of rank 4 are `[batch, heads, seqlen, head_dim]`,
            results too; "thd": packed.
        backend: "auto", "cpu", "cuda", or "reference" (fp64 arithmetic, slow).
        algorithm: "auto", or a paper's: "standard", "flash_attention", "flash_attention_2",
            "flash_decoding", "memory_efficient", "block_sparse".
        threads: Workers on a CPU; 0: as many as there is work for.
        deterministic: Only kernels that give the same bits each time, as all do but some of the
            backward pass on a GPU. Gradients of buffers whose elements many queries or keys share
            (ALiBi's slopes) are summed exactly there, in 56 bytes of workspace an element.
        batch_invariant: A sequence has the same bits in every batch, whatever the other sequences
            and the padding of keys or page table; forward only.

    Masks are joined with "and"; scores change in the order softcap, alibi, bias, score.

    Returns:
        `out`, or a tuple of it and what else is asked for: `(out, lse, max_logit)`.

    Raises:
        attn.InvalidArgument: (a ValueError) names the argument, its value and what is accepted.
        attn.Unsupported: (a NotImplementedError) no kernel takes the problem.
        attn.OutOfMemory: (a MemoryError).
        TypeError: q, k or v is no array, or a keyword is not known.

    Thread-safe; other Python threads run meanwhile.
    """
    made = make_options(**options)
    asked = returned_too(return_lse, return_max_logit)
    wanted = asked[0] if lse is None else lse
    result = _attn.forward(made, q, k, v, out, wanted, None, False, asked[1])
    return asked_for(result, *asked)


def returned_too(return_lse: Any, return_max_logit: Any) -> tuple[bool, bool]:
    """The two flags, checked."""
    return is_set("return_lse", return_lse), is_set("return_max_logit", return_max_logit)


def asked_for(result: tuple[Any, ...], return_lse: bool, return_max_logit: bool) -> Any:
    """Of (out, lse) or (out, lse, max_logit) those that are returned; out alone as it is."""
    if return_max_logit:
        return result if return_lse else (result[0], result[2])
    return result if return_lse else result[0]


def attention_backward(
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    d_lse: Array | None = None,
    gradients: Sequence[str] = ("q", "k", "v"),
    **options: Unpack[Options],
) -> dict[str, Any]:
    """Gradients of attention, given that of its output.

    Args:
        d_out: d loss / d out, shaped as `out`.
        d_lse: d loss / d lse, shaped as `lse`, where the loss depends on it.
        q, k, v: As in the forward call.
        out, lse: What the forward call gave.
        gradients: Which to compute: "q", "k", "v", "sink", "bias", "alibi", and names of float32,
            bfloat16 or float16 buffers of the score.
        **options: Those of the forward call, `dropout` and `rng` included.

    Returns:
        A dict from each name to its gradient: like the tensor for q, k and v (summed over the query
        heads of a group), float32 for the others.

    Raises:
        As `attention`. attn.Unsupported for paged K and V.
    """
    return _backward(d_out, q, k, v, out, lse, d_lse, gradients, options, None)


def _backward(
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    d_lse: Array | None,
    gradients: Sequence[str],
    options: Options,
    plan: _attn.Plan | None,
) -> dict[str, Any]:
    alibi = options.get("alibi")
    slopes = HEAD_SLOPES if alibi is not None and len(alibi.shape) == 2 else "slopes"
    wanted = [slopes if name == "alibi" else name for name in gradients]
    found = _attn.backward(make_options(**options), d_out, q, k, v, out, lse, wanted, d_lse, plan)
    return dict(zip(gradients, found, strict=True))


class Plan:
    """How a problem will run, decided once: `attn.plan` makes it.

    `forward`, which calling the plan is too, and `backward` take arrays of the shapes, dtypes and
    device of those that the plan was made for, with the options given then. Arrays, rng, and
    numbers that a mask or score captures may be others; another problem is refused.
    """

    def __init__(self, forward: _attn.Plan, backward: _attn.Plan | None, options: Options):
        self._forward = forward
        self._backward = backward
        self._options = options
        self._described = make_options(**options).problem

    def _with(self, options: Options) -> tuple[_attn.Options, Options]:
        merged: Options = {**self._options, **options}
        made = make_options(**merged)
        if made.problem != self._described:
            raise InvalidArgument(
                f"the options describe {made.problem!r}, the plan is of {self._described!r}; "
                "accepted are other arrays and numbers for the same problem"
            )
        return made, merged

    @property
    def problem(self) -> str:
        """The problem's descriptor."""
        return self._forward.problem

    @property
    def backend(self) -> str:
        """What runs it: "cpu", "cuda" or "reference"."""
        return self._forward.backend

    @property
    def workspace_bytes(self) -> int:
        """Memory that a call uses beside its tensors; an upper bound on a CPU."""
        plans = (self._forward, self._backward)
        return max(plan.workspace_bytes for plan in plans if plan is not None)

    def forward(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        out: Array | None = None,
        lse: Array | None = None,
        return_lse: bool = False,
        return_max_logit: bool = False,
        **options: Unpack[Options],
    ) -> Any:
        """As attn.attention; `options` are tensors that differ from those of the plan."""
        made, _ = self._with(options)
        asked = returned_too(return_lse, return_max_logit)
        wanted = asked[0] if lse is None else lse
        result = _attn.forward(made, q, k, v, out, wanted, self._forward, False, asked[1])
        return asked_for(result, *asked)

    __call__ = forward

    def backward(
        self,
        d_out: Array,
        q: Array,
        k: Array,
        v: Array,
        out: Array,
        lse: Array,
        *,
        d_lse: Array | None = None,
        gradients: Sequence[str] = ("q", "k", "v"),
        **options: Unpack[Options],
    ) -> dict[str, Any]:
        """As attn.attention_backward."""
        if self._backward is None:
            raise InvalidArgument("the plan is of the forward pass; accepted is backward=True")
        _, options = self._with(options)
        return _backward(d_out, q, k, v, out, lse, d_lse, gradients, options, self._backward)

    def __str__(self) -> str:
        return "\n".join(str(plan) for plan in (self._forward, self._backward) if plan is not None)


def plan(
    q: Array, k: Array, v: Array, *, backward: bool = False, **options: Unpack[Options]
) -> Plan:
    """How `attention` with these arrays and options runs, and why: `print(attn.plan(q, k, v))`.

    Args:
        q, k, v: Arrays of the shapes, dtypes and device that calls will have.
        backward: Plan the backward pass as well.
        **options: Those of `attention`.
    """
    made = make_options(**options)
    return Plan(
        _attn.plan(made, q, k, v, False),
        _attn.plan(made, q, k, v, True) if backward else None,
        options,
    )


def tiles(
    q: Array,
    k: Array,
    v: Array,
    *,
    block_q: int = 64,
    block_k: int = 64,
    batch: int = 0,
    head: int = 0,
    **options: Unpack[Options],
) -> list[str]:
    """Which tiles of a head's scores attn knows to be left out by the mask, and which to be seen.

    >>> import attn, numpy as np
    >>> q = k = v = np.ones((1, 256, 2, 8), np.float32)
    >>> attn.tiles(q, k, v, causal=True)
    ['.   ', '#.  ', '##. ', '###.']

    Kernels ask the same of the tiles that they compute, whose sizes a plan says: what is left out
    costs nothing, and what is seen whole asks the mask nothing.

    Args:
        q, k, v: Arrays of the shapes, dtypes and device that calls will have; all sequences have
            the same lengths.
        block_q, block_k: Queries and keys of a tile; the last ones may be smaller.
        batch, head: Of which sequence and query head.
        **options: Those of `attention`.

    Returns:
        A text for each block of queries, a character for each block of keys: " " no key is seen by
        any query, "#" all by all, "." neither is known.
    """
    return _attn.tiles(make_options(**options), q, k, v, block_q, block_k, batch, head)


def compile(
    q: Array, k: Array, v: Array, *, backward: bool = False, **options: Unpack[Options]
) -> Plan:
    """A plan whose kernels are compiled and loaded, so that no call of it waits for a compiler.

    >>> import attn, numpy as np
    >>> q = k = v = np.ones((1, 4, 2, 8), np.float32)
    >>> attend = attn.compile(q, k, v, causal=True)
    >>> attend(q, k, v).shape
    (1, 4, 2, 8)

    On a GPU the call is made once with these arrays, since kernels depend on how they are aligned;
    kernels are kept on disk for later processes. Calls may then be captured in a CUDA graph.

    Args:
        q, k, v: Arrays of the shapes, strides, dtypes and device that calls will have.
        backward: Prepare the backward pass as well.
        **options: Those of `attention`.
    """
    made = plan(q, k, v, backward=backward, **options)
    if made.backend == "cuda":
        out, lse = made.forward(q, k, v, return_lse=True)
        if backward:
            made.backward(out, q, k, v, out, lse)
    return made


def merge(parts: Iterable[tuple[Array, Array]]) -> tuple[Any, Any]:
    """Attention over all keys from attention over disjoint sets of them.

    attn.torch.merge and attn.jax.merge are differentiable.

    Args:
        parts: `(out, lse)` of each set, as `attention(..., return_lse=True)` gives them, of layout
            "bshd" or packed, all on one device; on a GPU up to 32, and arrays of JAX
            there by attn.jax.merge. A sink belongs to one of them only.

    Returns:
        `(out, lse)`, out of the dtype of the first.
    """
    result: tuple[Any, Any] = _attn.merge(list(parts))
    return result


def dropout_mask(kept: Array, dropout: float, rng: int | tuple[int, int] | Array) -> Array:
    """Which elements of P a call with `dropout` and `rng` keeps, bit for bit.

    Args:
        kept: bool or uint8 `[batch, heads_q, seqlen_q, seqlen_k]`, written: true where P is kept.
            Queries and keys count from 0 within their sequence, of packed and paged ones too.
        dropout: Probability in [0, 1).
        rng: Seed or (seed, offset), or an int64 array `[2]` of them in kept's memory.

    Returns:
        `kept`.
    """
    _attn.dropout_mask(kept, dropout, *rng_state(dropout, rng))
    return kept
