"""Reviews as batches of a masked language model: padded to one length, or packed without padding.

Of each sequence 15 % of the tokens are predicted; of those 80 % are replaced by a mask, 10 % by
another token, and 10 % stay. Both forms have the same sequences, masks and targets.
"""

from __future__ import annotations

import itertools
import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..common import data

MASK = 50257  # behind GPT-2's tokens
IGNORED = -100


def sequences(folder: Path, length: int, most: int) -> list[np.ndarray]:
    """Reviews of imdb_train.tsv.xz in tokens, cut to `length`."""
    file = folder / "imdb_train.tsv.xz"
    if not file.exists():
        raise SystemExit(f"{file} is missing: a line of it is label, tab, id, tab, text")
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        texts = [line.rstrip("\n").split("\t", 2)[2] for line in itertools.islice(lines, most)]
    encode = data.tokenizer(folder / "gpt2_merges.txt.xz").encode_batch_fast
    return [np.array(e.ids[:length], np.int64) for e in encode(texts)]


def toy_sequences(length: int) -> list[np.ndarray]:
    text = data.toy().astype(np.int64)
    random = np.random.default_rng(0)
    lengths = random.integers(length // 4, length + 1, 200)
    return [text[i * 100 : i * 100 + n] for i, n in enumerate(lengths)]


@dataclass
class Batch:
    tokens: Tensor  # [batch, length], or [1, rows] packed
    positions: Tensor  # as tokens
    predicted: Tensor  # [predictions], rows of tokens.flatten()
    targets: Tensor  # [predictions], IGNORED where there is none
    lengths: Tensor  # int32 [batch]
    cu_seqlens: Tensor  # int32 [batch + 1]


class Masked:
    """Batch i is a function of seed and i."""

    def __init__(
        self, texts: list[np.ndarray], batch: int, length: int, vocabulary: int, seed: int
    ) -> None:
        self.texts, self.batch, self.length, self.seed = texts, batch, length, seed
        self.vocabulary = vocabulary
        self.mask = min(MASK, vocabulary - 1)

    def chosen(self, step: int) -> list[np.ndarray]:
        random = np.random.default_rng((self.seed, step))
        return [self.texts[i] for i in random.integers(0, len(self.texts), self.batch)]

    def rows(self, steps: int) -> int:
        """Of a packed batch: those of the largest, so that all have one shape."""
        most = max(sum(len(t) for t in self.chosen(step)) for step in range(steps))
        return min(-(-most // 128) * 128, self.batch * self.length)

    def __call__(self, step: int, rows: int, device: str) -> Batch:
        """rows: of a packed batch, 0: padded."""
        texts = self.chosen(step)
        random = np.random.default_rng((self.seed, step, 1))
        lengths = np.array([len(t) for t in texts], np.int32)
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        shape = (1, rows) if rows else (self.batch, self.length)
        tokens = np.zeros(shape, np.int64)
        positions = np.zeros(shape, np.int64)
        predictions = self.batch * (int(0.15 * self.length) + 1)
        predicted, targets = np.zeros(predictions, np.int64), np.full(predictions, IGNORED)
        count = 0
        for i, text in enumerate(texts):
            n = len(text)
            start = int(cu_seqlens[i]) if rows else i * self.length
            places = random.choice(n, max(1, int(0.15 * n)), replace=False)
            shown = text.copy()
            kind = random.random(len(places))
            other = random.integers(0, self.vocabulary, len(places))
            shown[places] = np.where(
                kind < 0.8, self.mask, np.where(kind < 0.9, other, text[places])
            )
            tokens.reshape(-1)[start : start + n] = shown
            positions.reshape(-1)[start : start + n] = np.arange(n)
            predicted[count : count + len(places)] = start + places
            targets[count : count + len(places)] = text[places]
            count += len(places)
        arrays = (tokens, positions, predicted, targets, lengths, cu_seqlens)
        return Batch(*(torch.from_numpy(a).to(device) for a in arrays))
