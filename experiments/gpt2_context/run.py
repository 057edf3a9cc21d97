"""GPT-2 with 1k to 16k tokens of context, equal tokens a step: loss by position, speed, memory.

Rows are ATTENTION/CONTEXT, and ATTENTION/CONTEXT:N for N steps, for speed alone. The loss is that
of long documents of packages that were not trained on. A model with n tokens of context reads them
in pieces of n: all models predict the same tokens, with more or less of the document before them.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import numpy as np
import torch

from ..common import data, results, timing
from ..common import picture as pictures
from ..common.attention import available
from ..common.model import GPT, SIZES, Config, optimizer
from ..common.train import Schedule, train

LONG = 16384  # of the documents whose loss is reported
BUCKETS = (0, 1024, 2048, 4096, 8192, 16384)
RUNS = (
    "attn/1024,attn/4096,attn/16384,sdpa_cudnn/4096:20,eager/1024:20,sdpa_cudnn/1024:20,"
    "eager/4096:8,attn/2048,attn/8192,sdpa_cudnn/16384:20"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", default=RUNS)
    parser.add_argument("--size", default="124M", choices=list(SIZES))
    parser.add_argument("--tokens", type=int, default=65536, help="of a step")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--documents", type=int, default=64, help="at most, for the loss")


def make_toy(options: argparse.Namespace) -> None:
    options.runs = "attn/64,sdpa_flash/64,attn/128,eager/64:4"
    options.size, options.tokens, options.steps = "toy", 512, 12


def long_documents(tokens: np.ndarray, length: int, most: int) -> np.ndarray:
    """The first length + 1 tokens of documents that have so many, [documents, length + 1]."""
    starts = np.flatnonzero(tokens == data.END)
    lengths = np.diff(np.append(starts, len(tokens)))
    chosen = starts[lengths > length][:most]
    if len(chosen) == 0:
        raise SystemExit(f"no document for validation has {length} tokens")
    return np.stack([tokens[s : s + length + 1] for s in chosen])


def loss_by_position(loss_of: Any, text: np.ndarray, n: int, device: str) -> dict[str, Any]:
    """Mean loss between positions, with its standard error over the documents."""
    length = text.shape[1] - 1
    rows = torch.from_numpy(text.astype(np.int64))
    losses = []
    for row in rows:  # a document at a time
        tokens, targets = (t.reshape(-1, n).to(device) for t in (row[:-1], row[1:]))
        with torch.no_grad():
            losses.append(loss_of(tokens, targets).reshape(length).float().cpu())
    table = torch.stack(losses)
    found: dict[str, Any] = {"documents": len(rows)}
    bounds = [b for b in BUCKETS if b <= length] if length >= 1024 else [0, length // 2, length]
    for a, b in itertools.pairwise(bounds):
        means = table[:, a:b].mean(dim=1)
        error = float(means.std() / len(means) ** 0.5) if len(means) > 1 else None
        found[f"{a}-{b}"] = [float(means.mean()), error]
    return found


def one(attention: str, n: int, stop: int, options: argparse.Namespace) -> dict[str, Any]:
    device = options.device
    if not available(attention, device):
        raise SystemExit(f"{attention} does not train on a {device}")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)
    with torch.device(device):
        model = GPT(Config(**SIZES[options.size], context=n, attention=attention))
    if device == "cuda" and attention != "eager":
        model.compile_parts()

    def loss_of(tokens: torch.Tensor, targets: torch.Tensor, kind: str = "mean") -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return model(tokens, targets, kind)

    text = data.toy() if options.toy else data.load(options.data, "train")
    batch = options.tokens // n
    # Eager keeps every score for the backward pass: as many of them at any length.
    most = max(1, 32768 * 1024 // n) if attention == "eager" else 32768
    micro = max(1, min(batch, most // n))
    row = train(
        model,
        loss_of,
        optimizer(model, options.rate),
        data.Batches(text, batch, n, options.seed, device),
        Schedule(options.steps, options.rate, warm_up=max(1, options.steps // 10)),
        name=f"{attention}/{n}",
        micro_batches=batch // micro,
        stop=stop,
        seconds=options.deadline - time.time(),
        checkpoint=None
        if options.no_checkpoint
        else options.out / f"{attention}_{n}.checkpoint.pt",
        resume=options.resume,
    )
    row["peak_megabytes"] = timing.peak_megabytes(device)
    row["sequences_in_a_micro_batch"] = micro
    row["card"] = results.card(device)
    if stop == options.steps:
        model.eval()
        held_out = (
            data.toy()[: 4 * 257].reshape(4, 257)
            if options.toy
            else long_documents(data.load(options.data, "validation"), LONG, options.documents)
        )
        with torch.compiler.set_stance("force_eager"):  # sooner than compiling it without gradients
            row["loss_by_position"] = loss_by_position(
                lambda tokens, targets: loss_of(tokens, targets, "none"), held_out, n, device
            )
    return row


def run(options: argparse.Namespace) -> dict[str, Any]:
    keys = ("size", "tokens", "steps", "rate", "seed")
    result = results.begin(options, keys)
    for planned in options.runs.split(","):
        if time.time() > options.deadline:
            break
        name, _, stop = planned.partition(":")
        attention, n = name.split("/")
        steps = int(stop or options.steps)
        if result["rows"].get(name, {}).get("steps", -1) >= steps:
            continue
        result["rows"][name] = results.apart(one, attention, int(n), steps, options)
        results.write_json(options.out / "result.json", result)
    return result


def summary(result: dict[str, Any]) -> list[str]:
    lines = []
    for name, row in result["rows"].items():
        if not row.get("tokens_per_second"):
            continue
        line = f"{name}: {row['tokens_per_second'] / 1e3:,.0f}k tokens/s"
        found = row.get("loss_by_position", {})
        last = [value for key, value in found.items() if key != "documents"]
        if last:
            line += f", loss {last[-1][0]:.3f} behind the most of a document"
        lines.append(line)
    return lines


def picture(result: dict[str, Any]) -> str:
    rows = {n: r for n, r in result["rows"].items() if r.get("tokens_per_second")}
    with_loss = [
        (name, r["loss_by_position"])
        for name, r in sorted(rows.items(), key=lambda row: int(row[0].split("/")[1]))
        if "loss_by_position" in r
    ]
    panels: list[dict[str, Any]] = []
    if with_loss:
        buckets = [key for key in with_loss[0][1] if key != "documents"]
        panels.append(
            {
                "title": "loss by position in the document",
                "x": "tokens",
                "y": "nats",
                "groups": buckets,
                "series": [
                    (name, i, False, [(j + 1, f[b][0]) for j, b in enumerate(buckets)])
                    for i, (name, f) in enumerate(with_loss)
                ],
            }
        )
    of: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for name, row in rows.items():
        attention, n = name.split("/")
        of.setdefault(attention, []).append((int(n), row))
    for key, label, factor in (
        ("tokens_per_second", "1000 tokens/s", 1e-3),
        ("peak_megabytes", "GB", 1 / 1024),
    ):
        series = [
            (a, pictures.colour(a), False, [(n, r[key] * factor) for n, r in sorted(points)])
            for a, points in of.items()
            if all(row[key] for _, row in points)
        ]
        if series and len({n for points in of.values() for n, _ in points}) > 1:  # lines
            panels.append(
                {"title": key.replace("_", " "), "x": "context", "y": label, "log_x": True}
                | {"series": series}
            )
    cards = {row["card"] for row in rows.values()}
    return pictures.figure(f"GPT-2 {result['options']['size']}, {', '.join(cards)}", panels)
