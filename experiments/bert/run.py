"""A training step of BERT-large at 512 tokens with LAMB: padded, and packed without padding.

Rows are ATTENTION/padded, where keys of padding are masked, and attn/packed, where a batch is one
row of tokens and cu_seqlens says where sequences begin. Blocks and loss are compiled, but eager's.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..common import picture as pictures
from ..common import results, timing
from ..common.attention import available
from ..common.model import Block, Config, cross_entropy
from ..common.train import Progress, Schedule
from . import batches
from .lamb import Lamb

SIZES = {
    "large": {"layers": 24, "heads": 16, "width": 1024},
    "toy": {"layers": 2, "heads": 2, "width": 64, "vocabulary": 300},
}


class Bert(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.tokens = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(config.context, width)
        self.first = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.transform, self.transformed = nn.Linear(width, width), nn.LayerNorm(width)
        self.loss_of = cross_entropy
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, batch: batches.Batch, sequences: dict[str, Any]) -> Tensor:
        x = self.first(self.tokens(batch.tokens) + self.positions(batch.positions))
        for block in self.blocks:
            x = block(x, **sequences)
        chosen = self.norm(x).flatten(0, 1)[batch.predicted]
        hidden = self.transformed(F.gelu(self.transform(chosen)))
        return self.loss_of(hidden, self.tokens.weight, batch.targets)


def add_options(parser: argparse.ArgumentParser) -> None:
    rows = "attn/packed,sdpa/padded,attn/padded,sdpa_cudnn/padded,eager/padded"
    parser.add_argument("--runs", default=rows)
    parser.add_argument("--size", default="large", choices=list(SIZES))
    parser.add_argument("--batch", type=int, default=56)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--texts", type=int, default=8000)


def make_toy(options: argparse.Namespace) -> None:
    options.runs = "attn/packed,attn/padded,sdpa/padded,eager/padded"
    options.size, options.batch, options.length, options.steps = "toy", 6, 64, 12


def one(name: str, texts: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    attention, form = name.split("/")
    device = options.device
    if not available(attention, device):
        raise SystemExit(f"{attention} does not train on a {device}")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)
    config = Config(
        **SIZES[options.size], context=options.length, causal=False, attention=attention
    )
    with torch.device(device):
        model = Bert(config)
    if device == "cuda" and attention != "eager":
        for block in model.blocks:
            block.compile(dynamic=False)
        model.loss_of = torch.compile(cross_entropy, dynamic=False)
    batch_of = batches.Masked(texts, options.batch, options.length, config.vocabulary, options.seed)
    rows = batch_of.rows(options.steps) if form == "packed" else 0
    optimizer = Lamb(model.parameters(), options.rate)
    schedule = Schedule(options.steps, options.rate, warm_up=max(1, options.steps // 5))
    progress = Progress(name, options.steps)
    # Made beforehand: reading text is no part of a step.
    made = [batch_of(step, rows, device) for step in range(options.steps)]
    losses: list[Tensor] = []
    warm = min(10, options.steps // 2)
    start = time.time()
    for step, batch in enumerate(made):
        for group in optimizer.param_groups:
            group["lr"] = schedule.at(step)
        if form == "packed":
            sequences = {"cu_seqlens": batch.cu_seqlens, "longest": options.length}
        else:
            sequences = {"lengths": batch.lengths}
        with torch.autocast(device, torch.bfloat16):
            loss = model(batch, sequences)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        if step + 1 == warm:
            timing.synchronize(device)
            start = time.time()
        if (step + 1) % 10 == 0:
            progress(step + 1, loss=float(loss.detach()))
    timing.synchronize(device)
    seconds = (time.time() - start) / (options.steps - warm)
    return {
        "steps": options.steps,
        "losses": [round(float(x), 5) for x in losses],
        "milliseconds": 1e3 * seconds,
        "sequences_per_second": options.batch / seconds,
        "rows_of_a_step": rows or options.batch * options.length,
        "mean_length": sum(len(t) for t in texts) / len(texts),
        "peak_megabytes": timing.peak_megabytes(device),
        "parameters": sum(p.numel() for p in model.parameters()),
        "card": results.card(device),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    keys = ("size", "batch", "length", "steps", "rate", "seed")
    result = results.begin(options, keys)
    if options.toy:
        texts = batches.toy_sequences(options.length)
    else:
        texts = batches.sequences(options.data, options.length, options.texts)
    for name in options.runs.split(","):
        if time.time() > options.deadline:
            break
        if name in result["rows"]:
            continue
        result["rows"][name] = results.apart(one, name, texts, options)
        results.write_json(options.out / "result.json", result)
    return result


def summary(result: dict[str, Any]) -> list[str]:
    rows = {n: r for n, r in result["rows"].items() if "milliseconds" in r}
    lines = [
        f"{name}: {row['milliseconds']:.0f} ms, {row['sequences_per_second']:.0f} sequences/s"
        for name, row in rows.items()
    ]
    if len(rows) > 1:
        ends = {n: sum(r["losses"][-10:]) / len(r["losses"][-10:]) for n, r in rows.items()}
        shown = ", ".join(f"{name} {loss:.3f}" for name, loss in ends.items())
        lines.append(f"loss of the last 10 steps: {shown}")
    return lines


def picture(result: dict[str, Any]) -> str:
    rows = {n: r for n, r in result["rows"].items() if "milliseconds" in r}
    colours = {name: i for i, name in enumerate(rows)}
    loss = [
        (name, colours[name], False, pictures.thinned(pictures.smooth(row["losses"], 5), 5))
        for name, row in rows.items()
    ]
    speed = [
        (name, colours[name], False, [(1, row["sequences_per_second"])])
        for name, row in rows.items()
    ]
    panels = [
        {"title": "loss, means of 5 steps", "x": "step", "y": "nats", "log_y": True, "marks": False}
        | {"series": loss},
        {"title": "speed", "x": "", "y": "sequences/s", "groups": [""], "series": speed},
    ]
    cards = {row["card"] for row in rows.values()}
    o = result["options"]
    return pictures.figure(f"BERT-large, {o['batch']} x {o['length']}, {', '.join(cards)}", panels)
