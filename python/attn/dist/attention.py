"""Attention of the rows of one process of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _attn
from ..errors import InvalidArgument
from ..operations import asked_for, returned_too
from .ops import gradients
from .plan import Plan

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..types import Options


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        options: Any,
        names: list[str],
        return_max_logit: bool,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *tensors: Tensor,
    ) -> Any:
        out, lse, *max_logit = _attn.dist_forward(plan._made, options, q, k, v, return_max_logit)
        ctx.mark_non_differentiable(*max_logit)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan, ctx.options, ctx.names = plan, options, names
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return out, lse, *max_logit

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, *_of_max_logit: None) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        names = ["q", "k", "v", *ctx.names]
        needed = ctx.needs_input_grad[4:]
        wanted = [name for name, is_needed in zip(names, needed, strict=True) if is_needed]
        made = gradients(ctx.plan, ctx.options, d_out, d_lse, (q, k, v, out, lse), wanted)
        found = dict(zip(wanted, made, strict=True))
        for name, dtype in zip(ctx.names, ctx.dtypes, strict=True):
            if name in found:
                found[name] = found[name].to(dtype)
        return (None, None, None, None, *map(found.get, names))


def _eager(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, max_logit: bool, options: Mapping[str, Any]
) -> Any:
    made = plan._with(options)
    arrays: dict[str, Any] = {
        name: made.tensors[name] for name in ("sink",) if name in made.tensors
    }
    for name in _attn.score_buffers(made.problem):
        arrays[name] = made.buffers.get(name)
    trained = {
        name: array
        for name, array in arrays.items()
        if isinstance(array, Tensor) and array.requires_grad
    }
    return _Attention.apply(  # pyright: ignore
        plan, made, list(trained), max_logit, q, k, v, *trained.values()
    )


def _compiled(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, max_logit: bool, options: Mapping[str, Any]
) -> Any:
    """Through the operator, whose options are those of the plan but for tensors."""
    for name, array in plan._read_by_formulas.items():
        if array.requires_grad:
            raise InvalidArgument(
                f"the plan's score reads {name!r}, which requires a gradient; accepted within "
                "torch.compile are gradients of sink, alibi and bias"
            )
    tensors = {
        name: x for name, x in plan._options.items() if isinstance(x, Tensor) and x.requires_grad
    }
    for name, value in options.items():
        known = plan._options.get(name)  # pyright: ignore
        is_plain = value is None or isinstance(value, (bool, int, float, str, tuple))
        if isinstance(value, Tensor):
            tensors[name] = value
        elif value is not known and not (is_plain and value == known):
            raise InvalidArgument(
                f"{name} is {value!r}, and the plan has {known!r}; accepted within torch.compile are "
                "options of the plan, and tensors"
            )
    out, lse, largest = torch.ops.attn.dist_forward.default(
        q, k, v, plan._name, ",".join(tensors), list(tensors.values()), max_logit
    )
    return out, lse, largest


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    return_lse: bool = False,
    return_max_logit: bool = False,
    **options: Unpack[Options],
) -> Any:
    """Attention of this process's rows to all keys that they see. Collective; differentiable.

    Args:
        q, k, v: This process's rows, plan.rows() of Q and plan.keys() of K and V, in the layout and
            dtype of the plan.
        plan: Made with the options of the call.
        return_lse: Return LSE as well.
        return_max_logit: Return the largest score of each head as well, last: [heads_q], over the
            rows of all processes, the same on each. All processes ask for it, or none.
        **options: Arrays that differ from those of the plan, such as a sink that is trained, and on
            a CPU the rng of a step; on a GPU where it is a tensor.

    Returns:
        `out` of this process's rows, or a tuple of it and what else is asked for:
        `(out, lse, max_logit)`. Gradients of q, k and v are complete; max_logit has none. Those of
        a sink, bias or ALiBi's slopes are summed over all processes, the same on each: they are not
        to be reduced once more.

    Raises:
        attn.Error: On every process, where one refused its arguments, failed or did not come.
    """
    if plan._messages is None:
        raise InvalidArgument("plan was made for a number of ranks; accepted is one of a group")
    asked = returned_too(return_lse, return_max_logit)
    if plan._heads_first:
        q, k, v = (x.transpose(1, 2) if x.dim() == 4 else x for x in (q, k, v))
    if torch.compiler.is_compiling():
        out, *others = _compiled(q, k, v, plan, asked[1], options)  # pyright: ignore
    else:
        out, *others = _eager(q, k, v, plan, asked[1], options)  # pyright: ignore
    if plan._heads_first and out.dim() == 4:
        out = out.transpose(1, 2)
    return asked_for((out, *others), *asked)
