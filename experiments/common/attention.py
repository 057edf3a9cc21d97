"""Attention by one name, so that a model is the same but for the line that attends.

attention(name) gives a function of q, k, v [batch, n, heads, head_dim], causal and dropout:

eager              scores as a matrix, as GPT-2 and BERT were written: what the papers compare with
sdpa               PyTorch's scaled_dot_product_attention, which chooses among
sdpa_cudnn         cuDNN's,
sdpa_flash         a copy of FlashAttention-2, and others
flex               PyTorch's flex_attention, compiled
attn               attn.torch.attention
attn_block_sparse  the same over the blocks of a butterfly (not causal)

K and V may have fewer heads than Q, which each serve a group of neighbours. With lengths, int32
[batch], keys of a sequence past its own are padding. attn and attn_block_sparse also take packed
sequences: q, k and v [1, total, heads, head_dim] with cu_seqlens, int32 [sequences + 1], of at most
`longest` rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor

NAMES = ("eager", "sdpa", "sdpa_cudnn", "sdpa_flash", "flex", "attn", "attn_block_sparse")
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
        torch.backends.cuda.enable_cudnn_sdp(backend in ("cudnn", "sdpa"))
        torch.backends.cuda.enable_flash_sdp(backend in ("flash", "sdpa"))
        torch.backends.cuda.enable_mem_efficient_sdp(backend == "sdpa")
        torch.backends.cuda.enable_math_sdp(backend == "sdpa")
        # torch.compile's cache of traced graphs on disk does not ask for these switches: it would
        # give sdpa_flash the graph that sdpa_cudnn has left there.
        torch._functorch.config.enable_autograd_cache = False
        return sdpa
    return {"eager": eager, "flex": flex, "attn": attn, "attn_block_sparse": block_sparse}[name]


def padding(lengths: Tensor, n: int) -> Tensor:
    """True where a key is one, [batch, 1, 1, n]."""
    return (torch.arange(n, device=lengths.device) < lengths[:, None])[:, None, None]


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    dropout: float = 0.0,
    lengths: Tensor | None = None,
) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if k.shape[1] != q.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    n, m = scores.shape[-2:]
    if causal and n > 1:
        hidden = torch.ones(n, m, dtype=torch.bool, device=q.device).triu(m - n + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    if lengths is not None:
        scores = scores.masked_fill(~padding(lengths, m), float("-inf"))
    # Autocast computes softmax in fp32; without it the dtype is q's.
    weights = F.dropout(torch.softmax(scores, dim=-1), dropout).to(v.dtype)
    return (weights @ v).transpose(1, 2)


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    dropout: float = 0.0,
    lengths: Tensor | None = None,
) -> Tensor:
    is_grouped = q.shape[2] != k.shape[2]
    # is_causal aligns the first query with the first key; one query sees all keys.
    causal = causal and q.shape[1] > 1
    mask = None if lengths is None else padding(lengths, k.shape[1])
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, dropout_p=dropout, enable_gqa=is_grouped
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


def attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    dropout: float = 0.0,
    lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    longest: int = 0,
) -> Tensor:
    import attn.torch

    if cu_seqlens is not None:
        return _packed(q, k, v, cu_seqlens, longest, causal=causal, dropout=dropout)
    if lengths is not None:
        return attn.torch.attention(q, k, v, causal=causal, dropout=dropout, seqused_k=lengths)
    return attn.torch.attention(q, k, v, causal=causal, dropout=dropout)


def _packed(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, **options: Any
) -> Tensor:
    import attn.torch

    ends = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
    most = {"max_seqlen_q": longest, "max_seqlen_k": longest}
    return attn.torch.attention(q[0], k[0], v[0], **ends, **most, **options)[None]


@functools.cache
def butterfly(n: int, device: torch.device) -> object:
    """Block i of BLOCK queries sees itself and the blocks whose number differs in one bit."""
    import attn

    i = torch.arange(-(-n // BLOCK))
    differing = i[:, None] ^ i[None, :]
    blocks = (differing & (differing - 1)) == 0
    # From the first query, as sequences may be shorter than the blocks reach.
    return attn.block_mask(blocks.to(device), BLOCK, BLOCK, top_left=True)


def block_sparse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    dropout: float = 0.0,
    lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    longest: int = 0,
) -> Tensor:
    import attn.torch

    if causal:
        raise SystemExit("attn_block_sparse sees blocks on both sides; causal is not accepted")
    mask = butterfly(longest or q.shape[1], q.device)
    if cu_seqlens is not None:
        return _packed(q, k, v, cu_seqlens, longest, mask=mask, dropout=dropout)
    used = {} if lengths is None else {"seqused_k": lengths}
    return attn.torch.attention(q, k, v, dropout=dropout, mask=mask, **used)
