"""Attention by one name, so that a model is the same but for the line that attends.

attention(name) gives a function of q, k, v [batch, n, heads, head_dim], causal and dropout:

eager              scores as a matrix, as GPT-2 and BERT were written: what the papers compare with
sdpa_cudnn         PyTorch's scaled_dot_product_attention, by cuDNN
sdpa_flash         the same, by PyTorch's copy of FlashAttention-2
flex               PyTorch's flex_attention, compiled
attn               attn.torch.attention
attn_block_sparse  the same over the blocks of a butterfly (not causal)

K and V may have fewer heads than Q, which each serve a group of neighbours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

NAMES = ("eager", "sdpa_cudnn", "sdpa_flash", "flex", "attn", "attn_block_sparse")
BLOCK = 128  # of attn_block_sparse

Attend = Callable[..., Tensor]


def available(name: str, device: str) -> bool:
    """Whether it trains there: a CPU has neither cuDNN nor gradients of flex_attention."""
    if name not in NAMES:
        raise SystemExit(f"attention {name!r} is not known; accepted are {', '.join(NAMES)}")
    return device == "cuda" or name not in ("sdpa_cudnn", "flex")


def attention(name: str) -> Attend:
    """The function of that name. For sdpa_* it also selects the backend of this process."""
    available(name, "cuda")
    if name.startswith("sdpa"):
        backend = name.removeprefix("sdpa_")
        torch.backends.cuda.enable_cudnn_sdp(backend == "cudnn")
        torch.backends.cuda.enable_flash_sdp(backend == "flash")
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(False)
        return sdpa
    return {"eager": eager, "flex": flex, "attn": attn, "attn_block_sparse": block_sparse}[name]


def eager(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, dropout: float = 0.0) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if k.shape[1] != q.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if causal:
        n, m = scores.shape[-2:]
        hidden = torch.ones(n, m, dtype=torch.bool, device=q.device).triu(m - n + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    # Autocast computes softmax in fp32; without it the dtype is q's.
    weights = F.dropout(torch.softmax(scores, dim=-1), dropout).to(v.dtype)
    return (weights @ v).transpose(1, 2)


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, dropout: float = 0.0) -> Tensor:
    is_grouped = q.shape[2] != k.shape[2]
    # is_causal aligns the first query with the first key; one query sees all keys.
    causal = causal and q.shape[1] > 1
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=causal, dropout_p=dropout, enable_gqa=is_grouped
    )
    return out.transpose(1, 2)


@functools.cache
def _flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


@functools.cache
def _causal_blocks(n: int, device: torch.device) -> object:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: j <= i, None, None, n, n, device=str(device))


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, dropout: float = 0.0) -> Tensor:
    if dropout:
        raise SystemExit("flex has no dropout; accepted is 0")
    blocks = _causal_blocks(q.shape[1], q.device) if causal else None
    is_grouped = q.shape[2] != k.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return _flex()(q, k, v, block_mask=blocks, enable_gqa=is_grouped).transpose(1, 2)


def attn(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, dropout: float = 0.0) -> Tensor:
    import attn.torch

    return attn.torch.attention(q, k, v, causal=causal, dropout=dropout)


@functools.cache
def butterfly(n: int, device: torch.device) -> object:
    """Block i of BLOCK queries sees itself and the blocks whose number differs in one bit."""
    import attn

    i = torch.arange(-(-n // BLOCK))
    differing = i[:, None] ^ i[None, :]
    blocks = (differing & (differing - 1)) == 0
    return attn.block_mask(blocks.to(device), BLOCK, BLOCK)


def block_sparse(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, dropout: float = 0.0
) -> Tensor:
    import attn.torch

    blocks = butterfly(q.shape[1], q.device)
    return attn.torch.attention(q, k, v, causal=causal, dropout=dropout, mask=blocks)
