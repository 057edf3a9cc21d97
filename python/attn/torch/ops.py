"""attn's operators of PyTorch, torch.ops.attn: what torch.compile, meta tensors and the modes of
PyTorch see in place of a call into the library.

attention(q, k, v, call, ...) -> (out, lse) is what torch.compile reads. It consists of
forward(q, k, v, call, ...) -> (out, lse) and backward(d_out, d_lse, q, k, v, out, lse, call,
wanted, ...) -> gradients, which record no gradient themselves. attention_max_logit and
forward_max_logit are likewise, and give (out, lse, max_logit). `call` is what stays the same from
call to call, in one text: `describe` writes it. Each argument of an operator costs a call 0.2 to
1 us, so that all others are left out where they have their defaults: the tensors among the
keywords of attn.attention and the buffers of its mask and score, whose names are in `call`; numbers
that may change (`sizes`); scale, softcap and dropout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as are_transforms_active

from .. import _attn
from ..cache_types import cache_type, head_dim_of
from ..errors import InvalidArgument
from ..formula import Formula, reads
from ..options import (
    HEAD_SLOPES,
    MASK_ARRAY,
    OF_CACHES,
    OF_PREFIX,
    OF_SEQUENCES,
    is_set,
    keep,
    make_options,
    rng_state,
    window_sides,
)
from ..trace.buffers import loadable
from ..trace.expression import Expr, finish
from .flops import Counting
from .second import once, refuse_forward_mode
from .shapes import check_shapes, empty_as, last_contiguous
from .trace import traced
from .transforms import for_each, in_vmap_of, rule

_REST = (
    "Tensor[]? tensors=None, SymInt[] sizes=[], float? scale=None, float softcap=0.0, "
    "float dropout=0.0"
)
_LIBRARY = torch.library.Library("attn", "DEF")
for _name in ("forward", "attention"):
    for _suffix, _results in (("", "(Tensor, Tensor)"), ("_max_logit", "(Tensor, Tensor, Tensor)")):
        _LIBRARY.define(
            f"{_name}{_suffix}(Tensor q, Tensor k, Tensor v, str call, {_REST}) -> {_results}",
            tags=(torch.Tag.pt2_compliant_tag,),
        )
_LIBRARY.define(
    "backward(Tensor d_out, Tensor d_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"str call, str wanted, {_REST}) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)

# Keywords of attn.attention that are tensors; all other names are buffers of mask and score.
KEYWORDS = frozenset({"sink", "alibi", "bias", "rng", *OF_SEQUENCES, *OF_PREFIX, *OF_CACHES})


_SEPARATOR = "\x1f"  # between the fields of a call's text; in no formula


def describe(
    names: Iterable[str],
    mask: str,
    score: str,
    causal: bool,
    layout: str | None,
    backend: str,
    algorithm: str,
    deterministic: bool,
    batch_invariant: bool,
    type_k: str,
    type_v: str,
) -> str:
    """The text of a call. names: of its tensors."""
    return _SEPARATOR.join(
        (
            ",".join(names), mask, score, "causal" if causal else "", layout or "", backend,
            algorithm, "deterministic" if deterministic else "",
            "batch_invariant" if batch_invariant else "", type_k, type_v,
        )
    )  # fmt: skip


# Options of calls without anything beside their text. A program uses few, each many times.
_KNOWN: dict[str, _attn.Options] = {}
_MOST_KNOWN = 4096


def options(
    call: str,
    tensors: Sequence[Tensor] | None = None,
    sizes: Sequence[int] = (),
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
) -> _attn.Options:
    """The library's options of an operator's arguments.

    tensors: rng is int64 [2] on q's device. sizes: none, or max_seqlen_q, max_seqlen_k, threads,
    seqlen_prefix and, where there is a window, its two sides; 0 is none.
    """
    is_text_alone = not (tensors or sizes or softcap or dropout) and scale is None
    if is_text_alone and call in _KNOWN:
        return _KNOWN[call]
    names, mask, score, causal, layout, backend, algorithm, *promises, type_k, type_v = call.split(
        _SEPARATOR
    )
    keywords: dict[str, Any] = {}
    buffers: dict[str, Tensor] = {}
    for name, tensor in zip(names.split(","), tensors or (), strict=False):
        (keywords if name in KEYWORDS else buffers)[name] = tensor
    formulas: dict[str, Any] = {"mask": mask or None, "score": score or None}
    if buffers:
        first = "mask" if mask else "score"
        formulas[first] = Formula(formulas[first], **buffers)
    seqlen_q, seqlen_k, threads, prefix, *window = sizes or (0, 0, 0, 0)
    made = make_options(
        **formulas,
        **keywords,
        scale=scale,
        causal=bool(causal),
        window=(window[0], window[1]) if window else None,
        softcap=softcap,
        dropout=dropout,
        layout=layout or None,
        max_seqlen_q=seqlen_q,
        max_seqlen_k=seqlen_k,
        backend=backend,
        algorithm=algorithm,
        threads=threads,
        deterministic="deterministic" in promises,
        batch_invariant="batch_invariant" in promises,
        seqlen_prefix=prefix or None,
        type_k=type_k or None,
        type_v=type_v or None,
    )
    if is_text_alone:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[call] = made
    return made


def _named(call: str, tensors: Sequence[Tensor] | None) -> dict[str, Tensor]:
    return dict(zip(call.partition(_SEPARATOR)[0].split(","), tensors or (), strict=False))


def _layout(call: str) -> str:
    return call.split(_SEPARATOR)[4]


def _cache_types(call: str) -> list[str]:
    """Of k and of v; "" for that of q."""
    return call.split(_SEPARATOR)[-2:]


_COUNTING = Counting(_named, _layout)


def _forward(q: Tensor, k: Tensor, v: Tensor, call: str, *rest: Any) -> tuple[Tensor, Tensor]:
    out, lse = _attn.forward(options(call, *rest), q, k, v, None, True, None, True)
    return out, lse


def _forward_max_logit(q: Tensor, k: Tensor, v: Tensor, call: str, *rest: Any) -> Any:
    return _attn.forward(options(call, *rest), q, k, v, None, True, None, True, True)


def _backward(
    d_out: Tensor,
    d_lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    call: str,
    wanted: str,
    tensors: Sequence[Tensor] | None = None,
    *rest: Any,
) -> list[Tensor]:
    names = buffer_names(wanted.split(","), _named(call, tensors))
    made = options(call, tensors, *rest)
    d_out, d_lse = last_contiguous(d_out), d_lse.contiguous()
    return list(_attn.backward(made, d_out, q, k, v, out, lse, names, d_lse, None, True))


def buffer_names(wanted: list[str], tensors: dict[str, Tensor]) -> list[str]:
    """The names that the library gives to the tensors of keywords."""
    if "alibi" in wanted and "alibi" in tensors:
        slopes = HEAD_SLOPES if tensors["alibi"].dim() == 2 else "slopes"
        return [slopes if name == "alibi" else name for name in wanted]
    return wanted


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, call: str, *rest: Any) -> tuple[Tensor, Tensor]:
    _COUNTING.register()
    names = call.partition(_SEPARATOR)[0].split(",")
    type_k, type_v = _cache_types(call)
    check_shapes(q, k, v, _layout(call) == "bhsd", "page_table" in names, type_k, type_v)
    if q.dim() == 3:
        lse_shape = [q.shape[1], q.shape[0]]
    elif _layout(call) == "bhsd":
        lse_shape = [q.shape[0], q.shape[1], q.shape[2]]
    else:
        lse_shape = [q.shape[0], q.shape[2], q.shape[1]]
    lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = empty_as(q, [*q.shape[:-1], head_dim_of(type_v, v.shape[-1])])
    return out, q.new_empty(lse_shape, dtype=lse_dtype)


def _forward_max_logit_fake(q: Tensor, k: Tensor, v: Tensor, call: str, *rest: Any) -> Any:
    out, lse = _forward_fake(q, k, v, call, *rest)
    return out, lse, lse.new_empty([lse.shape[-2]])


def _backward_fake(
    d_out: Tensor,
    d_lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    call: str,
    wanted: str,
    tensors: Sequence[Tensor] | None = None,
    *rest: Any,
) -> list[Tensor]:
    known = _named(call, tensors)
    known.update(q=q, k=k, v=v)
    return [
        empty_as(known[name], known[name].shape)
        if name in ("q", "k", "v")
        else q.new_empty(known[name].shape, dtype=torch.float32)
        for name in wanted.split(",")
    ]


_LIBRARY.impl("forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("forward_max_logit", _forward_max_logit, "CompositeExplicitAutograd")
_LIBRARY.impl("backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("attn::forward", _forward_fake, lib=_LIBRARY)
torch.library.register_fake("attn::forward_max_logit", _forward_max_logit_fake, lib=_LIBRARY)
torch.library.register_fake("attn::backward", _backward_fake, lib=_LIBRARY)


for _name, _rows, _joins in (
    ("forward", 3, True), ("forward_max_logit", 3, False), ("backward", 7, True),
):  # fmt: skip
    torch.library.register_vmap(
        f"attn::{_name}",
        rule(getattr(torch.ops.attn, _name).default, _rows, _SEPARATOR, last_contiguous, _joins),
        lib=_LIBRARY,
    )


def _backward_of_batch(*given: Any) -> Any:
    op = torch.ops.attn.backward.default
    return for_each(lambda *rows: op(*rows, *given[7:]), *given[:7])


_LIBRARY.impl("backward", _backward_of_batch, "Batched")


class _Attention(torch.autograd.Function):
    """(max_logit, call, numbers, q, k, v, *tensors) -> (out, lse), of the operators' arguments:
    `numbers` is what follows the tensors there. max_logit: whether it is the third result.
    """

    generate_vmap_rule = True  # from those of the operators

    @staticmethod
    def forward(max_logit: bool, call: str, numbers: tuple[Any, ...], *given: Tensor) -> Any:
        q, k, v, *tensors = given
        if tensors and are_transforms_active():
            q = last_contiguous(in_vmap_of(tensors, q))
        of_ops = torch.ops.attn
        op = of_ops.forward_max_logit.default if max_logit else of_ops.forward.default
        return op(q, k, v, call, *_rest(tensors, numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, call, numbers, q, k, v, *tensors = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(q, k, v, *output[:2], *tensors)
        ctx.call = call
        ctx.numbers = numbers

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        refuse_forward_mode()

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor, *_: Any) -> Any:
        saved = ctx.saved_tensors
        q, k, v, out, lse, *tensors = saved
        every = [q, k, v, *tensors]
        names = ["q", "k", "v", *ctx.call.split(_SEPARATOR)[0].split(",")]
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[3:]) if needed]
        result: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        with torch.no_grad():
            found = torch.ops.attn.backward.default(
                d_out, d_lse, q, k, v, out, lse, ctx.call, ",".join([names[i] for i in wanted]),
                *_rest(tensors, ctx.numbers),
            )  # fmt: skip
            for i, gradient in zip(wanted, found, strict=True):
                result[3 + i] = gradient.to(every[i].dtype)
        return once(result, d_out, d_lse, *saved) if torch.is_grad_enabled() else tuple(result)


def _rest(tensors: Sequence[Tensor], numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """The last arguments of an operator up to the last that is not its default."""
    sizes, scale, softcap, dropout = numbers
    if dropout:
        count = 5
    elif softcap:
        count = 4
    elif scale is not None:
        count = 3
    else:
        count = 2 if sizes else 1 if tensors else 0
    return (list(tensors) or None, sizes, scale, softcap, dropout)[:count]


def _attention(
    max_logit: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    call: str,
    tensors: Sequence[Tensor] | None = None,
    sizes: Sequence[int] = (),
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
) -> Any:
    """Of an operator: torch.compile would read _Attention.backward as code that records no
    gradient, and so drop a second derivative in place of its refusal.
    """
    numbers = (sizes, scale, softcap, dropout)
    return _Attention.apply(max_logit, call, numbers, q, k, v, *(tensors or ()))


for _name, _max_logit in (("attention", False), ("attention_max_logit", True)):
    _LIBRARY.impl(_name, partial(_attention, _max_logit), "CompositeImplicitAutograd")
    # The transforms of torch.func take an autograd.Function whole, not within what one does.
    _LIBRARY.impl(_name, partial(_attention, _max_logit), "FuncTorchDynamicLayerFrontMode")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    max_logit: bool = False,
    mask: Any = None,
    score: Any = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    rng: Any = None,
    layout: str | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    backend: str = "auto",
    algorithm: str = "auto",
    threads: int = 0,
    deterministic: bool = False,
    batch_invariant: bool = False,
    seqlen_prefix: int | None = None,
    type_k: str | None = None,
    type_v: str | None = None,
    **tensors: Tensor | None,
) -> tuple[Tensor, ...]:
    """(out, lse) through the operators, differentiable, and max_logit where it is asked for; the
    keywords of attn.attention.
    """
    unknown = [name for name, t in tensors.items() if t is not None and name not in KEYWORDS]
    if unknown:
        raise TypeError(f"attention() got an unexpected keyword argument {unknown[0]!r}")
    given = {name: torch.as_tensor(t) for name, t in tensors.items() if t is not None}
    texts = {"mask": "", "score": ""}
    expressions: dict[str, Expr] = {}
    read: list[Tensor] = []
    formulas_read: dict[str, Any] = {}
    for name, formula in (("mask", mask), ("score", score)):
        if not isinstance(formula, Tensor) and hasattr(formula, "__dlpack__"):  # of NumPy
            formula = torch.as_tensor(formula)
        if isinstance(formula, Tensor):
            texts[name] = _allowed(name, formula)
            given[MASK_ARRAY] = formula
        elif isinstance(formula, Formula):
            texts[name] = formula.text
            for n, x in formula.buffers.items():
                if n in KEYWORDS or n in ("q", "k", "v"):
                    raise InvalidArgument(
                        f"buffer {n!r} of {name} has the name of an argument of attention; "
                        "accepted by attn.torch is another name"
                    )
                keep(formulas_read, n, x)
                given[n] = torch.as_tensor(x)
                if given[n].requires_grad and not given[n].dim():
                    raise InvalidArgument(
                        f"{n} is a Tensor that requires a gradient, which a number would lose; "
                        "accepted is a score that reads it, as in lambda s: s.score * tensor"
                    )
        elif isinstance(formula, str):
            texts[name] = formula
        elif formula is not None:
            expressions[name] = traced(formula, name, read)
    if expressions:
        *finished, arrays = finish(*expressions.values())
        texts.update(zip(expressions, finished, strict=True))
        for name, array in arrays.items():
            if name in given:
                raise InvalidArgument(
                    f"buffer {name!r} of a formula has a name that attn gives to the arrays of "
                    "functions; accepted is another name"
                )
            given[name] = loadable(array)
    for name, t in given.items():
        # A mask compares what it reads, and a comparison has no gradient.
        if name not in KEYWORDS and t.requires_grad and not reads(texts["score"], name):
            given[name] = t.detach()
    if dropout:
        if not isinstance(rng, Tensor):
            seed, offset, _ = rng_state(dropout, rng)
            bits = [n - 2**64 if n >= 2**63 else n for n in (seed, offset)]
            rng = torch.tensor(bits, dtype=torch.int64, device=q.device)
        given["rng"] = rng
    sizes: list[int] = []
    if window is not None or max_seqlen_q or max_seqlen_k or threads or seqlen_prefix:
        sizes = [max_seqlen_q or 0, max_seqlen_k or 0, threads, seqlen_prefix or 0]
        sizes += () if window is None else window_sides(window)
    call = describe(
        given, texts["mask"], texts["score"], is_set("causal", causal), layout, backend, algorithm,
        is_set("deterministic", deterministic), is_set("batch_invariant", batch_invariant),
        "" if type_k is None else cache_type("type_k", type_k),
        "" if type_v is None else cache_type("type_v", type_v),
    )  # fmt: skip
    numbers = (sizes, scale, softcap or 0.0, dropout)
    result: tuple[Tensor, ...]
    if torch.compiler.is_compiling():
        rest = _rest(list(given.values()), numbers)
        if max_logit:
            result = torch.ops.attn.attention_max_logit.default(q, k, v, call, *rest)
        else:
            result = torch.ops.attn.attention.default(q, k, v, call, *rest)
    else:
        _COUNTING.register()
        result = _Attention.apply(max_logit, call, numbers, q, k, v, *given.values())
    return result


def _allowed(name: str, mask: Tensor) -> str:
    indices = {2: "query, key", 4: "batch, head, query, key"}.get(mask.dim())
    if indices is None or mask.dtype not in (torch.bool, torch.uint8) or name == "score":
        raise InvalidArgument(
            f"{name} is a tensor of {mask.dtype} {tuple(mask.shape)}; accepted is bool or "
            "uint8 [query, key] or [batch, head, query, key], as a mask"
        )
    return f"{MASK_ARRAY}[{indices}] != 0"
