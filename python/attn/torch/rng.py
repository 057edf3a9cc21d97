"""Seed and offset of dropout from PyTorch's generator, drawn so that a backward pass finds them.

What torch.compile saves and what it computes again in the backward pass follows from
torch._functorch.config.activation_memory_budget; numbers that are drawn again are others. So the
drawing is an operator of its own, whose result is marked as one to save, and the rest is computed
again from it. At a budget of 0 nothing is saved whatever its mark says; there the mark says that
the operator is computed again, for which PyTorch keeps the state of its generator.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("attn", "FRAGMENT")
# draw is what torch.compile reads; it consists of the other, which its partitioner sees.
for _name in ("draw", "drawn"):
    _LIBRARY.define(
        f"{_name}(*, Device device) -> Tensor",
        tags=(torch.Tag.nondeterministic_seeded, torch.Tag.pt2_compliant_tag),
    )


def _randint(*, device: torch.device) -> Tensor:
    return torch.randint(0, 2**62, (2,), dtype=torch.int64, device=device)


def _fake(*, device: torch.device) -> Tensor:
    return torch.empty(2, dtype=torch.int64, device=device)


def _budget(meta: dict[str, Any]) -> float:
    """The share of the memory of activations that the code that is compiled now may keep."""
    config = sys.modules.get("torch._functorch.config")
    budget: float = getattr(config, "activation_memory_budget", 1.0)
    custom = meta.get("custom")
    if isinstance(custom, dict):  # by torch.autograd.graph.region_activation_memory_budget
        budget = custom.get("_region_activation_memory_budget", budget)
    return budget


def _regions_cover_graphs() -> bool:
    """Whether the budget of a region is never that of operators outside of it."""
    config = sys.modules.get("torch._functorch.config")
    covers: bool = getattr(config, "activation_memory_budget_require_full_coverage", True)
    return covers


def drawn_again() -> bool:
    """Whether numbers that an operator draws now stand in for those of a forward pass and differ.

    Compiled code computes parts of the forward pass again while PyTorch runs a backward pass that
    nothing is differentiated through. Those that checkpointing asked for run inside functions of
    torch._prims.rng_prims, which set the generator as it was.
    """
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch._prims.rng_prims":
            return False
        frame = frame.f_back
    return True


def _drawn(device: torch.device) -> Tensor:
    drawn: Tensor = torch.ops.attn.drawn.default(device=device)
    return drawn


def _draw(*, device: torch.device) -> Tensor:
    from torch.fx.traceback import current_meta, has_preserved_node_meta
    from torch.utils.checkpoint import CheckpointPolicy

    # Where nothing is traced, as in a program that torch.export made, nobody reads the mark, and
    # another thread may be tracing: the dictionary is one of the process.
    if not has_preserved_node_meta():
        return _drawn(device)
    before = dict(current_meta)
    saves = _budget(current_meta) > 0 and _regions_cover_graphs()
    current_meta["recompute"] = (
        CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.MUST_RECOMPUTE
    )
    try:
        return _drawn(device)
    finally:
        current_meta.clear()
        current_meta.update(before)


_LIBRARY.impl("draw", _draw, "CompositeImplicitAutograd")
_LIBRARY.impl("drawn", _randint, "CompositeExplicitAutograd")
# Within vmap, whose argument randomness says what becomes of it.
_LIBRARY.impl("draw", _randint, "FuncTorchDynamicLayerFrontMode")
torch.library.register_fake("attn::drawn", _fake, lib=_LIBRARY)


def draw_rng(like: Tensor) -> Tensor:
    """Seed and offset of dropout from PyTorch's generator of the device of `like`.

    torch.manual_seed and checkpointing repeat them, and a CUDA graph draws others at each replay.
    """
    if torch.compiler.is_compiling():
        drawn: Tensor = torch.ops.attn.draw.default(device=like.device)
        return drawn
    return _randint(device=like.device)
