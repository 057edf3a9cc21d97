"""Which packages does this Python file import? Micro-F1 by how many of its tokens a model reads.

One model, trained anew at each of 512 to 16384 tokens with the same documents in the same order;
lines that import are taken out, and packages of the test are not trained on. Rows are
ATTENTION/TOKENS/SEEDS. bag/TOKENS/SEEDS has no attention: words are counted, in any order.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..common import classify, results, timing
from ..common import picture as pictures
from ..common.attention import available
from ..common.model import Config
from . import documents

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
SHAPE = {"layers": 4, "heads": 4, "width": 256}
# FlashAttention, table 5: micro-F1 at LENGTHS.
PAPER = {
    "MIMIC-III": (52.8, 50.7, 51.7, 54.6, 56.4, 57.1),
    "ECtHR": (72.2, 74.3, 77.1, 78.6, 80.7, 79.2),
}


def default_runs() -> str:
    """The ends first, then what is between, then other seeds of the ends."""
    order = (512, 16384, 4096, 1024, 2048, 8192)
    runs = [f"attn/{n}/1" for n in order] + [f"bag/{n}/1" for n in LENGTHS]
    return ",".join(runs + [f"attn/{n}/2-3" for n in order])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", default=default_runs(), help="ATTENTION/TOKENS/SEEDS")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=16, help="documents of a step")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--dropout", type=float, default=0.1)


def make_toy(options: argparse.Namespace) -> None:
    options.runs = "bag/64/1,bag/256/1,attn/64/1-2"
    options.steps, options.batch = 3, 4


def prepare(options: argparse.Namespace) -> None:
    documents.load(options.data)


class Labeller(nn.Module):
    """An encoder of packed documents, mean pooling, and a score for each label."""

    def __init__(self, task: documents.Task, n: int, attention: str, dropout: float) -> None:
        super().__init__()
        config = Config(
            **SHAPE,
            vocabulary=task.vocabulary,
            context=n,
            dropout=dropout,
            causal=False,
            attention=attention,
        )
        self.n = n
        places = classify.Learned(n, config.width)
        self.encoder = classify.Encoder(config, 4 * config.width, places)
        self.head = nn.Linear(config.width, len(task.names))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        ends = {"cu_seqlens": batch["cu_seqlens"], "longest": self.n}
        x = self.encoder(batch["tokens"], batch["at"], **ends)
        return self.head(classify.mean_of_packed(x, batch["owner"], batch["lengths"]))


class Bag(nn.Module):
    """A linear model of log(1 + count) of each token, scaled to length 1."""

    def __init__(self, task: documents.Task) -> None:
        super().__init__()
        self.weight = nn.EmbeddingBag(task.vocabulary, len(task.names), mode="sum")
        nn.init.zeros_(self.weight.weight)
        self.bias = nn.Parameter(torch.zeros(len(task.names)))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        words, starts, scales = (batch[key] for key in ("words", "starts", "scales"))
        return self.weight(words, starts, per_sample_weights=scales) + self.bias


def bags(split: documents.Split, rows: np.ndarray, n: int) -> dict[str, np.ndarray]:
    words, scales, starts = [], [], []
    for i in rows:
        found, counts = np.unique(split.tokens[i][:n], return_counts=True)
        starts.append(sum(len(w) for w in words))
        words.append(found.astype(np.int64))
        logs = np.log1p(counts)
        scales.append((logs / np.linalg.norm(logs)).astype(np.float32))
    return {
        "words": np.concatenate(words),
        "scales": np.concatenate(scales),
        "starts": np.array(starts, np.int64),
        "labels": split.labels[rows],
    }


def scores_of(
    model: nn.Module, split: documents.Split, arrays_of: Any, n: int, batch: int, device: str
) -> np.ndarray:
    """Scores of all documents, [documents, labels]; of like lengths together."""
    model.eval()
    order = np.argsort([len(t) for t in split.tokens], kind="stable")
    scores = np.zeros(split.labels.shape, np.float32)
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        inputs = {k: torch.from_numpy(a).to(device) for k, a in arrays_of(split, rows, n).items()}
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            scores[rows] = model(inputs).float().cpu().numpy()
    return scores


def one(
    kind: str, n: int, seed: int, task: documents.Task, options: argparse.Namespace
) -> dict[str, Any]:
    device = options.device
    is_bag = kind == "bag"
    if not is_bag and not available(kind, device):
        raise SystemExit(f"{kind} does not train on a {device}")
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    with torch.device(device):
        model = Bag(task) if is_bag else Labeller(task, n, kind, options.dropout)
    arrays_of = bags if is_bag else documents.packed
    train = task.splits["train"]

    def batch_of(step: int) -> dict[str, np.ndarray]:
        rows = documents.drawn(train, options.batch, seed, step)
        return arrays_of(train, rows, n)

    def loss_of(inputs: dict[str, Tensor]) -> Tensor:
        scores = model(inputs).float()
        return F.binary_cross_entropy_with_logits(scores, inputs["labels"])

    rate = 0.05 if is_bag else options.rate
    # Shapes follow the documents, so a step is no graph; it is long beside its launches.
    steps = classify.Steps(model, loss_of, {}, device, rate=rate, is_graph=False)
    checkpoint = options.out / f"{kind}_{n}_{seed}.checkpoint.pt"
    row = classify.train(
        steps,
        batch_of,
        classify.linear(rate, options.steps),
        options.steps,
        name=f"{kind}/{n}/{seed}",
        deadline=options.deadline,
        checkpoint=None if options.no_checkpoint else checkpoint,
        resume=options.resume,
    )
    row |= {"planned": options.steps, "card": results.card(device)}
    if row["steps"] < options.steps:
        return row
    row["peak_megabytes"] = timing.peak_megabytes(device)
    row["step_milliseconds"] = 1e3 * row["seconds"] / row["steps"]
    found = {
        split: scores_of(model, task.splits[split], arrays_of, n, options.batch, device)
        for split in ("validation", "test")
    }
    threshold = documents.best_threshold(found["validation"], task.splits["validation"].labels)
    checkpoint.unlink(missing_ok=True)
    return row | documents.measured(found["test"], task.splits["test"], threshold)


def known(task: documents.Task) -> dict[str, Any]:
    """What is known of the documents, and F1 of who says the same labels of all of them."""
    lengths = [len(t) for split in task.splits.values() for t in split.tokens]
    train, test = task.splits["train"].labels, task.splits["test"].labels
    share = np.broadcast_to(train.mean(0), train.shape)
    threshold = documents.best_threshold(share, train)
    table = documents.counts(np.broadcast_to(train.mean(0), test.shape), test, threshold)
    return {
        "documents": {name: len(split.tokens) for name, split in task.splits.items()},
        "labels": task.names,
        "labels_a_document": float(train.sum(1).mean()),
        "tokens_quartiles": [int(q) for q in np.quantile(lengths, (0.25, 0.5, 0.75, 0.95))],
        "f1_same_for_all": documents.f1(table),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    task = documents.toy() if options.toy else documents.load(options.data)
    result = results.begin(options, ("steps", "batch", "rate", "dropout")) | {"known": known(task)}
    for planned in options.runs.split(","):
        kind, n, seeds = planned.split("/")
        first, _, last = seeds.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            key = f"{kind}/{n}/{seed}"
            if time.time() > options.deadline:
                return result
            if "f1" in result["rows"].get(key, {}):
                continue
            result["rows"][key] = results.apart(one, kind, int(n), seed, task, options)
            results.write_json(options.out / "result.json", result)
    return result


def means(result: dict[str, Any], key: str = "f1") -> dict[str, dict[int, tuple[float, float]]]:
    """Of each kind and length: F1 over the seeds, and half of a 95 % interval of it."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for name, row in result["rows"].items():
        kind, n, _ = name.split("/")
        if key in row:
            found.setdefault(kind, {}).setdefault(int(n), []).append(row)
    interval = "interval_95" + key.removeprefix("f1")
    return {
        kind: {
            n: classify.mean_and_interval([r[key] for r in rows], rows[0][interval])
            for n, rows in sorted(of.items())
        }
        for kind, of in found.items()
    }


