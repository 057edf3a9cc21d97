"""Training small classifiers: encoders, steps as CUDA graphs, checkpoints that resume bit for bit.

What a step learns from is a function of the seed and the step, so that a run that was stopped and
goes on sees what one without a stop does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import timing
from .model import Block, Config
from .train import Progress, random_state, save, set_random_state


class Encoder(nn.Module):
    """Tokens to vectors, [batch, n, width], by pre-norm blocks whose hidden layer has `hidden`."""

    def __init__(self, config: Config, hidden: int, positions: nn.Module | None) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = positions  # of no arguments: [n, width]
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        for block in self.blocks:
            block.up = nn.Linear(config.width, hidden)
            block.down = nn.Linear(hidden, config.width)
        self.norm = nn.LayerNorm(config.width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor, at: Tensor | None = None, **sequences: Any) -> Tensor:
        """`at`: the place of each token in its sequence, where that is not its column."""
        x = self.tokens(tokens.long())
        if self.positions is not None:
            # Not by indexing, whose gradient a GPU adds one row of a place after the other.
            x = x + (self.positions() if at is None else F.embedding(at, self.positions()))
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x, **sequences)
        return self.norm(x)


class Learned(nn.Module):
    """A vector for each place, [n, width]."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self) -> Tensor:
        return self.weight


def mean_of(x: Tensor, lengths: Tensor) -> Tensor:
    """Of the first lengths[i] rows of x[i], [batch, width]."""
    seen = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
    return (x * seen).sum(1) / lengths[:, None]


def mean_of_packed(x: Tensor, owner: Tensor, lengths: Tensor) -> Tensor:
    """Of packed sequences, x [1, rows, width]; owner [rows] is a row's, len(lengths) of none."""
    sums = x.new_zeros(len(lengths) + 1, x.shape[-1], dtype=torch.float32)
    sums = sums.index_add(0, owner, x[0].float())
    return sums[:-1] / lengths[:, None]


