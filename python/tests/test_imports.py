"""What importing attn imports, in processes of their own, and the names it then shows."""

from __future__ import annotations

import subprocess
import sys

import pytest

import attn

EAGER = """
import sys
import torch
before = set(sys.modules)
import attn.torch
q = torch.randn(1, 4, 2, 8, requires_grad=True)
attn.torch.attention(q, q, q, mask=lambda s: s.key <= s.query).sum().backward()
attn.torch.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
attn.torch.flex_attention(q, q, q, lambda s, b, h, i, j: s / 2).sum().backward()
mask = attn.torch.create_block_mask(lambda b, h, i, j: i >= j, None, None, 2, 2)
attn.torch.flex_attention(q[:, :2], q[:, :2], q[:, :2], block_mask=mask)
print(*sorted(set(sys.modules) - before))
"""


def test_torch_is_all_that_an_eager_call_needs():
    """torch._dynamo, sympy and what else torch.compile and FlexAttention need take seconds."""
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", EAGER], capture_output=True, text=True, check=True)
    new = [
        name
        for name in done.stdout.split()
        if name.partition(".")[0] not in ("attn", "nanobind_backend")
    ]
    assert len(new) < 20, new


def test_every_name_is_listed():
    assert {*attn.__all__, "torch", "jax", "hf", "flex", "flash_attn"} <= {*dir(attn)}
    for name in attn.__all__:
        assert getattr(attn, name) is not None