def summary(result: dict[str, Any]) -> list[str]:
    lines = []
    for key, said in (("f1", "all documents"), ("f1_long", f"more than {documents.LONG} tokens")):
        for kind, of in means(result, key).items():
            shown = ", ".join(f"{n}: {100 * m:.1f} ± {100 * i:.1f}" for n, (m, i) in of.items())
            lines.append(f"{kind}, micro-F1 of {said}: {shown}")
            if len(of) > 1:
                (_, (first, a)), *_, (n, (last, b)) = of.items()
                rises = last - first > (a**2 + b**2) ** 0.5
                lines.append(f"{kind}, {said}: F1 {'rises' if rises else 'does not rise'} to {n}")
    constant = 100 * result["known"]["f1_same_for_all"]
    lines.append(f"saying the same labels of all documents gives {constant:.1f}")
    for name, values in PAPER.items():
        shown = ", ".join(f"{n}: {v}" for n, v in zip(LENGTHS, values, strict=True))
        lines.append(f"paper, {name}: {shown}")
    return lines


def picture(result: dict[str, Any]) -> str:
    panels = []
    for key, title in (("f1", "all documents"), ("f1_long", f"over {documents.LONG} tokens")):
        series = [
            (kind, pictures.colour(kind), False, [(n, 100 * m) for n, (m, _) in of.items()])
            for kind, of in means(result, key).items()
        ]
        if series:
            panels.append(
                {
                    "title": title,
                    "x": "tokens read",
                    "y": "micro-F1",
                    "log_x": True,
                    "series": series,
                }
            )
    cards = sorted({row["card"] for row in result["rows"].values() if "card" in row})
    return pictures.figure(f"Which packages does a file import? {', '.join(cards)}", panels)
