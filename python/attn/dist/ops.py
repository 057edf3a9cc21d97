"""Operators torch.ops.attn.dist_*: what torch.compile reads in place of calls to other processes.

dist_forward(q, k, v, plan, names, tensors, max_logit) -> (out, lse, max_logit or nothing) and
dist_backward(...) -> the gradients of `wanted`; `plan` is a plan's name, `names` those of the
tensors among the keywords of attn.dist.attention. Q, K and V are [batch, rows, heads, head_dim] or
[rows, heads, head_dim]. dist_unshard gathers the rows of all processes; dist_sum_shard, its
gradient, sums whole tensors over them and takes the rows of this one. All are collective: processes
that compile the same code call them in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as _group
from torch import Tensor

from .. import _attn
from ..torch.ops import buffer_names
from .plan import Plan, plan_of

_LIBRARY = torch.library.Library("attn", "FRAGMENT")
for _schema in (
    "dist_forward(Tensor q, Tensor k, Tensor v, str plan, str names, Tensor[] tensors, "
    "bool max_logit) -> (Tensor, Tensor, Tensor)",
    "dist_backward(Tensor d_out, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor out, "
    "Tensor lse, str plan, str names, Tensor[] tensors, str wanted) -> Tensor[]",
    "dist_unshard(Tensor x, str plan, int dim, bool keys) -> Tensor",
    "dist_sum_shard(Tensor x, str plan, int dim, bool keys) -> Tensor",
):
    _LIBRARY.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


def gradients(
    plan: Plan,
    options: _attn.Options,
    d_out: Tensor | None,
    d_lse: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    wanted: list[str],
) -> list[Tensor]:
    """The gradients of `wanted`, by the library's names. saved: q, k, v, out and lse."""
    d_out = torch.zeros_like(saved[3]) if d_out is None else d_out.contiguous()
    d_lse = None if d_lse is None else d_lse.contiguous()
    return list(_attn.dist_backward(plan._made, options, d_out, *saved, wanted, d_lse))


def _named(names: str, tensors: Sequence[Tensor]) -> dict[str, Any]:
    return dict(zip(names.split(","), tensors, strict=True)) if names else {}


def _forward(
    q: Tensor, k: Tensor, v: Tensor, name: str, names: str, tensors: list[Tensor], max_logit: bool
) -> tuple[Tensor, Tensor, Tensor]:
    plan = plan_of(name)
    options = plan._with(_named(names, tensors))
    out, lse, *largest = _attn.dist_forward(plan._made, options, q, k, v, max_logit)
    return out, lse, largest[0] if largest else lse.new_empty(0)


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, name: str, names: str, tensors: list[Tensor], max_logit: bool
) -> tuple[Tensor, Tensor, Tensor]:
    *rows, heads, _ = q.shape
    of_lse = torch.float64 if q.dtype == torch.float64 else torch.float32
    return (
        q.new_empty([*q.shape[:-1], v.shape[-1]]),
        q.new_empty([*rows[:-1], heads, rows[-1]], dtype=of_lse),
        q.new_empty([heads if max_logit else 0], dtype=of_lse),
    )


def _backward(
    d_out: Tensor,
    d_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    name: str,
    names: str,
    tensors: list[Tensor],
    wanted: str,
) -> list[Tensor]:
    plan, named = plan_of(name), _named(names, tensors)
    options = plan._with(named)
    asked = buffer_names(wanted.split(","), named)
    return gradients(plan, options, d_out, d_lse, (q, k, v, out, lse), asked)


def _backward_fake(
    d_out: Tensor,
    d_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    name: str,
    names: str,
    tensors: list[Tensor],
    wanted: str,
) -> list[Tensor]:
    rows = {"q": q, "k": k, "v": v}
    known = {**_named(names, tensors), **rows}
    return [
        q.new_empty(known[n].shape, dtype=q.dtype if n in rows else torch.float32)
        for n in wanted.split(",")
    ]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, ctx.plan, ctx.attn_names, tensors, _ = inputs
    out, lse, max_logit = output
    ctx.mark_non_differentiable(max_logit)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, *tensors)


