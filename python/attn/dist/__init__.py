"""One sequence over the processes of a group of torch.distributed, with every mask and score.

import attn.dist
plan = attn.dist.plan((1, 65536, 32, 128), (1, 65536, 8, 128), dtype=torch.bfloat16, causal=True)
q, k, v = plan.shard(q), plan.shard(k), plan.shard(v)     # or make them of plan.shard(tokens)
out = attn.dist.attention(q, k, v, plan)                  # of this process's rows; differentiable

Every process of the group makes the plan and calls attention, in one order. What goes wrong on one
is an attn.Error on all of them, which names the process by its rank in the group. docs/scale-out.md
explains how rows are dealt and what is sent.
"""

from __future__ import annotations

from .attention import attention
from .plan import Plan, plan

__all__ = ["Plan", "attention", "plan"]
