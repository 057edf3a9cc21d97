"""Gradients of attn.torch, which cannot be differentiated: this is an error where it is tried.

PyTorch's once_differentiable says so only where the gradient that comes in needs one itself, which
that of a sum does not, and only where the second derivative goes to every leaf.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as are_transforms_active

from ..errors import Unsupported


def refuse_forward_mode() -> NoReturn:
    raise Unsupported(
        "attn.torch has no derivative of forward mode, as of torch.func.jvp and jacfwd; accepted "
        "are those of reverse mode, as torch.func.grad, vjp and jacrev"
    )


class _Gradients(torch.autograd.Function):
    """(gradients, what they are computed from...) -> the gradients.

    The graph leads from these to all that they are computed from, so that PyTorch calls backward
    wherever a second derivative depends on them. They come in a list, which is no tensor: a result
    that is an argument would be a view.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(found: list[Tensor], *sources: Tensor | None) -> Any:
        if not are_transforms_active():
            return tuple(found)
        return tuple(
            [g.clone() for g in found]
        )  # torch.func would know an argument by its identity

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        refuse_forward_mode()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported(
            "attn.torch has no second derivative; accepted is a gradient without create_graph"
        )


def once(found: Iterable[Tensor | None], *sources: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients, computed from `sources`; None stays None. For where a graph is recorded."""
    every = tuple(found)
    recorded = iter(_Gradients.apply([g for g in every if g is not None], *sources))
    return tuple([None if g is None else next(recorded) for g in every])