def head(width: int, hidden: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def interval(share: float, count: int) -> float:
    """Half of a 95 % interval of a share of `count`."""
    return 1.96 * math.sqrt(share * (1 - share) / count)


# Student's t at 97.5 %, of one degree of freedom and more.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def mean_and_interval(accuracies: list[float], alone: float) -> tuple[float, float]:
    """Of a mean over seeds, half a 95 % interval: all have one test set, whose interval `alone`
    does not shrink with them, and beside it the seeds differ.
    """
    n = len(accuracies)
    mean = sum(accuracies) / n
    if n == 1:
        return mean, alone
    spread = math.sqrt(sum((a - mean) ** 2 for a in accuracies) / (n - 1))
    return mean, math.hypot(alone, STUDENT[min(n - 2, 8)] * spread / math.sqrt(n))


class Steps:
    """A model, its AdamW, the tensors of a batch, and a step that learns from them.

    loss_of(inputs) is the forward pass. With is_graph, on a GPU, the whole step is a CUDA graph, so
    that launches do not hide what the GPU does; arrays given to fill() then keep their shapes.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_of: Callable[[dict[str, Tensor]], Tensor],
        arrays: Mapping[str, np.ndarray],
        device: str,
        *,
        rate: float,
        decay: float = 0.01,
        is_graph: bool = True,
    ) -> None:
        self.model, self.loss_of, self.device = model, loss_of, device
        self.is_graph = is_graph and device == "cuda"
        self.rate = torch.tensor(rate, device=device)
        self.learner = torch.optim.AdamW(
            model.parameters(),
            lr=self.rate if self.is_graph else rate,
            weight_decay=decay,
            capturable=self.is_graph,
        )
        self.loss = torch.zeros((), device=device)
        self.inputs = {key: torch.from_numpy(a).to(device) for key, a in arrays.items()}
        self.replay: Callable[[], Any] = self._step
        if self.is_graph:
            weights = {key: value.clone() for key, value in model.state_dict().items()}
            random = random_state()
            self.replay = timing.graph_of(self._step).replay
            # What warming up has learnt does not count.
            model.load_state_dict(weights)
            for value in self.moments():
                value.zero_()
            set_random_state(random)

    def fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        for key, array in arrays.items():
            if self.is_graph:
                self.inputs[key].copy_(torch.from_numpy(array))
            else:
                self.inputs[key] = torch.from_numpy(array).to(self.device)

    def _step(self) -> None:
        self.learner.zero_grad(set_to_none=not self.is_graph)
        with torch.autocast(self.device, torch.bfloat16, cache_enabled=False):
            found = self.loss_of(self.inputs)
        found.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.learner.step()
        self.loss.copy_(found.detach())

    def __call__(self, rate: float) -> None:
        if self.is_graph:
            self.rate.fill_(rate)
        else:
            self.learner.param_groups[0]["lr"] = rate
        self.replay()

    def moments(self) -> list[Tensor]:
        """AdamW's state, in one order; a graph reads these tensors, which must stay."""
        of = (self.learner.state[p] for p in self.model.parameters() if p in self.learner.state)
        return [state[key] for state in of for key in sorted(state)]

    def milliseconds(self, repeats: int = 20) -> float:
        """Of a step, by events; what it learns and draws meanwhile does not count."""
        weights = {key: value.clone() for key, value in self.model.state_dict().items()}
        moments, random = [m.clone() for m in self.moments()], random_state()
        ms = timing.median_ms(self.replay, self.device, repeats, warm=1)
        self.model.load_state_dict(weights)
        self._set_moments(moments)
        set_random_state(random)
        return ms

    def _set_moments(self, moments: list[Tensor]) -> None:
        if not moments:
            self.learner.state.clear()
            return
        if not self.learner.state:  # made by the first step, which is taken back
            rate = self.learner.param_groups[0]["lr"]
            weights = {key: value.clone() for key, value in self.model.state_dict().items()}
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.learner.step()
            self.model.load_state_dict(weights)
            self.learner.param_groups[0]["lr"] = rate
        for mine, given in zip(self.moments(), moments, strict=True):
            mine.copy_(given)

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "moments": self.moments(),
            "random": random_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._set_moments(state["moments"])
        set_random_state(state["random"])


def train(
    steps: Steps,
    batch_of: Callable[[int], Mapping[str, np.ndarray]],
    rate_of: Callable[[int], float],
    count: int,
    *,
    name: str,
    deadline: float = math.inf,
    checkpoint: Path | None = None,
    resume: bool = False,
    save_every: float = 60.0,
) -> dict[str, Any]:
    """Steps to `count`, or until the deadline, where a checkpoint is left; also every 60 seconds.

    Returns the number of steps, the loss of 20 of them, and seconds, of which `waited` for batches.
    """
    done, losses, before = 0, [], 0.0
    if resume and checkpoint is not None and checkpoint.exists():
        state = torch.load(checkpoint, map_location="cpu", weights_only=False)
        steps.load(state)
        done, losses, before = state["step"], state["losses"], state["seconds"]
    progress = Progress(name, count)
    start = last = time.time()
    waited = 0.0

    def save_now() -> None:
        if checkpoint is not None:
            seconds = before + time.time() - start
            more = {"step": done, "losses": losses, "seconds": seconds}
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            save(checkpoint, steps.state() | more)

    every = max(1, count // 20)
    first = done
    while done < count and time.time() < deadline:
        asked = time.time()
        steps.fill(batch_of(done))
        waited += time.time() - asked
        steps(rate_of(done))
        done += 1
        if done % every == 0 or done == count:
            losses.append([done, round(float(steps.loss), 4)])
            now = time.time()
            left = (count - done) * (now - start) / (done - first)
            progress(done, loss=losses[-1][1], seconds_left=left)
            if not math.isfinite(losses[-1][1]):
                raise SystemExit(f"{name}: the loss is {losses[-1][1]} at step {done}")
        if time.time() - last > save_every:
            save_now()
            last = time.time()
    timing.synchronize(steps.device)
    save_now()
    seconds = round(before + time.time() - start, 1)
    return {"steps": done, "losses": losses, "seconds": seconds, "waited": round(waited, 1)}


def linear(rate: float, count: int) -> Callable[[int], float]:
    """A tenth of the steps up, the rest down to nothing."""
    warm_up = max(1, count // 10)
    return lambda i: rate * min(1.0, (i + 1) / warm_up, (count - i) / (count - warm_up + 1))


def cosine(rate: float, count: int, warm_up: int) -> Callable[[int], float]:
    warm_up = max(1, warm_up)

    def at(i: int) -> float:
        part = (i - warm_up) / max(1, count - warm_up)
        return rate * ((i + 1) / warm_up if i < warm_up else 0.5 * (1 + math.cos(math.pi * part)))

    return at
