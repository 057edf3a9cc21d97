"""A model of transformers whose sequence is spread over the processes of a group."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import Tensor

from .. import dist
from ..errors import InternalError, InvalidArgument, Unsupported
from .refusals import refuse_unknown, refuse_weights

__all__ = ["shard"]

_numbers = count()


class _Sharded:
    """Transformers' `AttentionInterface` over a group; plans are made when layers first ask."""

    def __init__(self, rows: dist.Plan, options: dict[str, Any]):
        self.rows = rows
        self.options = options
        self.plans: dict[Any, dist.Plan] = {}

    def __call__(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        sliding_window: int | None = None,
        output_attentions: bool | None = None,
        **rest: Any,
    ) -> tuple[Tensor, None]:
        """q, k, v `[B, H, rows of this process, D]` to `[B, rows, H, D]`."""
        refuse_weights(output_attentions)
        refuse_unknown(type(module), rest)
        _refuse("attention_mask", attention_mask, None)
        _refuse("dropout", dropout, 0.0)
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        _refuse("is_causal", causal, True)
        options: dict[str, Any] = {
            "causal": True,
            "window": _window(module, sliding_window),
            "softcap": softcap,
            "scale": scaling,
            "layout": "bhsd",
        }
        sink: dict[str, Any] = {} if s_aux is None else {"sink": s_aux.float()}
        total = sum(end - begin for rank in range(self.rows.ranks) for begin, end in
                    self.rows.rows(rank))  # fmt: skip
        shapes = [(*x.shape[:2], total, x.shape[3]) for x in (query, key, value)]
        asked = (*shapes, query.dtype, query.device, *options.items(), bool(sink))
        plan = self.plans.get(asked)
        if plan is None:
            planned: dict[str, Any] = {name: tensor.detach() for name, tensor in sink.items()}
            plan = dist.plan(
                shapes[0],
                shapes[1],
                shapes[2],
                dtype=query.dtype,
                device=query.device,
                **self.options,
                **options,
                **planned,
            )
            if plan.rows() != self.rows.rows():
                raise InternalError("a layer's plan has other rows than the model's")
            self.plans[asked] = plan
        out: Tensor = dist.attention(query, key, value, plan, **sink)  # pyright: ignore
        return out.transpose(1, 2), None


def _refuse(name: str, value: Any, accepted: Any) -> None:
    if value is not accepted and value != accepted:
        raise Unsupported(
            f"{name} is {value!r} in a sharded sequence; accepted is {accepted!r}"
            if not isinstance(value, Tensor)
            else f"{name} is a tensor in a sharded sequence; accepted is {accepted!r}"
        )


def _window(module: Any, given: int | None) -> tuple[int, int] | None:
    """The window of a layer, of which "eager" would find a mask made."""
    config = module.config
    types = getattr(config, "layer_types", None)
    kind = types[module.layer_idx] if types else None
    if kind not in (None, "full_attention", "sliding_attention"):
        raise Unsupported(
            f"the layer's attention is {kind!r}; accepted in a sharded sequence are "
            "'full_attention' and 'sliding_attention'"
        )
    _refuse("attention_chunk_size", getattr(config, "attention_chunk_size", None), None)
    window = given or getattr(module, "sliding_window", None)
    if kind == "full_attention":
        return None
    configured = getattr(config, "sliding_window", None)
    if kind == "sliding_attention":
        window = window or configured
    elif window is None:
        _refuse("sliding_window of the configuration", configured, None)
    return (window - 1, 0) if window else None


def shard(
    model: Any, batch: int, seqlen: int, *, group: Any = None, timeout: float = 60.0
) -> dist.Plan:
    """Has a causal model of transformers work on its process's rows of each sequence. Collective.

    Rows are dealt "zigzag", the same in every layer. Call the model with `plan.shard(input_ids)`,
    without an attention mask or a cache; position ids are `plan.index()` where none are given.
    Labels are not shifted across processes by the model: shift the whole, then shard. Gradients of
    parameters are those of this process's rows, to be summed over the group.

    Args:
        model: Windows and sinks are its layers' own; other masks and dropout are refused.
        batch, seqlen: Of the whole input, as every call will have it.
        group: Of torch.distributed.
        timeout: As in attn.dist.plan.

    Returns:
        A plan whose rows(), index(), shard() and unshard() are those of the model's tokens.
    """
    from transformers import AttentionInterface

    where: dict[str, Any] = {"group": group, "timeout": timeout, "deal": "zigzag"}
    ranks = torch.distributed.get_world_size(group) if torch.distributed.is_initialized() else 1
    where["chunk"] = -(-seqlen // (2 * ranks))
    shape = (batch, seqlen, 1, 8)
    rows = dist.plan(shape, shape, dtype=torch.float32, causal=True, **where)
    name = f"attn_sharded_{next(_numbers)}"
    AttentionInterface.register(name, _Sharded(rows, where))
    model.set_attn_implementation(name)

    def prepare(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        for refused in ("attention_mask", "past_key_values", "cache"):
            _refuse(refused, kwargs.get(refused), None)
        tokens = kwargs.get("input_ids", args[0] if args else kwargs.get("inputs_embeds"))
        held = sum(end - begin for begin, end in rows.rows())
        if tokens is None or tuple(tokens.shape[:2]) != (batch, held):
            raise InvalidArgument(
                f"the input is {None if tokens is None else tuple(tokens.shape)}; accepted are the "
                f"rows of this process, ({batch}, {held}), by plan.shard"
            )
        kwargs.setdefault("position_ids", rows.index().to(tokens.device)[None].expand(batch, -1))
        kwargs["use_cache"] = False
        return args, kwargs

    model.register_forward_pre_hook(prepare, with_kwargs=True)
    return rows
