"""Attention in PyTorch: by autograd, or by the operators of ops.py where something traces it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import torch
import torch.autograd.forward_ad as _forward_ad
from torch import Tensor
from torch._C import _are_functorch_transforms_active as _are_transforms_active
from torch._C import _is_any_autocast_enabled
from torch.compiler import is_dynamo_compiling as _is_dynamo_compiling

from .. import _attn, merging
from ..arrays import is_observed
from ..errors import Error, InvalidArgument
from ..operations import asked_for, returned_too
from ..options import make_options, refuse_more_than_number
from . import float8
from . import nested as torch_nested
from . import ops as torch_ops
from .rng import draw_rng
from .second import once
from .shapes import last_contiguous
from .transforms import for_each, is_batch

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..types import Array, Problem

_QKV = ("q", "k", "v")


def _gradients(
    options: Any,
    wanted: Sequence[str],
    d_out: Tensor | None,
    d_lse: Tensor | None,
    saved: Sequence[Tensor],
) -> Sequence[Any]:
    """saved: q, k, v, out, lse."""
    if is_batch(d_out) or is_batch(d_lse):
        return for_each(lambda x, y: _gradients(options, wanted, x, y, saved), d_out, d_lse)
    q, k, v, out, lse = saved
    if d_out is None:
        d_out = torch.zeros_like(out)
    elif not d_out.is_contiguous():
        d_out = last_contiguous(d_out)
    d_lse = None if d_lse is None else d_lse.contiguous()
    return _attn.backward(options, d_out, q, k, v, out, lse, wanted, d_lse, None, True)


class _Plain(torch.autograd.Function):
    """Straight into the library: out, and gradients of q, k and v alone, where all three want one.

    Both directions are functions of C++, without a line of Python between PyTorch and the library.
    """

    forward = staticmethod(_attn.recorded_forward)  # (ctx, options, q, k, v) -> out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        if not torch.is_grad_enabled():
            try:
                return _attn.recorded_backward(ctx, d_out)
            except InvalidArgument:
                if not is_batch(d_out):
                    raise
                return tuple(for_each(lambda d: _attn.recorded_backward(ctx, d), d_out))
        saved = ctx.saved_tensors
        with torch.no_grad():
            found = _gradients(ctx.options, _QKV, d_out, None, saved)
        return (None, *once(found, d_out, *saved))


# What _Plain.apply calls in the end, where no transform of functorch is active: 2 of its 6 us.
_apply_plain: Any = super(torch.autograd.Function, _Plain).apply  # pyright: ignore


class _Eager(torch.autograd.Function):
    """Likewise with lse as an output, and other tensors, `names` as the library calls them; with
    max_logit as an output too where it is asked for.
    """

    @staticmethod
    def forward(
        ctx: Any,
        options: Any,
        names: list[str],
        return_max_logit: bool,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *tensors: Tensor,
    ) -> Any:
        results = _attn.forward(options, q, k, v, None, True, None, True, return_max_logit)
        out, lse = results[:2]
        ctx.mark_non_differentiable(*results[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *tensors)
        ctx.options = options
        ctx.names = names
        return results

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, *_: None) -> Any:
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        tensors = saved[5:]
        names = [*_QKV, *ctx.names]
        needed = ctx.needs_input_grad[3:]
        wanted = [name for name, is_needed in zip(names, needed, strict=True) if is_needed]
        with torch.no_grad():
            gradients = _gradients(ctx.options, wanted, d_out, d_lse, saved[:5])
            found = dict(zip(wanted, gradients, strict=True))
            for name, tensor in zip(ctx.names, tensors, strict=True):
                if name in found and found[name].dtype != tensor.dtype:
                    found[name] = found[name].to(tensor.dtype)
        results = tuple(map(found.get, names))
        if torch.is_grad_enabled():
            results = once(results, d_out, d_lse, *saved)
        return (None, None, None, *results)


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[False] = False,
    return_max_logit: Literal[False] = False,
    dropout: float = 0.0,
    rng: int | tuple[int, int] | Array | None = None,
    **options: Unpack[Problem],
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[True],
    return_max_logit: Literal[False] = False,
    dropout: float = 0.0,
    rng: int | tuple[int, int] | Array | None = None,
    **options: Unpack[Problem],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: bool,
    return_max_logit: Literal[False] = False,
    dropout: float = 0.0,
    rng: int | tuple[int, int] | Array | None = None,
    **options: Unpack[Problem],
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: bool = False,
    return_max_logit: bool,
    dropout: float = 0.0,
    rng: int | tuple[int, int] | Array | None = None,
    **options: Unpack[Problem],
) -> Any: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: bool = False,
    return_max_logit: bool = False,
    dropout: float = 0.0,
    rng: Any = None,
    **options: Any,
) -> Any:
    """attn.attention; out and lse are differentiable by all that the scores are made of.

    Arguments, layouts, results and errors are those of attn.attention, with these differences.
    Results are new tensors: there is no out= and no lse=. out lies in memory as q does, in the
    order of its dimensions but the last, and gradients as what they belong to. The last dimension
    of q, k and v may have any stride. Under autocast q, k, v, prefix_k and prefix_v become of its
    dtype, but those of float64. rng, where dropout is asked for, may be left out: it is then drawn
    from PyTorch's generator of q's device, so that torch.manual_seed and checkpointing repeat it,
    and a CUDA graph draws others at each replay. A tensor as rng that is not on q's device is
    copied there. In torch.compile the call is one operator without a graph break, its mask and
    score traced with the code around it. There is no second derivative, and max_logit has no
    gradient; of nested tensors it is of all sequences. Tensors of torch.float8_e4m3fn and
    torch.float8_e5m2 name type_q, type_k and type_v themselves: these, and type_o, are of forward
    alone, and have a graph break in torch.compile.
    """
    made: Any = None
    # Dynamo answers this question while it traces; fake tensors, of other tracers, are not plain.
    is_special = (
        _is_dynamo_compiling() or _are_transforms_active() or _forward_ad._current_level >= 0
    )
    has_type_o = options.get("type_o") is not None
    is_plain = not (is_special or dropout or return_lse or return_max_logit or has_type_o)
    if is_plain and not _is_any_autocast_enabled():
        try:
            made = _attn.attended(q, k, v, options)
        except InvalidArgument:
            if not float8.is_float8(q, k, v):
                raise
        if type(made) is Tensor:
            return made
        if made is not None and not made.has_arrays:
            return _apply_plain(made, q, k, v)
    return_lse, return_max_logit = returned_too(return_lse, return_max_logit)
    if has_type_o or float8.is_float8(q, k, v):
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            check_tensor(name, tensor)
        if _is_any_autocast_enabled():
            q, k, v = _autocast(q, k, v)
        asked = {"return_lse": return_lse, "return_max_logit": return_max_logit}
        return float8.attention(q, k, v, **asked, dropout=dropout, rng=rng, **options)
    is_compiling = torch.compiler.is_compiling()
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor)
        if tensor.layout is torch.jagged:
            return torch_nested.attention(
                attention, q, k, v, return_lse=return_lse, return_max_logit=return_max_logit,
                dropout=dropout, rng=rng, **{"layout": None, **options},
            )  # fmt: skip
        if tensor.layout is not torch.strided or tensor.is_nested:
            refuse_layout(name, tensor)
    is_transformed = not is_compiling and _are_transforms_active()
    if is_transformed:
        for name in _NUMBERS:
            refuse_more_than_number(name, options.get(name))
        refuse_more_than_number("dropout", dropout)
    if is_compiling or _is_any_autocast_enabled():
        q, k, v = _autocast(q, k, v)
        for name in ("prefix_k", "prefix_v"):
            if isinstance(options.get(name), Tensor):
                (options[name],) = _autocast(options[name])
    if is_compiling or not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        q, k, v = map(last_contiguous, (q, k, v))
    if dropout:
        if rng is None:
            rng = draw_rng(q)
        elif isinstance(rng, Tensor):
            rng = rng.to(q.device)
        options["dropout"] = dropout
        options["rng"] = rng
    asking = None
    if made is None and not is_compiling and not is_transformed:
        asking = _asking({"q": q, "k": k, "v": v, **options})
    if is_compiling or is_transformed or asking or not _is_plain(q) or is_observed():
        result = _by_operators(q, k, v, options, asking, return_max_logit)
        return asked_for(result, return_lse, return_max_logit)
    if made is None:
        made = make_options(**options)
        if made.has_arrays and (asking := _asking(made.buffers)):  # a tensor that a function reads
            result = _by_operators(q, k, v, options, asking, return_max_logit)
            return asked_for(result, return_lse, return_max_logit)
    if torch.is_grad_enabled():
        tensors = _that_require_grad(made) if made.has_arrays else {}
        if q.requires_grad or k.requires_grad or v.requires_grad or tensors:
            if made.has_arrays:
                tensors = {**_without_gradient(made, tensors), **tensors}
            result = _Eager.apply(made, list(tensors), return_max_logit, q, k, v, *tensors.values())
            return asked_for(result, return_lse, return_max_logit)
    result = _attn.forward(made, q, k, v, None, return_lse, None, True, return_max_logit)
    return asked_for(result, return_lse, return_max_logit)


def _asking(arguments: dict[str, Any]) -> tuple[str, Tensor] | None:
    """The first argument whose class says what operators make of it, and its name."""
    for name, value in arguments.items():
        if _attn.asks_class(value):
            return name, value
    return None


def _by_operators(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: dict[str, Any],
    asking: tuple[str, Tensor] | None,
    max_logit: bool,
) -> tuple[Tensor, ...]:
    """Through PyTorch, which asks the class of `asking`."""
    if asking is None:
        return torch_ops.attention(q, k, v, max_logit=max_logit, **options)
    name, tensor = asking
    kind = type(tensor)
    if kind.__torch_dispatch__ is Tensor.__torch_dispatch__ and tensor.dim():
        _attn.signature(name, tensor)  # refuses a CausalBias, whose memory operators would read
    try:
        return torch_ops.attention(q, k, v, max_logit=max_logit, **options)
    except (AssertionError, NotImplementedError, TypeError) as error:
        if isinstance(error, Error):
            raise
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(
            f"{name} is a {kind.__name__}, whose class does not take attn's operators ({reason}); "
            "accepted are tensors without such a class, and those whose class does"
        ) from error


def check_tensor(name: str, given: Any) -> None:
    if not isinstance(given, Tensor):
        raise TypeError(
            f"{name} is a {type(given).__name__}; accepted are tensors of PyTorch, and in "
            "attn.attention arrays of other libraries"
        )


def refuse_layout(name: str, given: Tensor) -> NoReturn:
    raise InvalidArgument(
        f"{name} {'is nested, of' if given.is_nested else 'has'} the layout {given.layout}; "
        f"accepted is torch.strided{', not nested' if given.is_nested else ''}, and torch.jagged "
        "or cu_seqlens for sequences of several lengths"
    )


# Options that are numbers of Python, for which a tensor of a transform has no value.
_NUMBERS = (
    "scale",
    "softcap",
    "causal",
    "max_seqlen_q",
    "max_seqlen_k",
    "threads",
    "seqlen_prefix",
)


def _that_require_grad(made: _attn.Options) -> dict[str, Tensor]:
    of_scores = _attn.score_buffers(made.problem)
    reached = {**made.tensors, **{n: t for n, t in made.buffers.items() if n in of_scores}}
    return {name: t for name, t in reached.items() if getattr(t, "requires_grad", False)}


def _without_gradient(made: _attn.Options, reached: dict[str, Tensor]) -> dict[str, Tensor]:
    """The other tensors of a call, saved so that PyTorch refuses backward if one was written
    meanwhile.
    """
    return {
        name: t.detach() if t.requires_grad else t
        for name, t in {**made.tensors, **made.buffers}.items()
        if name not in reached and isinstance(t, Tensor)
    }


def merge(parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over all keys from attention over disjoint sets of them; differentiable.

    Args:
        parts: (out, lse) of each set, out `[batch, seqlen_q, heads, head_dim]` or packed
            `[total_q, heads, head_dim]`, lse `[batch, heads, seqlen_q]` or `[heads, total_q]`. A
            sink belongs to one of them only.

    Returns:
        (out, lse), out of the dtype of the first.
    """
    result: tuple[Tensor, Tensor] = merging.merge(parts, torch, Tensor.detach)
    return result


_CAST = (torch.float32, torch.float16, torch.bfloat16)  # by autocast, as PyTorch's own functions


def _autocast(*several: Tensor) -> Sequence[Tensor]:
    if several[0].is_meta or not torch.is_autocast_enabled(several[0].device.type):
        return several
    dtype = torch.get_autocast_dtype(several[0].device.type)
    return [t.to(dtype) if t.dtype in _CAST else t for t in several]


def _is_plain(t: Tensor) -> bool:
    """Whether the tensor's memory may be read now: no fake or meta tensor, no subclass."""
    return (type(t) is Tensor or type(t) is torch.nn.Parameter) and not t.is_meta
