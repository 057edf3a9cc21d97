"""LAMB (You and others 2020, arXiv 1904.00962), algorithm 2."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """AdamW whose step, in each tensor, is as long as the tensor itself times the rate."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "step": 0}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            self._step(group)

    def _step(self, group: dict[str, Any]) -> None:
        weights = [p for p in group["params"] if p.grad is not None]
        if not weights:
            return
        gradients = [p.grad for p in weights]
        for p in weights:
            if not self.state[p]:
                self.state[p].update(m=torch.zeros_like(p), v=torch.zeros_like(p))
        m, v = ([self.state[p][name] for p in weights] for name in ("m", "v"))
        beta_1, beta_2 = group["betas"]
        group["step"] += 1
        torch._foreach_lerp_(m, gradients, 1 - beta_1)
        torch._foreach_mul_(v, beta_2)
        torch._foreach_addcmul_(v, gradients, gradients, 1 - beta_2)
        root = torch._foreach_div(v, 1 - beta_2 ** group["step"])
        torch._foreach_sqrt_(root)
        torch._foreach_add_(root, group["eps"])
        update = torch._foreach_div(m, 1 - beta_1 ** group["step"])
        torch._foreach_div_(update, root)
        torch._foreach_add_(update, weights, alpha=group["weight_decay"])
        of_weights = torch.stack(torch._foreach_norm(weights))
        of_updates = torch.stack(torch._foreach_norm(update))
        trust = torch.where((of_weights > 0) & (of_updates > 0), of_weights / of_updates, 1.0)
        torch._foreach_mul_(update, list((-group["lr"] * trust).unbind()))
        torch._foreach_add_(weights, update)
