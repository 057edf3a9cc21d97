"""attn's operators of PyTorch, torch.ops.attn: what torch.compile, meta tensors and the modes of
PyTorch see in place of a call into the library.

forward(q, k, v, tensors, names, ...) -> (out, lse) and backward(d_out, d_lse, q, k, v, out, lse,
tensors, names, ..., wanted) -> gradients. `tensors` are the tensors among the keywords of
attn.attention and the buffers of its mask and score, called `names` (joined by commas); what
follows are its other keywords. Neither operator records a gradient: `attn.torch` does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _attn
from .errors import InvalidArgument
from .expression import Expr, finish
from .formula import Formula
from .options import make_options
from .torch_trace import traced
from .trace import loadable

_STATIC = (
    "str mask, str score, float? scale, bool causal, SymInt[] window, float softcap, "
    "float dropout, str? layout, SymInt[] max_seqlens, str backend, str algorithm, SymInt threads, "
    "bool deterministic"
)
_LIBRARY = torch.library.Library("attn", "DEF")
_LIBRARY.define(
    f"forward(Tensor q, Tensor k, Tensor v, Tensor[] tensors, str names, {_STATIC}) "
    "-> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define(
    "backward(Tensor d_out, Tensor d_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"Tensor[] tensors, str names, {_STATIC}, str wanted) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)

# Keywords of attn.attention that are tensors; all other names are buffers of mask and score.
KEYWORDS = frozenset(
    {
        "sink",
        "alibi",
        "bias",
        "cu_seqlens_q",
        "cu_seqlens_k",
        "seqused_q",
        "seqused_k",
        "page_table",
        "rng",
    }
)


def options(
    tensors: list[Tensor],
    names: str,
    mask: str,
    score: str,
    scale: float | None,
    causal: bool,
    window: list[int],
    softcap: float,
    dropout: float,
    layout: str | None,
    max_seqlens: list[int],
    backend: str,
    algorithm: str,
    threads: int,
    deterministic: bool,
) -> _attn.Options:
    """The library's options of an operator's arguments. rng: int64 [2] on the CPU."""
    keywords: dict[str, Any] = {}
    buffers: dict[str, Tensor] = {}
    for name, tensor in zip(names.split(","), tensors, strict=False):
        (keywords if name in KEYWORDS else buffers)[name] = tensor
    if "rng" in keywords:
        keywords["rng"] = tuple(keywords["rng"].tolist())
    formulas: dict[str, Any] = {"mask": mask or None, "score": score or None}
    if buffers:
        first = "mask" if mask else "score"
        formulas[first] = Formula(formulas[first], **buffers)
    return make_options(
        **formulas,
        **keywords,
        scale=scale,
        causal=causal,
        window=(window[0], window[1]) if window else None,
        softcap=softcap,
        dropout=dropout,
        layout=layout,
        max_seqlen_q=max_seqlens[0],
        max_seqlen_k=max_seqlens[1],
        backend=backend,
        algorithm=algorithm,
        threads=threads,
        deterministic=deterministic,
    )


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: list[Tensor],
    names: str,
    *static: Any,
) -> tuple[Tensor, Tensor]:
    out, lse = _attn.forward(options(tensors, names, *static), q, k, v, None, True, None, True)
    return out, lse


def _backward(
    d_out: Tensor,
    d_lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    tensors: list[Tensor],
    names: str,
    *static: Any,
) -> list[Tensor]:
    wanted = buffer_names(static[-1].split(","), dict(zip(names.split(","), tensors, strict=False)))
    made = options(tensors, names, *static[:-1])
    d_out, d_lse = last_contiguous(d_out), d_lse.contiguous()
    return list(_attn.backward(made, d_out, q, k, v, out, lse, wanted, d_lse, None, True))


def buffer_names(wanted: list[str], tensors: dict[str, Tensor]) -> list[str]:
    """The names that the library gives to the tensors of keywords."""
    if "alibi" in wanted and "alibi" in tensors:
        slopes = "head_slopes" if tensors["alibi"].dim() == 2 else "slopes"
        return [slopes if name == "alibi" else name for name in wanted]
    return wanted


def last_contiguous(t: Tensor) -> Tensor:
    return t if t.stride(-1) == 1 else t.contiguous()


def _forward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: list[Tensor],
    names: str,
    *static: Any,
) -> tuple[Tensor, Tensor]:
    layout = static[7]
    if q.dim() == 3:
        lse_shape = [q.shape[1], q.shape[0]]
    elif layout == "bhsd":
        lse_shape = [q.shape[0], q.shape[1], q.shape[2]]
    else:
        lse_shape = [q.shape[0], q.shape[2], q.shape[1]]
    lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = q.new_empty([*q.shape[:-1], v.shape[-1]])
    return out, q.new_empty(lse_shape, dtype=lse_dtype)


def _backward_fake(
    d_out: Tensor,
    d_lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    tensors: list[Tensor],
    names: str,
    *static: Any,
) -> list[Tensor]:
    known = dict(zip(names.split(","), tensors, strict=False))
    known.update(q=q, k=k, v=v)
    return [
        q.new_empty(known[name].shape, dtype=q.dtype if name in ("q", "k", "v") else torch.float32)
        for name in static[-1].split(",")
    ]


_LIBRARY.impl("forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("attn::forward", _forward_fake, lib=_LIBRARY)
torch.library.register_fake("attn::backward", _backward_fake, lib=_LIBRARY)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, names: str, static: Any, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor
    ) -> Any:
        out, lse = torch.ops.attn.forward(q, k, v, list(tensors), names, *static)
        ctx.save_for_backward(q, k, v, out, lse, *tensors)
        ctx.names = names
        ctx.static = static
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor) -> Any:
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        every = [q, k, v, *tensors]
        names = ["q", "k", "v", *ctx.names.split(",")]
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        found = torch.ops.attn.backward(
            d_out, d_lse, q, k, v, out, lse, tensors, ctx.names, *ctx.static,
            ",".join([names[i] for i in wanted]),
        )  # fmt: skip
        result: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        for i, gradient in zip(wanted, found, strict=True):
            result[2 + i] = gradient.to(every[i].dtype)
        return tuple(result)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
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
    **tensors: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) through the operators, differentiable; the keywords of attn.attention."""
    given = {name: t for name, t in tensors.items() if t is not None}
    unknown = [name for name in given if name not in KEYWORDS]
    if unknown:
        raise TypeError(f"attention() got an unexpected keyword argument {unknown[0]!r}")
    texts = {"mask": "", "score": ""}
    expressions: dict[str, Expr] = {}
    read: list[Tensor] = []
    for name, formula in (("mask", mask), ("score", score)):
        if isinstance(formula, Tensor):
            texts[name] = _allowed(name, formula)
            given["allowed"] = formula
        elif isinstance(formula, Formula):
            texts[name] = formula.text
            given.update({n: torch.as_tensor(x) for n, x in formula.buffers.items()})
        elif isinstance(formula, str):
            texts[name] = formula
        elif formula is not None:
            expressions[name] = traced(formula, name, read)
    if expressions:
        *finished, arrays = finish(*expressions.values())
        texts.update(zip(expressions, finished, strict=True))
        for name, array in arrays.items():
            given[name] = loadable(array)
    if dropout:
        if not isinstance(rng, Tensor):
            rng = torch.tensor((rng, 0) if isinstance(rng, int) else rng, dtype=torch.int64)
        given["rng"] = rng
    sides = [] if window is None else [-1 if side is None else side for side in window]
    lengths = [max_seqlen_q or 0, max_seqlen_k or 0]
    static = (
        texts["mask"], texts["score"], scale, causal, sides, softcap or 0.0, dropout, layout,
        lengths, backend, algorithm, threads, deterministic,
    )  # fmt: skip
    result: tuple[Tensor, Tensor] = _Attention.apply(
        ",".join(given), static, q, k, v, *given.values()
    )
    return result


def _allowed(name: str, mask: Tensor) -> str:
    indices = {2: "query, key", 4: "batch, head, query, key"}.get(mask.dim())
    if indices is None or mask.dtype not in (torch.bool, torch.uint8) or name == "score":
        raise InvalidArgument(
            f"{name} is a tensor of {mask.dtype} {tuple(mask.shape)}; accepted is bool or "
            "uint8 [query, key] or [batch, head, query, key], as a mask"
        )
    return f"allowed[{indices}] != 0"
