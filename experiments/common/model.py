"""Transformers as small as they can be written: a decoder (GPT-2) and an encoder (BERT).

The names and shapes are GPT-2's. `attend` comes from common.attention by one name, and gets q, k
and v as [batch, n, heads, head_dim] views of one projection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import attention


@dataclass
class Config:
    layers: int = 12
    heads: int = 12
    width: int = 768
    vocabulary: int = 50304  # GPT-2's 50257, filled up to a multiple of 64
    context: int = 1024
    dropout: float = 0.0
    causal: bool = True
    attention: str = "sdpa_flash"
    is_checkpointed: bool = False  # activations of a block are computed again in the backward pass


# GPT-2's sizes; 1.3B and 2.7B are those of FlashAttention-2's table 1, with heads of 128.
SIZES: dict[str, dict[str, int]] = {
    "124M": {"layers": 12, "heads": 12, "width": 768},
    "350M": {"layers": 24, "heads": 16, "width": 1024},
    "1.3B": {"layers": 24, "heads": 16, "width": 2048},
    "2.7B": {"layers": 32, "heads": 20, "width": 2560},
    "toy": {"layers": 2, "heads": 2, "width": 64, "vocabulary": 256},
}


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.causal = config.causal
        self.dropout = config.dropout
        self.attend = attention(config.attention)
        self.rotate: Callable[[Tensor], Tensor] | None = None  # of q and k: rotary positions
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, **sequences: Any) -> Tensor:
        """sequences: lengths, or cu_seqlens and longest, of common.attention."""
        batch, n, width = x.shape
        q, k, v = (
            t.view(batch, n, self.heads, width // self.heads)
            for t in self.qkv(self.norm_1(x)).split(width, dim=2)
        )
        if self.rotate is not None:
            q, k = self.rotate(q), self.rotate(k)
        dropout = self.dropout if self.training else 0.0
        out = self.attend(q, k, v, causal=self.causal, dropout=dropout, **sequences)
        x = x + F.dropout(self.project(out.reshape(batch, n, width)), dropout)
        hidden = F.gelu(self.up(self.norm_2(x)), approximate="tanh")
        return x + F.dropout(self.down(hidden), dropout)


def cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Of the tokens that x, [..., width], predicts. Targets of -100 do not count."""
    logits = F.linear(x, weight).flatten(0, -2).float()
    return F.cross_entropy(logits, targets.flatten(), reduction=reduction)


class GPT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.loss_of = cross_entropy
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_residual = name.endswith(("project.weight", "down.weight"))
                std = 0.02 / math.sqrt(2 * config.layers) if is_residual else 0.02
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def hidden(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        x = F.dropout(x, self.config.dropout, self.training)
        for block in self.blocks:
            if self.config.is_checkpointed:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.norm(x)

    def forward(self, tokens: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """The cross entropy; the matrix of the embedding is that of the logits too."""
        loss = self.loss_of(self.hidden(tokens), self.tokens.weight, targets, reduction)
        return loss if reduction == "mean" else loss.view(targets.shape)

    def compile_parts(self) -> None:
        """Each block, which are one program, and the loss: sooner than the model as a whole."""
        for block in self.blocks:
            block.compile(dynamic=False)
        self.loss_of = torch.compile(cross_entropy, dynamic=False)

    def flops_per_token(self, n: int) -> float:
        """Of a training step: 6 for each parameter of a product, and attention, causal, 6 L C T."""
        parameters = sum(p.numel() for p in self.parameters()) - self.positions.weight.numel()
        per_key = 6 if self.config.causal else 12
        return 6.0 * parameters + per_key * self.config.layers * self.config.width * n


def optimizer(model: nn.Module, rate: float, decay: float = 0.1) -> torch.optim.AdamW:
    """AdamW; weight decay for matrices alone."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    is_fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), fused=is_fused)
