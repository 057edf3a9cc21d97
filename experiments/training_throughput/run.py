"""FLOP/s of training GPT-3's 1.3B and 2.7B on one GPU: table 1 of FlashAttention-2.

A sequence costs 6 n N + 12 L C n^2 FLOPs by the paper's formula (Megatron-LM's), which counts
scores above the diagonal although nobody needs them. The blocks of the model are compiled one by
one. Rows are SIZE/LENGTH/ATTENTION, with `/checkpoint` where activations of a block are computed
again in the backward pass: those FLOPs are not counted.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from ..common import data, results, timing
from ..common import picture as pictures
from ..common.attention import available
from ..common.model import GPT, SIZES, Config, optimizer
from ..common.train import Schedule, train

CELLS = ("1.3B/2048", "1.3B/8192", "2.7B/2048", "2.7B/8192")
# TFLOP/s a GPU on 8 A100: Megatron-LM without FlashAttention, FlashAttention, FlashAttention-2.
PAPER = {
    "1.3B/2048": (142, 189, 196),
    "1.3B/8192": (72, 170, 220),
    "2.7B/2048": (149, 189, 205),
    "2.7B/8192": (80, 175, 225),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cells", default="1.3B/8192,1.3B/2048", help=f"of {', '.join(CELLS)}")
    parser.add_argument("--runs", default="sdpa_cudnn,attn,sdpa_flash,eager")
    parser.add_argument("--plain", action="store_true", help="without activation checkpointing too")
    parser.add_argument("--tokens", type=int, default=16384, help="of a step")
    parser.add_argument("--steps", type=int, default=10)


def make_toy(options: argparse.Namespace) -> None:
    options.cells, options.tokens, options.steps = "toy/64", 128, 6
    options.runs, options.plain = "sdpa_flash,attn,eager", True


def one(
    cell: str, attention: str, is_checkpointed: bool, options: argparse.Namespace
) -> dict[str, Any]:
    size, length = cell.split("/")
    n = int(length)
    device = options.device
    if not available(attention, device):
        raise SystemExit(f"{attention} does not train on a {device}")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)
    config = Config(**SIZES[size], context=n, attention=attention, is_checkpointed=is_checkpointed)
    with torch.device(device):
        model = GPT(config)
    # Eager is the paper's baseline, and compiled it would be another.
    if device == "cuda" and attention != "eager":
        model.compile_parts()
    micro = max(1, options.tokens // n)

    def loss_of(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return model(tokens, targets)

    text = data.toy() if options.toy else data.load(options.data, "train")
    row = train(
        model,
        loss_of,
        optimizer(model, 1e-4),
        data.Batches(text, micro, n, options.seed, device),
        Schedule(options.steps, 1e-4, warm_up=options.steps),
        name=f"{cell}/{attention}",
        report_every=5,
        warm=3,
    )
    parameters = sum(p.numel() for p in model.parameters())
    flops = 6.0 * n * parameters + 12.0 * config.layers * config.width * n * n
    row["tflops_by_the_papers_formula"] = row["tokens_per_second"] / n * flops / 1e12
    row["parameters"] = parameters
    row["peak_megabytes"] = timing.peak_megabytes(device)
    row["card"] = results.card(device)
    del row["losses"]
    return row


def run(options: argparse.Namespace) -> dict[str, Any]:
    result = results.begin(options, ("tokens", "steps", "seed"))
    result["paper"] = {
        "on": "8 A100",
        "columns": ["Megatron-LM", "FlashAttention", "FlashAttention-2"],
    }
    result["paper"]["rows"] = {cell: list(numbers) for cell, numbers in PAPER.items()}
    kinds = (True, False) if options.plain else (True,)
    for is_checkpointed in kinds:
        for cell in options.cells.split(","):
            for attention in options.runs.split(","):
                if time.time() > options.deadline:
                    return result
                name = f"{cell}/{attention}" + ("/checkpoint" if is_checkpointed else "")
                if name in result["rows"]:
                    continue
                result["rows"][name] = results.apart(one, cell, attention, is_checkpointed, options)
                results.write_json(options.out / "result.json", result)
    return result


def summary(result: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {row['tflops_by_the_papers_formula']:.0f} TFLOP/s"
        for name, row in result["rows"].items()
        if "tflops_by_the_papers_formula" in row
    ]


def picture(result: dict[str, Any]) -> str:
    rows = {
        name: row for name, row in result["rows"].items() if "tflops_by_the_papers_formula" in row
    }
    panels = []
    for ending, title in (("/checkpoint", "activation checkpointing"), ("", "without")):
        chosen = {
            name.removesuffix(ending) if ending else name: row["tflops_by_the_papers_formula"]
            for name, row in rows.items()
            if name.endswith("/checkpoint") == bool(ending)
        }
        cells = list(dict.fromkeys(name.rpartition("/")[0] for name in chosen))
        names = list(dict.fromkeys(name.rpartition("/")[2] for name in chosen))
        series = [
            (a, pictures.colour(a), False,
             [(i + 1, chosen[f"{c}/{a}"]) for i, c in enumerate(cells) if f"{c}/{a}" in chosen])
            for a in names
        ]  # fmt: skip
        if series:
            panel = {"title": title, "x": "parameters/context", "y": "TFLOP/s", "groups": cells}
            panels.append({**panel, "series": series})
    cards = {row["card"] for row in rows.values()}
    return pictures.figure(f"Training, {', '.join(cards)}, the paper's formula", panels)
