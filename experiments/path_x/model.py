"""A classifier of images, a token a pixel, that knows the row and the column of each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..common.classify import Encoder, head
from ..common.model import Config

SHAPE = {"layers": 2, "heads": 2, "width": 64}  # Nystromformer's for Long Range Arena
HIDDEN = 128


class Grid(nn.Module):
    """A vector for each row and one for each column; a pixel has their sum."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.empty(size, width))
        self.columns = nn.Parameter(torch.empty(size, width))
        for weight in (self.rows, self.columns):
            nn.init.normal_(weight, std=0.02)

    def forward(self) -> Tensor:
        return (self.rows[:, None] + self.columns[None]).flatten(0, 1)


class RotaryGrid(nn.Module):
    """Rotary positions: half of a head's columns turn by a pixel's row, half by its column.

    Angles are of pixels, not of shares of the image: dashes stay as long while images grow.
    """

    def __init__(self, size: int, head_dim: int, base: float = 100.0) -> None:
        super().__init__()
        count = head_dim // 4
        frequencies = base ** (-torch.arange(count) / count)
        along = torch.arange(size)[:, None] * frequencies  # [size, count]
        rows = along[:, None].expand(size, size, count)
        columns = along[None].expand(size, size, count)
        angles = torch.cat([rows, columns], -1).reshape(size * size, 1, 2 * count)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of x, [batch, size * size, heads, head_dim], whose halves are the pairs."""
        a, b = x.float().chunk(2, -1)
        turned = [a * self.cos - b * self.sin, a * self.sin + b * self.cos]
        return torch.cat(turned, -1).to(x.dtype)


class PathModel(nn.Module):
    """positions: "grid", learned, the paper's; or "rotary"."""

    def __init__(self, size: int, positions: str, attention: str, dropout: float) -> None:
        super().__init__()
        config = Config(
            **SHAPE,
            vocabulary=256,
            context=size * size,
            dropout=dropout,
            causal=False,
            attention=attention,
        )
        width = config.width
        grid = Grid(size, width) if positions == "grid" else None
        self.encoder = Encoder(config, HIDDEN, grid)
        if positions == "rotary":
            rotary = RotaryGrid(size, width // config.heads)
            for block in self.encoder.blocks:
                block.rotate = rotary
        self.head = head(width, HIDDEN, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(tokens).mean(1))


def grown(weights: dict[str, Tensor], size: int) -> dict[str, Tensor]:
    """Weights for images of size x size from those of smaller ones: the vector of a row or column
    becomes that of the neighbours which it is split into, as the paper doubles positions.
    """
    grid = ("encoder.positions.rows", "encoder.positions.columns")
    return {
        key: w.repeat_interleave(size // len(w), 0) if key in grid else w
        for key, w in weights.items()
    }
