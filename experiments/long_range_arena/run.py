"""The five tasks of Long Range Arena with exact and approximate attention.

The models are small, as in the set-up of Nystromformer: 2 layers, width 64, 2 heads, mean pooling,
dropout 0.1, AdamW. A training step is a CUDA graph for every kind of attention, since at this size
launches would hide it. Rows are TASK/ATTENTION/SEEDS; TASK/time measures steps of all kinds.
ListOps is made by listops.cpp, Pathfinder by pathfinder.cpp; Text is imdb_train.tsv.xz and
imdb_test.tsv.xz of --data, Image cifar10_gray.npz.xz; Retrieval is a substitute: pairs of Python
files on this machine, of one package or of two.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common import classify, data, results, sources, timing
from . import tasks
from .model import Classifier, Rows, is_packed
from .table import TASKS, picture, summary

__all__ = ["add_options", "make_toy", "picture", "run", "summary"]

EXACT = ("attn", "attn_block_sparse", "eager")
# Length and batch.
SIZES = {
    "listops": (2048, 32),
    "text": (4096, 32),
    "retrieval": (4096, 32),
    "image": (1024, 256),
    "pathfinder": (1024, 256),
    "toy": (256, 8),
    "toy_pairs": (256, 4),
}
STEPS = "listops:5000,text:3000,retrieval:7000,image:6000,pathfinder:8000"
KINDS = "eager,attn,attn_block_sparse,sdpa,attn_packed,linformer,local,reformer"


def default_runs() -> str:
    """In the order of worth: every task once, times, then more seeds, then approximations."""
    runs = [f"{task}/time" for task in TASKS]
    runs += [f"{task}/{kind}/1" for task in TASKS for kind in EXACT]
    for task in TASKS:
        last = 5 if task in ("listops", "image") else 3
        runs += [f"{task}/{kind}/2-{last}" for kind in EXACT]
    return ",".join(
        runs + [f"{task}/{kind}/1" for kind in ("linformer", "local") for task in TASKS]
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", default=default_runs(), help="TASK/ATTENTION/SEEDS or TASK/time")
    parser.add_argument("--kinds", default=KINDS, help="whose times TASK/time measures")
    parser.add_argument("--steps", default=STEPS, help="TASK:STEPS, one number for all kinds")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--dropout", type=float, default=0.1)


def make_toy(options: argparse.Namespace) -> None:
    options.runs = "toy/time,toy_pairs/attn/1,toy/attn/1-2,toy/attn_packed/1,toy/eager/1"
    options.kinds = "attn,eager,attn_block_sparse,attn_packed,linformer,local"
    options.steps = "toy:4,toy_pairs:2"


def load(name: str, options: argparse.Namespace) -> tasks.Task:
    folder, length = options.data, SIZES[name][0]
    if name == "text":
        return tasks.text(folder, length)
    if name == "image":
        return tasks.image(folder)
    if name == "retrieval":
        return tasks.retrieval(sources.load(folder)[0], length, tasks.PAIRS)
    if name == "toy_pairs":
        return tasks.retrieval(sources.toy(), length, {"train": 20, "test": 10})
    if name == "pathfinder":
        with data.alone(folder, "pathfinder"):
            if not (folder / "pathfinder_32.json").exists():
                tasks.make_pathfinder(folder, 32, tasks.PATHFINDER, results.cores())
        return tasks.pathfinder(folder, 32, tasks.PATHFINDER)
    counts, bounds = tasks.COUNTS, (500, 2000)
    if name == "toy":
        folder = Path(tempfile.mkdtemp())
        counts, bounds = {"train": 60, "validation": 10, "test": 30}, (50, 250)
    with data.alone(folder, "listops"):
        if not (folder / "listops.json").exists():
            tasks.make_listops(folder, counts, *bounds)
    return tasks.listops(folder, length, counts)


def prepare(options: argparse.Namespace) -> None:
    """Makes what takes a CPU a while and --runs need; who needs it meanwhile waits for it."""
    asked = {planned.partition("/")[0] for planned in options.runs.split(",")}
    for name in ("listops", "retrieval", "pathfinder"):
        if name in asked:
            load(name, options)


def steps_of(
    name: str, kind: str, seed: int, count: int, task: tasks.Task, options: argparse.Namespace
) -> tuple[classify.Steps, Classifier, Rows]:
    torch.manual_seed(seed)
    length, batch = SIZES[name]
    with torch.device(options.device):
        model = Classifier(task, length, kind, options.dropout)
    rows = Rows(task, length, batch, seed, count if is_packed(kind) else 0)

    def loss_of(inputs: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(inputs).float(), inputs["labels"])

    steps = classify.Steps(model, loss_of, rows.of_step(0), options.device, rate=options.rate)
    return steps, model, rows


def times(
    name: str, before: dict[str, Any], count: int, task: tasks.Task, options: argparse.Namespace
) -> dict[str, Any]:
    """Milliseconds of a step by each kind, and memory; what a kind cannot do is said.

    Those in `before` were measured.
    """
    found = dict(before)
    device = options.device
    for kind in options.kinds.split(","):
        if kind in found:
            continue
        steps = None
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            steps = steps_of(name, kind, options.seed, count, task, options)[0]
            found[kind] = {
                "ms": steps.milliseconds(20 if device == "cuda" else 1),
                "peak_megabytes": timing.peak_megabytes(device),
            }
        except (Exception, SystemExit) as error:
            found[kind] = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
    return {"kinds": found, "card": results.card(device)}


def accuracy_of(model: Classifier, rows: Rows, split: tasks.Split, device: str) -> float:
    model.eval()
    right, count = 0, len(split.labels)
    for start in range(0, count, rows.batch):
        arrays = rows.arrays(split, rows.filled(split, start))
        inputs = {key: torch.from_numpy(a).to(device) for key, a in arrays.items()}
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            found = model(inputs).argmax(1) == inputs["labels"]
        right += int(found[: count - start].sum())
    return right / count


def one(
    name: str, kind: str, seed: int, count: int, task: tasks.Task, options: argparse.Namespace
) -> dict[str, Any]:
    device = options.device
    steps, model, rows = steps_of(name, kind, seed, count, task, options)
    checkpoint = options.out / f"{name}_{kind}_{seed}.checkpoint.pt"
    row = classify.train(
        steps,
        rows.of_step,
        classify.linear(options.rate, count),
        count,
        name=f"{name}/{kind}/{seed}",
        deadline=options.deadline,
        checkpoint=None if options.no_checkpoint else checkpoint,
        resume=options.resume,
    )
    accuracy = accuracy_of(model, rows, task.test, device)
    row |= {"planned": count, "card": results.card(device)}
    if row["steps"] < count:
        return row | {"accuracy_so_far": accuracy}
    checkpoint.unlink(missing_ok=True)
    return row | {
        "accuracy": accuracy,
        "interval_95": classify.interval(accuracy, len(task.test.labels)),
        "step_milliseconds": steps.milliseconds(20 if device == "cuda" else 1),
        "peak_megabytes": timing.peak_megabytes(device),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    result = {"known": {}} | results.begin(options, ("rate", "steps", "dropout"))
    steps = {n: int(count) for n, _, count in (s.partition(":") for s in options.steps.split(","))}
    loaded: dict[str, tasks.Task] = {}

    def measure(key: str, name: str, function: Any, *arguments: Any) -> None:
        if name not in loaded:
            try:
                loaded[name] = load(name, options)
            except (OSError, SystemExit) as error:
                result["rows"][key] = {"error": f"{name} has no data: {error}"}
                return
        result["known"][name] = loaded[name].known
        row = results.apart(function, *arguments, loaded[name], options)
        if "error" not in row or key not in result["rows"]:  # what came before stays
            result["rows"][key] = row
        results.write_json(options.out / "result.json", result)

    for planned in options.runs.split(","):
        name, kind, *seeds = planned.split("/")
        first, _, last = (seeds or ["0"])[0].partition("-")
        for seed in range(int(first), int(last or first) + 1):
            key = f"{name}/{kind}/{seed}" if seeds else planned
            row = result["rows"].get(key, {})
            if time.time() > options.deadline:
                return result
            if kind == "time":
                before = row.get("kinds", {})
                if set(options.kinds.split(",")) - set(before):
                    measure(key, name, times, name, before, steps[name])
            elif "accuracy" not in row:
                measure(key, name, one, name, kind, seed, steps[name])
    return result
