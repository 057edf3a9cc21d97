"""The model of Long Range Arena's tasks, with exact and approximate attention, and its batches."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..common import attention, results
from ..common.classify import Encoder, Learned, head, mean_of, mean_of_packed
from ..common.model import Config
from . import tasks

# Of bench/papers/approximations.py: they take no lengths, and see padding as tokens of a kind.
APPROXIMATE = ("local", "linformer", "longformer", "bigbird", "reformer")


def is_packed(kind: str) -> bool:
    return kind.endswith("_packed")


class Classifier(nn.Module):
    def __init__(self, task: tasks.Task, length: int, name: str, dropout: float) -> None:
        super().__init__()
        is_exact = name not in APPROXIMATE
        config = Config(
            layers=2,
            heads=2,
            width=64,
            vocabulary=task.vocabulary,
            context=length,
            dropout=dropout if is_exact else 0.0,
            causal=False,
            attention=name.removesuffix("_packed") if is_exact else "eager",
        )
        self.length = length
        # Nobody gives lengths where no sequence is shorter, and SDPA with a mask is slower.
        is_filled_up = any((s.lengths < length).any() for s in (task.train, task.test))
        self.uses_lengths = is_exact and is_filled_up
        self.encoder = Encoder(config, 128, Learned(length, config.width))
        self.encoder.dropout = dropout
        if not is_exact:
            for block in self.encoder.blocks:
                block.attend = approximate(name)
        self.is_of_pairs = task.train.pairs is not None
        self.head = head((4 if self.is_of_pairs else 1) * config.width, 128, task.classes)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        lengths = batch["lengths"]
        if "cu_seqlens" in batch:
            ends = {"cu_seqlens": batch["cu_seqlens"], "longest": self.length}
            x = self.encoder(batch["tokens"], batch["at"], **ends)
            pooled = mean_of_packed(x, batch["owner"], lengths)
        else:
            sequences = {"lengths": lengths} if self.uses_lengths else {}
            pooled = mean_of(self.encoder(batch["tokens"], **sequences), lengths)
        if self.is_of_pairs:
            one, other = pooled.chunk(2)
            pooled = torch.cat([one, other, one * other, one - other], -1)
        return self.head(pooled)


class Rows:
    """Batches as arrays, padded, or packed into as many rows as the fullest of them needs."""

    def __init__(
        self, task: tasks.Task, length: int, batch: int, seed: int, packed_steps: int = 0
    ) -> None:
        """packed_steps: how many steps will be taken, if packed."""
        self.task, self.batch, self.seed = task, batch, seed
        self.packed_rows = 0
        if not packed_steps:
            return
        if task.train.pairs is not None:
            raise SystemExit("pairs are not packed; accepted are tasks of single sequences")
        steps = max(task.train.lengths[self.drawn(step)].sum() for step in range(packed_steps))
        starts = range(0, len(task.test.labels), batch)
        tests = max(task.test.lengths[self.filled(task.test, start)].sum() for start in starts)
        self.packed_rows = min(-(-int(max(steps, tests)) // 128) * 128, batch * length)

    def drawn(self, step: int) -> np.ndarray:
        """Rows or pairs of a step, by the seed and the step alone."""
        random = np.random.default_rng((self.seed, step))
        return random.integers(0, len(self.task.train.labels), self.batch)

    def filled(self, split: tasks.Split, start: int) -> np.ndarray:
        """Those from `start`, and where fewer than a batch are left its first again."""
        rows = np.arange(start, start + self.batch)
        return np.where(rows < len(split.labels), rows, start)

    def of_step(self, step: int) -> dict[str, np.ndarray]:
        return self.arrays(self.task.train, self.drawn(step))

    def arrays(self, split: tasks.Split, asked: np.ndarray) -> dict[str, np.ndarray]:
        rows = asked if split.pairs is None else split.pairs[asked].T.reshape(-1)
        lengths = split.lengths[rows]
        arrays = {"labels": split.labels[asked], "lengths": lengths}
        if not self.packed_rows:
            return arrays | {"tokens": split.tokens[rows]}
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        tokens = np.zeros((1, self.packed_rows), np.uint8)
        # Rows behind the last sequence have all places in turn: what many rows share takes long.
        at = np.arange(self.packed_rows)[None] % split.tokens.shape[1]
        owner = np.full(self.packed_rows, len(rows), np.int64)
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            place = slice(ends[i], ends[i + 1])
            tokens[0, place] = split.tokens[row, :length]
            at[0, place] = np.arange(length)
            owner[place] = i
        return arrays | {"tokens": tokens, "at": at, "owner": owner, "cu_seqlens": ends}


def approximate(name: str) -> attention.Attend:
    file = results.FOLDER.parent / "bench/papers/approximations.py"
    spec = importlib.util.spec_from_file_location("approximations", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)

    projections: list[Tensor] = []  # of linformer: made once, fixed random numbers

    def attend(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if name != "linformer":
            return function(q, k, v).transpose(1, 2)
        if not projections:
            projections.append(module.linformer_projection(k.shape[2], k))
        return function(q, k, v, projections[0]).transpose(1, 2)

    return attend
