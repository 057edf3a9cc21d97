"""attn in PyTorch: autograd, torch.compile, and functions with the signatures of PyTorch's own.

import attn.torch
out = attn.torch.attention(q, k, v, mask=lambda s: s.key <= s.position)
out = attn.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
out = attn.torch.flex_attention(q, k, v, score_mod, block_mask)
"""

from __future__ import annotations

from typing import NoReturn

from ..errors import Unsupported
from . import hook
from .calls import attention, merge
from .flex import create_block_mask, flex_attention
from .sdpa import scaled_dot_product_attention

__all__ = [
    "attention",
    "create_block_mask",
    "flex_attention",
    "merge",
    "scaled_dot_product_attention",
]


def _refuse_script() -> NoReturn:
    raise Unsupported(
        "attn.torch is no function of TorchScript, which torch.jit.script compiles; accepted are "
        "torch.jit.trace, torch.compile and torch.export"
    )


hook.register()
for _function in (attention, flex_attention, merge, scaled_dot_product_attention):
    setattr(_function, "__prepare_scriptable__", _refuse_script)  # noqa: B010