def _backward_of_forward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, _: Any) -> Any:
    *rows, out, lse = ctx.saved_tensors[:5]
    tensors = list(ctx.saved_tensors[5:])
    names = ["q", "k", "v", *(ctx.attn_names.split(",") if tensors else ())]
    inputs = [*rows, *tensors]
    needed = [*ctx.needs_input_grad[:3], *ctx.needs_input_grad[5]]
    wanted = [name for name, is_needed in zip(names, needed, strict=True) if is_needed]
    d_out = torch.zeros_like(out) if d_out is None else d_out
    made = torch.ops.attn.dist_backward.default(
        d_out, d_lse, *rows, out, lse, ctx.plan, ctx.attn_names, tensors, ",".join(wanted)
    )
    found: dict[str, Tensor] = dict(zip(wanted, made, strict=True))
    result = [
        found[name].to(x.dtype) if name in found else None
        for name, x in zip(names, inputs, strict=True)
    ]
    return (*result[:3], None, None, result[3:], None)


def _unshard(x: Tensor, name: str, dim: int, keys: bool) -> Tensor:
    plan = plan_of(name)
    indices = [plan.index(rank, keys=keys).to(x.device) for rank in range(plan.ranks)]
    most = max(len(index) for index in indices)
    padded = x.new_zeros([*x.shape[:dim], most, *x.shape[dim + 1 :]])
    padded.narrow(dim, 0, x.shape[dim]).copy_(x)
    parts = [torch.empty_like(padded) for _ in indices]
    _group.all_gather(parts, padded, group=plan._group)  # pyright: ignore
    total = sum(len(index) for index in indices)
    whole = x.new_empty([*x.shape[:dim], total, *x.shape[dim + 1 :]])
    for index, part in zip(indices, parts, strict=True):
        whole.index_copy_(dim, index, part.narrow(dim, 0, len(index)))
    return whole


def _unshard_fake(x: Tensor, name: str, dim: int, keys: bool) -> Tensor:
    plan = plan_of(name)
    of = plan.keys if keys else plan.rows
    total = sum(end - begin for rank in range(plan.ranks) for begin, end in of(rank))
    return x.new_empty([*x.shape[:dim], total, *x.shape[dim + 1 :]])


def _sum_shard(x: Tensor, name: str, dim: int, keys: bool) -> Tensor:
    plan = plan_of(name)
    x = x.contiguous().clone()
    _group.all_reduce(x, group=plan._group)  # pyright: ignore
    return plan.shard(x, dim, keys=keys)


def _sum_shard_fake(x: Tensor, name: str, dim: int, keys: bool) -> Tensor:
    return plan_of(name).shard(x, dim, keys=keys)


def _keep_place(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *ctx.place = inputs


def _backward_of_unshard(ctx: Any, d_whole: Tensor) -> Any:
    return torch.ops.attn.dist_sum_shard.default(d_whole, *ctx.place), None, None, None


for _name, _made, _fake in (
    ("forward", _forward, _forward_fake),
    ("backward", _backward, _backward_fake),
    ("unshard", _unshard, _unshard_fake),
    ("sum_shard", _sum_shard, _sum_shard_fake),
):
    _LIBRARY.impl(f"dist_{_name}", _made, "CompositeExplicitAutograd")
    torch.library.register_fake(f"attn::dist_{_name}", _fake, lib=_LIBRARY)
torch.library.register_autograd(
    "attn::dist_forward", _backward_of_forward, setup_context=_keep, lib=_LIBRARY
)
torch.library.register_autograd(
    "attn::dist_unshard", _backward_of_unshard, setup_context=_keep_place, lib=_LIBRARY
)
