"""What mypy says of calls that users write: a line whose error is expected is marked, and a mark
that nothing needs is an error itself. Nothing runs it.
"""

from __future__ import annotations

import torch
from typing_extensions import assert_type

import attn
import attn.torch
from attn.trace.expression import Expr

q = torch.ones(1, 4, 2, 8)
Pair = tuple[torch.Tensor, torch.Tensor]

assert_type(attn.torch.attention(q, q, q, causal=True), torch.Tensor)
assert_type(attn.torch.attention(q, q, q, dropout=0.5, rng=(1, 2)), torch.Tensor)
assert_type(attn.torch.attention(q, q, q, return_lse=True), Pair)
assert_type(attn.torch.flex_attention(q, q, q), torch.Tensor)
assert_type(attn.torch.flex_attention(q, q, q, return_lse=True), Pair)
attn.torch.attention(q, q, q, casual=True)  # type: ignore[call-overload]
attn.torch.attention(q, q, q, window="all")  # type: ignore[call-overload]
attn.torch.attention(q, q)  # type: ignore[call-overload]
attn.attention(q, q, q, casual=True)  # type: ignore[call-overload]
assert_type(attn.attention(q, q, q), torch.Tensor)
assert_type(attn.attention(q, q, q, return_lse=True), Pair)
attn.attention(q, q, q).sum_of_rows()  # type: ignore[attr-defined]
assert_type(attn.symbols.key <= attn.symbols.query, Expr)
attn.atention(q, q, q)  # type: ignore[attr-defined]
