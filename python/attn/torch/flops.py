"""Floating-point operations of attn's operators, for torch.utils.flop_counter.FlopCounterMode.

They are counted as PyTorch counts those of its own attention: two matrix products forward and five
backward, over all pairs of a query and a key, whatever a mask leaves out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_Formula = Callable[..., int]


def _lengths(tensor: Tensor, differences: bool) -> list[int] | None:
    """What the tensor says of the sequences' lengths; None where its memory may not be read."""
    if type(tensor) is not Tensor or tensor.is_meta:
        return None
    found: list[int] = (tensor.diff() if differences else tensor).tolist()
    return found


def _pairs(
    q: Tensor, k: Tensor, heads_first: bool, named: dict[str, Tensor], numbers: Sequence[int]
) -> int:
    """Pairs of a query and a key, of all sequences and heads. numbers: `sizes` of an operator."""
    shared = numbers[3] if numbers else 0
    if "prefix_k" in named:
        shared = named["prefix_k"].shape[0]

    def lengths_of(side: str, t: Tensor) -> list[int] | None:
        packed, used = named.get(f"cu_seqlens_{side}"), named.get(f"seqused_{side}")
        if used is not None:
            return _lengths(used, False)
        if packed is not None:
            return _lengths(packed, True)
        return [t.shape[2 if heads_first else 1]] * t.shape[0]

    heads = q.shape[1 if heads_first or q.dim() == 3 else 2]
    of_q, of_k = lengths_of("q", q), lengths_of("k", k)
    if of_q is None or of_k is None or len(of_q) != len(of_k):
        rows, keys = (t.shape[0] * (1 if t.dim() == 3 else t.shape[1]) for t in (q, k))
        return heads * rows * (keys + shared)  # at most
    return heads * sum(a * (b + shared) for a, b in zip(of_q, of_k, strict=True))


def _formulas(named: Callable[..., dict[str, Tensor]], layout: Callable[[str], str]) -> Any:
    def count(
        q: Tensor, k: Tensor, v: Tensor, call: str, tensors: Sequence[Tensor] | None,
        numbers: Sequence[int], products: tuple[int, int],
    ) -> int:  # fmt: skip
        of_qk, of_v = products
        per_pair = of_qk * q.shape[-1] + of_v * v.shape[-1]
        pairs = _pairs(q, k, layout(call) == "bhsd", named(call, tensors), numbers)
        flops: int = 2 * per_pair * pairs
        return flops

    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        call: str,
        tensors: Any = None,
        sizes: Sequence[int] = (),
        *_: Any,
        out_val: Any = None,
    ) -> int:
        return count(q, k, v, call, tensors, sizes, (1, 1))  # S, O

    def backward(
        d_out: Tensor, d_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
        call: str, wanted: str, tensors: Any = None, sizes: Sequence[int] = (), *_: Any,
        out_val: Any = None,
    ) -> int:  # fmt: skip
        return count(q, k, v, call, tensors, sizes, (3, 2))  # S, dQ, dK; dP, dV

    ops = torch.ops.attn
    return {ops.forward: forward, ops.forward_max_logit: forward, ops.backward: backward}


class Counting:
    """Makes the formulas known where torch.utils.flop_counter is imported, which takes half a
    second: each call of an operator asks, and tells the modes that are active, which took what was
    known when they were made.
    """

    def __init__(
        self, named: Callable[..., dict[str, Tensor]], layout: Callable[[str], str]
    ) -> None:
        self._formulas: dict[Any, _Formula] = _formulas(named, layout)

    def register(self) -> None:
        counter = sys.modules.get("torch.utils.flop_counter")
        if counter is None:
            return
        registries = [getattr(counter, "flop_registry", None)]
        for mode in _get_current_dispatch_mode_stack():
            mode = getattr(mode, "counter", mode)  # PyTorch 2.5 and newer
            registries.append(getattr(mode, "flop_registry", None))
        for registry in registries:
            if registry is not None:
                for operator, formula in self._formulas.items():
                    registry.setdefault(operator, formula)
