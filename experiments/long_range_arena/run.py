"""ListOps, Text and Pathfinder of Long Range Arena with exact and approximate attention.

The models are small, as in the set-up of Nystromformer: 2 layers, width 64, 2 heads, mean pooling,
dropout 0.1, AdamW. A training step is a CUDA graph for every kind of attention, since at this size
launches would hide it. Rows are TASK/ATTENTION/SEED. ListOps is made by listops.cpp, Pathfinder by
pathfinder.cpp, Text is imdb_train.tsv.xz and imdb_test.tsv.xz of --data.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..common import attention, results, timing
from ..common import picture as pictures
from ..common.model import Block, Config
from ..common.train import Progress
from . import tasks

# Of bench/papers/approximations.py: they take no lengths, and see padding as tokens of a kind.
APPROXIMATE = ("local", "linformer", "longformer", "bigbird", "reformer")
# Length and batch.
SIZES = {
    "listops": (2048, 32),
    "text": (4096, 32),
    "pathfinder": (1024, 256),
    "toy": (256, 16),
}


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
            attention=name if is_exact else "eager",
        )
        self.dropout, self.uses_lengths = dropout, is_exact and name != "attn_block_sparse"
        self.tokens = nn.Embedding(task.vocabulary, config.width)
        self.positions = nn.Embedding(length, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        for block in self.blocks:
            block.up, block.down = nn.Linear(64, 128), nn.Linear(128, 64)
            if not is_exact:
                block.attend = approximate(name)
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, task.classes))
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        x = self.tokens(tokens.long()) + self.positions.weight
        x = F.dropout(x, self.dropout, self.training)
        sequences = {"lengths": lengths} if self.uses_lengths else {}
        for block in self.blocks:
            x = block(x, **sequences)
        seen = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
        pooled = (self.norm(x) * seen).sum(1) / lengths[:, None]
        return self.head(pooled)


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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs",
        default="listops/attn/1-3,listops/attn_block_sparse/1,listops/eager/1,"
        "listops/linformer/1,listops/local/1,text/attn/1,text/attn_block_sparse/1,text/eager/1",
        help="TASK/ATTENTION/SEEDS",
    )
    parser.add_argument("--steps", default="listops:5000,text:3000,pathfinder:62400")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--dropout", type=float, default=0.1)


def make_toy(options: argparse.Namespace) -> None:
    options.runs = "toy/attn/1,toy/attn_block_sparse/1,toy/eager/1,toy/linformer/1,toy/local/1"
    options.steps = "toy:6"


def load(name: str, options: argparse.Namespace) -> tasks.Task:
    folder = options.data
    if name == "text":
        return tasks.text(folder, SIZES[name][0])
    if name == "pathfinder":
        if not (folder / "pathfinder_32_0.labels").exists():
            tasks.make_pathfinder(folder, 32, tasks.PATHFINDER, os.cpu_count() or 1)
        return tasks.pathfinder(folder, 32, tasks.PATHFINDER)
    counts, bounds = tasks.COUNTS, (500, 2000)
    if name == "toy":
        folder = Path(tempfile.mkdtemp())
        counts, bounds = {"train": 100, "validation": 10, "test": 64}, (50, 250)
    if not (folder / "listops.json").exists():
        tasks.make_listops(folder, counts, *bounds)
    return tasks.listops(folder, SIZES[name][0], counts)


def interval(accuracy: float, count: int) -> float:
    """Half of a 95 % interval of a share."""
    return 1.96 * math.sqrt(accuracy * (1 - accuracy) / count)


def one(
    name: str, kind: str, seed: int, steps: int, task: tasks.Task, options: argparse.Namespace
) -> dict[str, Any]:
    device = options.device
    torch.manual_seed(seed)
    length, batch = SIZES[name]
    with torch.device(device):
        model = Classifier(task, length, kind, options.dropout)
    rate = torch.tensor(options.rate, device=device)
    is_cuda = device == "cuda"
    learner = torch.optim.AdamW(
        model.parameters(), lr=rate if is_cuda else options.rate, capturable=is_cuda
    )
    random = np.random.default_rng(seed)
    tokens = torch.zeros(batch, length, dtype=torch.uint8, device=device)
    lengths = torch.ones(batch, dtype=torch.int32, device=device)
    labels = torch.zeros(batch, dtype=torch.int64, device=device)
    loss = torch.zeros((), device=device)

    def logits() -> Tensor:
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            return model(tokens, lengths).float()

    def fill(split: tasks.Split, rows: np.ndarray) -> None:
        tokens[: len(rows)].copy_(torch.from_numpy(split.tokens[rows]))
        lengths[: len(rows)].copy_(torch.from_numpy(split.lengths[rows]))
        labels[: len(rows)].copy_(torch.from_numpy(split.labels[rows]))

    def step() -> None:
        learner.zero_grad(set_to_none=False)
        found = F.cross_entropy(logits(), labels)
        found.backward()
        learner.step()
        loss.copy_(found.detach())

    fill(task.train, random.integers(0, len(task.train.labels), batch))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    replay: Callable[[], Any] = timing.graph_of(step).replay if is_cuda else step
    ms = timing.median_ms(replay, device, repeats=20 if is_cuda else 1, warm=1)
    # What warming up has learnt does not count.
    model.load_state_dict(state)
    for values in learner.state.values():
        for value in values.values():
            value.zero_()
    progress = Progress(f"{name}/{kind}/{seed}", steps)
    warm_up = max(1, steps // 10)
    losses = []
    for i in range(steps):
        fill(task.train, random.integers(0, len(task.train.labels), batch))
        now = options.rate * min(1.0, (i + 1) / warm_up, (steps - i) / (steps - warm_up + 1))
        if is_cuda:
            rate.fill_(now)
        else:
            learner.param_groups[0]["lr"] = now
        replay()
        if (i + 1) % max(1, steps // 10) == 0:
            losses.append(round(float(loss), 4))
            progress(i + 1, loss=losses[-1])
    model.eval()
    right = 0
    count = len(task.test.labels)
    with torch.no_grad():
        for start in range(0, count, batch):
            rows = np.arange(start, min(start + batch, count))
            fill(task.test, rows)
            right += int((logits().argmax(1) == labels)[: len(rows)].sum())
    accuracy = right / count
    return {
        "steps": steps,
        "accuracy": accuracy,
        "interval_95": interval(accuracy, count),
        "step_milliseconds": ms,
        "losses": losses,
        "peak_megabytes": timing.peak_megabytes(device),
        "card": results.card(device),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    result = results.begin(options, ("rate", "steps", "dropout")) | {"known": {}}
    steps = {n: int(count) for n, _, count in (s.partition(":") for s in options.steps.split(","))}
    loaded: dict[str, tasks.Task] = {}
    for planned in options.runs.split(","):
        name, kind, seeds = planned.split("/")
        if name not in loaded:
            loaded[name] = load(name, options)
            result["known"][name] = loaded[name].known
        first, _, last = seeds.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            if time.time() > options.deadline:
                return result
            if f"{name}/{kind}/{seed}" in result["rows"]:
                continue
            row = results.apart(one, name, kind, seed, steps[name], loaded[name], options)
            result["rows"][f"{name}/{kind}/{seed}"] = row
            results.write_json(options.out / "result.json", result)
    return result


def means(result: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Of each task and attention: accuracy over the seeds, and the step in milliseconds."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for key, row in result["rows"].items():
        name, kind, _ = key.split("/")
        if "accuracy" in row:
            found.setdefault(name, {}).setdefault(kind, []).append(row)
    return {
        name: {
            kind: {
                "accuracy": sum(r["accuracy"] for r in rows) / len(rows),
                "interval": rows[0]["interval_95"] / math.sqrt(len(rows)),
                "ms": sum(r["step_milliseconds"] for r in rows) / len(rows),
                "seeds": len(rows),
            }
            for kind, rows in kinds.items()
        }
        for name, kinds in found.items()
    }


def summary(result: dict[str, Any]) -> list[str]:
    lines = []
    for name, kinds in means(result).items():
        shown = ", ".join(
            f"{kind} {100 * m['accuracy']:.1f} ± {100 * m['interval']:.1f} %, {m['ms']:.2f} ms"
            for kind, m in kinds.items()
        )
        lines.append(f"{name}: {shown}")
        if "root_operator" in result["known"].get(name, {}):
            known = 100 * result["known"][name]["root_operator"]
            lines.append(f"{name}: knowing only the root operator gives {known:.1f} %")
    return lines


def picture(result: dict[str, Any]) -> str:
    panels = []
    for name, kinds in means(result).items():
        for key, label, factor in (("accuracy", "%", 100.0), ("ms", "ms a step", 1.0)):
            values = {kind: m[key] * factor for kind, m in kinds.items()}
            series = [(kind, i, False, [(1, v)]) for i, (kind, v) in enumerate(values.items())]
            panels.append(
                {"title": f"{name}: {key}", "x": "", "y": label, "groups": [""], "series": series}
            )
    cards = {row["card"] for row in result["rows"].values() if "card" in row}
    return pictures.figure(f"Long Range Arena, {', '.join(cards)}", panels)
