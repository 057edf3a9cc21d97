"""Path-X and Path-256: are two discs on one curve, of 16k and of 64k pixels in a row of tokens?

A curriculum: images of 32 x 32, then 64, 128 (Path-X) and 256 (Path-256), all fresh from
../long_range_arena/pathfinder.cpp. Each stage begins with the weights of the one before it. Stages
are SIZE[xDASHES]/ATTENTION:STEPS, rows POSITIONS/SIZE[xDASHES]/ATTENTION: "grid" has learned
vectors of rows and columns, doubled from stage to stage as in the paper, "rotary" turns Q and K.
Rows speed/SIZE/ATTENTION are of one step. A curriculum whose 64 stays below 60 % stops there.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..common import classify, results, timing
from ..common import picture as pictures
from ..common.attention import available
from ..long_range_arena.tasks import by_key, compiled, distance
from .images import SPLITS, Stream, batch_of
from .model import PathModel, grown

HARD = 14  # dashes of a curve
LARGE = "128/attn:4000,128/attn_block_sparse:4000,256/attn_block_sparse:4000"
STAGES = {
    "grid": f"32/attn:20000,64/attn:10000,{LARGE}",
    "rotary": f"32x6/attn:5000,32/attn:15000,64/attn:10000,{LARGE}",
}
SPEED = "128/eager,128/attn,128/attn_block_sparse,256/eager,256/attn,256/attn_block_sparse"
# Of a step, and how often an image is seen: small ones are learnt from faster than they are made.
BATCH = "32:256,64:128,128:32,256:16"
REPEATS = "32:16,64:4,128:1,256:1"
SIGMAS = 5.0


@dataclass
class Stage:
    name: str
    size: int
    dashes: int
    attention: str
    steps: int

    @staticmethod
    def of(text: str) -> Stage:
        name, _, steps = text.partition(":")
        image, attention = name.split("/")
        size, _, dashes = image.partition("x")
        return Stage(name, int(size), int(dashes or HARD), attention, int(steps))


def before(stages: list[Stage], index: int) -> Stage | None:
    """Whose weights a stage begins with: the last one of smaller images, or of its attention."""
    me = stages[index]
    fitting = [s for s in stages[:index] if s.size < me.size or s.attention == me.attention]
    return fitting[-1] if fitting else None


def by_size(text: str) -> dict[int, int]:
    return {int(size): int(n) for size, _, n in (part.partition(":") for part in text.split(","))}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--positions", default="grid,rotary")
    parser.add_argument("--stages", help="of all curricula, instead of their own")
    parser.add_argument("--speed", default=SPEED, help="SIZE/ATTENTION; empty: none")
    parser.add_argument("--batch", default=BATCH, help="SIZE:IMAGES of a step")
    parser.add_argument("--repeats", default=REPEATS, help="SIZE:TIMES that an image is seen")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.0, help="images are fresh")
    parser.add_argument("--test", type=int, default=10_000, help="fresh images")
    parser.add_argument("--shard", type=int, default=500, help="images that a program makes")
    parser.add_argument("--processes", type=int, default=results.cores(), help="that make images")
    parser.add_argument("--least", type=float, default=0.6, help="of 64 x 64, to go on")


def make_toy(options: argparse.Namespace) -> None:
    options.stages = "32x6/attn:3,64x6/attn_block_sparse:1"
    options.speed, options.batch, options.repeats = "32/attn,32/eager", "32:4,64:1", "32:8,64:4"
    options.test, options.shard, options.processes, options.least = 12, 6, 1, 0.0


def right_of(model: PathModel, tokens: np.ndarray, labels: np.ndarray, batch: int) -> int:
    device = next(model.parameters()).device
    right = 0
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            found = model(torch.from_numpy(tokens[part]).to(device)).argmax(1).cpu()
        right += int((found == torch.from_numpy(labels[part])).sum())
    return right


def tested(model: PathModel, stream: Stream, count: int, batch: int) -> dict[str, Any]:
    """Accuracy on fresh images, and what is known of them without looking at a curve."""
    model.eval()
    right, labels, discs = 0, [], []
    shards = -(-count // stream.shard)
    for n in range(shards):
        stream.ahead(n, shards - n)
        images, classes, ends = stream.read(n)
        right += right_of(model, images.reshape(stream.shard, -1), classes, batch)
        labels.append(classes)
        discs.append(ends)
    return judged(right, np.concatenate(labels), np.concatenate(discs))


def judged(right: int, labels: np.ndarray, discs: np.ndarray) -> dict[str, Any]:
    count = len(labels)
    chance = max(labels.mean(), 1 - labels.mean())
    apart, half = distance(discs), count // 2
    halves = (apart[:half], labels[:half]), (apart[half:], labels[half:])
    return {
        "accuracy": right / count,
        "interval_95": classify.interval(right / count, count),
        "images": count,
        "more_frequent_class": float(chance),
        "distance_of_discs": (by_key(*halves) + by_key(*halves[::-1])) / 2,
        "standard_errors": float((right / count - chance) / (0.5 / count**0.5)),
    }


def one(
    positions: str, stage: Stage, begin: Stage | None, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    device = options.device
    if not available(stage.attention, device):
        raise SystemExit(f"{stage.attention} does not train on a {device}")

    def checkpoint_of(s: Stage) -> Path:
        return options.out / f"{positions}_{s.name.replace('/', '_')}.checkpoint.pt"

    torch.manual_seed(options.seed)
    with torch.device(device):
        model = PathModel(stage.size, positions, stage.attention, options.dropout)
    if begin is not None:
        learnt = torch.load(checkpoint_of(begin), map_location=device, weights_only=False)
        model.load_state_dict(grown(learnt["model"], stage.size))
    batch = by_size(options.batch)[stage.size]
    streams = {
        split: Stream(
            folder / "pathfinder",
            folder / f"{positions}_{stage.name.replace('/', '_')}",
            stage.size,
            stage.dashes,
            options.seed,
            split,
            options.processes,
            options.shard,
        )
        for split in SPLITS
    }
    stream = streams["train"]
    repeats = by_size(options.repeats)[stage.size]

    def loss_of(inputs: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(inputs["tokens"]).float(), inputs["labels"])

    try:
        first = batch_of(stream, batch, repeats, 0)
        steps = classify.Steps(model, loss_of, first, device, rate=options.rate)
        row = classify.train(
            steps,
            lambda step: batch_of(stream, batch, repeats, step),
            classify.cosine(options.rate, stage.steps, stage.steps // 20),
            stage.steps,
            name=f"{positions}/{stage.name}",
            deadline=options.deadline,
            checkpoint=checkpoint_of(stage),
            resume=options.resume,
        )
        row["planned"] = stage.steps
        if row["steps"] == stage.steps:
            row["step_milliseconds"] = steps.milliseconds(20 if device == "cuda" else 1)
            row["images_per_second"] = 1e3 * batch / row["step_milliseconds"]
            row["peak_megabytes"] = timing.peak_megabytes(device)
            stream.stop()
            row |= tested(model, streams["test"], options.test, batch)
            row["even"] = tested(model, streams["even"], options.test, batch)
    finally:
        for each in streams.values():
            each.stop()
    return row | {"batch": batch, "dashes": stage.dashes, "card": results.card(device)}


def speed_of(size: int, attention: str, options: argparse.Namespace) -> dict[str, Any]:
    """A step of as many images as fit, at most those of a stage."""
    device = options.device
    torch.manual_seed(options.seed)
    batch = by_size(options.batch)[size]
    while batch:
        try:
            with torch.device(device):
                model = PathModel(size, "grid", attention, options.dropout)
            arrays = {
                "tokens": np.random.default_rng(1).integers(0, 256, (batch, size**2), np.uint8),
                "labels": np.zeros(batch, np.int64),
            }

            def loss_of(inputs: dict[str, Tensor], model: PathModel = model) -> Tensor:
                return F.cross_entropy(model(inputs["tokens"]).float(), inputs["labels"])

            # Not as a graph, whose memory stays where it did not fit; a step is long enough here.
            steps = classify.Steps(
                model, loss_of, arrays, device, rate=options.rate, is_graph=False
            )
            ms = steps.milliseconds(5 if device == "cuda" else 1)
            return {
                "images": batch,
                "milliseconds_an_image": ms / batch,
                "peak_megabytes": timing.peak_megabytes(device),
                "card": results.card(device),
            }
        except torch.OutOfMemoryError:
            steps = model = None  # type: ignore[assignment]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        batch //= 2
    return {"images": 0, "out_of_memory": "one image", "card": results.card(device)}


def run(options: argparse.Namespace) -> dict[str, Any]:
    keys = ("positions", "stages", "batch", "repeats", "rate", "dropout", "seed")
    result = results.begin(options, keys) | {"stopped": {}}
    rows = result["rows"]
    # Files that are read once: in memory, where Linux has a folder there.
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shared if shared.exists() else None))
    try:
        compiled("pathfinder", folder)
        for name in filter(None, options.speed.split(",")):
            if f"speed/{name}" in rows or time.time() > options.deadline:
                continue
            size, attention = name.split("/")
            rows[f"speed/{name}"] = results.apart(speed_of, int(size), attention, options)
            results.write_json(options.out / "result.json", result)
        for positions in options.positions.split(","):
            planned = options.stages or STAGES[positions]
            stages = [Stage.of(text) for text in planned.split(",")]
            for i, stage in enumerate(stages):
                name = f"{positions}/{stage.name}"
                if "accuracy" not in rows.get(name, {}):
                    if time.time() > options.deadline:
                        return result
                    begin = before(stages, i)
                    rows[name] = results.apart(one, positions, stage, begin, folder, options)
                    results.write_json(options.out / "result.json", result)
                if "accuracy" not in rows[name]:
                    break  # out of time, or failed
                if stage.size == 64 and rows[name]["accuracy"] < options.least:
                    result["stopped"][positions] = (
                        f"{name} has {100 * rows[name]['accuracy']:.1f} %, less than "
                        f"{100 * options.least:.0f}: nothing larger is tried"
                    )
                    results.write_json(options.out / "result.json", result)
                    break
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def said(row: dict[str, Any]) -> str:
    above = row["standard_errors"]
    better = "better" if above >= SIGMAS else "no better"
    return (
        f"{100 * row['accuracy']:.1f} ± {100 * row['interval_95']:.1f} %, {above:.1f} standard "
        f"errors above chance: {better}"
    )


def summary(result: dict[str, Any]) -> list[str]:
    lines = []
    for name, row in result["rows"].items():
        if "accuracy" in row:
            lines.append(
                f"{name}: {said(row)}; of images whose discs' distance tells nothing "
                f"{said(row['even'])}; {row['images']:,} fresh images each; knowing the distance "
                f"alone gives {100 * row['distance_of_discs']:.1f} %; "
                f"{row['step_milliseconds']:.0f} ms for {row['batch']} images"
            )
        elif "out_of_memory" in row:
            lines.append(f"{name}: one image does not fit into the card's memory")
        elif "milliseconds_an_image" in row:
            memory = row["peak_megabytes"]
            shown = f", {memory / 1024:.1f} GB" if memory else ""
            ms = row["milliseconds_an_image"]
            lines.append(f"{name}: {ms:.2f} ms an image, {row['images']} a step{shown}")
        elif "planned" in row:
            lines.append(f"{name}: {row['steps']} of {row['planned']} steps; --resume goes on")
    return lines + [f"stopped: {why}" for why in result.get("stopped", {}).values()]


def picture(result: dict[str, Any]) -> str:
    panels = []
    for title, label, key, factor in (
        ("accuracy on fresh images", "%", "accuracy", 100.0),
        ("a step", "ms an image", "milliseconds_an_image", 1.0),
    ):
        rows = {n: factor * r[key] for n, r in result["rows"].items() if key in r}
        if rows:
            series = [(n, i % 7, False, [(1, y)]) for i, (n, y) in enumerate(rows.items())]
            panels.append({"title": title, "x": "", "y": label, "groups": [""], "series": series})
    cards = {row["card"] for row in result["rows"].values() if "card" in row}
    return pictures.figure(f"Path-X and Path-256, {', '.join(cards)}", panels)
