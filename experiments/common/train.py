"""The training loop: micro-batches, warm-up and cosine, checkpoints that resume bit for bit."""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .data import Batches
from .timing import synchronize


@dataclass
class Schedule:
    steps: int
    rate: float
    warm_up: int
    clip: float = 1.0
    least: float = 0.1  # of the rate, at the end

    def at(self, step: int) -> float:
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        part = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.rate * (self.least + (1 - self.least) * 0.5 * (1 + math.cos(math.pi * part)))


class Progress:
    """A line that moves on a terminal; in a pipe a line of JSON for each report."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps = name, steps
        self.is_terminal = sys.stderr.isatty()

    def __call__(self, step: int, **numbers: float) -> None:
        if not self.is_terminal:
            rounded = {key: round(value, 4) for key, value in numbers.items()}
            print(json.dumps({"run": self.name, "step": step, **rounded}), flush=True)
            return
        shown = "  ".join(f"{key} {value:,.4g}" for key, value in numbers.items())
        print(f"\r{self.name}  {step}/{self.steps}  {shown}   ", end="", file=sys.stderr)
        if step == self.steps:
            print(file=sys.stderr)


def save(path: Path, state: dict[str, Any]) -> None:
    """Whole or not at all."""
    beside = path.with_name(path.name + ".new")
    torch.save(state, beside)
    beside.replace(path)


def random_state() -> dict[str, Any]:
    """Of every generator that dropout may draw from."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def train(
    model: nn.Module,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    schedule: Schedule,
    *,
    name: str,
    micro_batches: int = 1,
    stop: int | None = None,
    seconds: float = math.inf,
    checkpoint: Path | None = None,
    checkpoint_every: int = 0,
    resume: bool = False,
    report_every: int = 10,
    warm: int = 3,
) -> dict[str, Any]:
    """Trains to schedule.steps, or to `stop`, or until `seconds` have passed: then a checkpoint is
    written.

    loss_of(tokens, targets) is the model's forward pass, compiled or not. Returns the loss of each
    step, and tokens a second: the median over the reports, without the first `warm` steps of this
    process, which compile.
    """
    device = batches.device
    losses: list[float] = []
    first = 0
    if resume and checkpoint is not None and checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        losses, first = state["losses"], state["step"]
        set_random_state({**state["random"], **_on_cpu(state["random"])})

    def save_now(step: int) -> None:
        if checkpoint is not None:
            save(
                checkpoint,
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "losses": losses,
                    "step": step,
                    "random": random_state(),
                },
            )

    last = schedule.steps if stop is None else min(stop, schedule.steps)
    progress = Progress(name, last)
    tokens_a_step = batches.batch * batches.n
    start = time.time()
    waiting: list[Tensor] = []  # losses on the device: reading one waits for it
    timed_from = start
    last_time, last_step = start, first
    speeds: list[float] = []  # of each report's steps
    step = first
    while step < last:
        for group in optimizer.param_groups:
            group["lr"] = schedule.at(step)
        tokens, targets = batches(step)
        total = torch.zeros((), device=device)
        for part, part_targets in zip(
            tokens.chunk(micro_batches), targets.chunk(micro_batches), strict=True
        ):
            loss = loss_of(part, part_targets) / micro_batches
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        waiting.append(total)
        step += 1
        if step - first == warm:
            synchronize(device)
            timed_from = time.time()
            last_time, last_step = timed_from, step
        if step % report_every == 0 or step == last:
            losses += [float(x) for x in torch.stack(waiting)]
            waiting.clear()
            now = time.time()
            speed = (step - last_step) * tokens_a_step / max(now - last_time, 1e-9)
            if step > warm + first:
                speeds.append(speed)
            last_time, last_step = now, step
            left = (last - step) * tokens_a_step / speed if speed else math.nan
            progress(step, loss=losses[-1], tokens_per_second=speed, seconds_left=left)
            if not math.isfinite(losses[-1]):
                raise SystemExit(f"{name}: the loss is {losses[-1]} at step {step}")
            if now - start > seconds:
                break
            if checkpoint_every and step % checkpoint_every == 0:
                save_now(step)
                last_time = time.time()  # writing a checkpoint is no training
    if step < last or checkpoint_every:
        save_now(step)
    return {
        "steps": step,
        "losses": losses,
        "tokens_per_second": statistics.median(speeds) if speeds else None,
        "speeds": [round(speed) for speed in speeds],
        "seconds_first_steps": round(timed_from - start, 1),
    }


def _on_cpu(states: dict[str, Any]) -> dict[str, Any]:
    """States of generators are in CPU memory, whatever the checkpoint was loaded to."""
    return {key: value.cpu() for key, value in states.items() if isinstance(value, Tensor)}
