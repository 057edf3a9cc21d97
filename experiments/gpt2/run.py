"""GPT-2 trained with each attention from the same weights on the same batches: loss and speed.

Each run is a process of its own. `repeat` is sdpa_cudnn with the sequences of every micro-batch in
reverse: its sums over the batch are in another order, so the difference of its loss is noise that
any exact attention may show. NAME:N ends a run after N steps of the same schedule.
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

# Attention, what is compiled, and whether the sequences of a micro-batch are in reverse.
RUNS: dict[str, tuple[str, str, bool]] = {
    "sdpa_cudnn": ("sdpa_cudnn", "model", False),
    "attn": ("attn", "model", False),
    "attn_again": ("attn", "model", False),
    "sdpa_flash": ("sdpa_flash", "model", False),
    "repeat": ("sdpa_cudnn", "model", True),
    "eager": ("eager", "", False),
    "eager_compiled": ("eager", "model", False),
    "attn_not_compiled": ("attn", "", False),
    "sdpa_cudnn_not_compiled": ("sdpa_cudnn", "", False),
    "attn_parts": ("attn", "parts", False),
    "sdpa_cudnn_parts": ("sdpa_cudnn", "parts", False),
    "flex": ("flex", "model", False),
}
SMOOTH = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", default="sdpa_cudnn,attn,sdpa_flash,repeat,eager")
    parser.add_argument("--size", default="124M", choices=list(SIZES))
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64, help="sequences of a step")
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--checkpoint-every", type=int, default=0)
    parser.add_argument("--no-compile", action="store_true")


def make_toy(options: argparse.Namespace) -> None:
    options.runs = "attn,sdpa_cudnn,repeat,eager:25"
    options.size, options.context, options.batch, options.steps = "toy", 32, 8, 30
    options.no_compile = True


def one(name: str, options: argparse.Namespace, stop: int) -> dict[str, Any]:
    """One run, in this process."""
    attention, compiled, is_reversed = RUNS[name]
    compiled = "" if options.no_compile else compiled
    device = options.device
    if options.toy and attention == "sdpa_cudnn":
        attention = "sdpa_flash"  # which a CPU has
    if not available(attention, device):
        raise SystemExit(f"{attention} does not train on a {device}")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)
    config = Config(
        **SIZES[options.size],
        context=options.context,
        dropout=options.dropout,
        attention=attention,
    )
    with torch.device(device):
        model = GPT(config)
    forward = torch.compile(model) if compiled == "model" else model
    if compiled == "parts":
        model.compile_parts()

    def loss_of(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if is_reversed:
            tokens, targets = tokens.flip(0), targets.flip(0)
        with torch.autocast(device, torch.bfloat16):
            return forward(tokens, targets)

    text = data.toy() if options.toy else data.load(options.data, "train")
    batches = data.Batches(text, options.batch, options.context, options.seed, device)
    learner = optimizer(model, options.rate)
    row = train(
        model,
        loss_of,
        learner,
        batches,
        Schedule(options.steps, options.rate, warm_up=max(1, options.steps // 10)),
        name=name,
        micro_batches=options.micro_batches,
        stop=stop,
        seconds=options.deadline - time.time(),
        checkpoint=None if options.no_checkpoint else options.out / f"{name}.checkpoint.pt",
        checkpoint_every=options.checkpoint_every,
        resume=options.resume,
    )
    row |= {
        "attention": attention,
        "compiled": compiled,
        "sequences_in_a_micro_batch": options.batch // options.micro_batches,
        "peak_megabytes": timing.peak_megabytes(device),
        "card": results.card(device),
        "flops_per_token": model.flops_per_token(options.context),
    }
    peak = timing.peak_flops() if device == "cuda" else None
    if peak and row["tokens_per_second"]:
        row["flops_utilisation"] = row["tokens_per_second"] * row["flops_per_token"] / peak
    model.eval()
    if stop == options.steps:
        with torch.compiler.set_stance("force_eager"):  # sooner than compiling it without gradients
            row["validation_loss"] = validate(loss_of, options)
    model.train()
    if device == "cuda":
        tokens, targets = (t.chunk(options.micro_batches)[0] for t in batches(0))
        row["kernels"] = timing.kernels(lambda: loss_of(tokens, targets).backward())
    return row


def validate(loss_of: Any, options: argparse.Namespace, count: int = 16) -> float:
    """Of packages that were not trained on; the same batches for all runs."""
    text = data.toy()[::-1].copy() if options.toy else data.load(options.data, "validation")
    batch = options.batch // options.micro_batches
    batches = data.Batches(text, batch, options.context, 12345, options.device)
    with torch.no_grad():
        losses = [loss_of(*batches(i)) for i in range(2 if options.toy else count)]
    return float(torch.stack(losses).mean())


def run(options: argparse.Namespace) -> dict[str, Any]:
    file = options.out / "result.json"
    keys = ("size", "context", "batch", "micro_batches", "steps", "rate", "dropout", "seed")
    result = results.begin(options, keys)
    for planned in options.runs.split(","):
        name, _, stop = planned.partition(":")
        steps = int(stop or options.steps)
        done = result["rows"].get(name, {})
        if done.get("steps", -1) >= steps:
            continue
        if time.time() > options.deadline:
            break
        result["rows"][name] = results.apart(one, name, options, steps)
        results.write_json(file, result)
    return result


def compare(result: dict[str, Any]) -> dict[str, float]:
    """Largest difference of each smoothed loss from sdpa_cudnn's, over the steps both made."""
    rows = {n: r["losses"] for n, r in result["rows"].items() if len(r.get("losses", [])) > SMOOTH}
    base = rows.get("sdpa_cudnn")
    found = {}
    for name, losses in rows.items():
        if base is None or name == "sdpa_cudnn" or len(losses) <= 20:
            continue
        n = min(len(base), len(losses))
        differences = [a - b for a, b in zip(losses[:n], base[:n], strict=True)]
        found[name] = max(abs(d) for d in pictures.smooth(differences, SMOOTH))
    return found


def shown_name(name: str, row: dict[str, Any]) -> str:
    """The run's name, with what it ran where its kernels say that it was another's attention."""
    ran = [kernel for kernel, *_ in row.get("kernels", {}).get("longest", [])]
    is_other = row.get("attention") == "sdpa_flash" and any("cudnn" in kernel for kernel in ran)
    return f"{name} (ran cuDNN's kernels)" if is_other else name


def summary(result: dict[str, Any]) -> list[str]:
    rows = {
        shown_name(name, row): row
        for name, row in result["rows"].items()
        if row.get("tokens_per_second")
    }
    lines = [
        f"{name}: {row['tokens_per_second'] / 1e3:,.0f}k tokens/s"
        + (
            f", {100 * row['flops_utilisation']:.0f} % of peak"
            if "flops_utilisation" in row
            else ""
        )
        for name, row in rows.items()
    ]
    differences = compare(result)
    if differences:
        shown = ", ".join(f"{name} {value:.4f}" for name, value in differences.items())
        lines.append(f"largest difference of the smoothed loss from sdpa_cudnn: {shown}")
    return lines


def picture(result: dict[str, Any]) -> str:
    rows = {shown_name(n, row): row for n, row in result["rows"].items() if "losses" in row}
    long = {n: r for n, r in rows.items() if len(r["losses"]) > SMOOTH}
    loss = {n: pictures.smooth(r["losses"], SMOOTH) for n, r in long.items()}
    panels: list[dict[str, Any]] = []
    if loss:
        of_loss: dict[str, Any] = {
            "title": f"training loss, means of {SMOOTH} steps",
            "x": "step",
            "y": "nats",
            "log_y": True,
            "marks": False,
            "series": [
                (n, pictures.colour(n), False, pictures.thinned(y, SMOOTH)) for n, y in loss.items()
            ],
        }
        panels.append(of_loss)
    base = loss.get("sdpa_cudnn")
    if base and len(loss) > 1:
        series = []
        for name, values in loss.items():
            differences = [max(abs(a - b), 1e-5) for a, b in zip(values, base, strict=False)]
            if name != "sdpa_cudnn":
                line = pictures.thinned(differences, SMOOTH)
                series.append((name, pictures.colour(name), False, line))
        panels.append(
            {
                "title": "difference of that from sdpa_cudnn's",
                "x": "step",
                "y": "nats",
                "log_y": True,
                "marks": False,
                "series": series,
            }
        )
    speeds = {n: r["tokens_per_second"] / 1e3 for n, r in rows.items() if r["tokens_per_second"]}
    if not speeds:
        return pictures.figure("GPT-2", panels) if panels else ""
    panels.append(
        {
            "title": "speed",
            "x": "",
            "y": "1000 tokens/s",
            "groups": [""],
            "series": [(n, pictures.colour(n), False, [(1, s)]) for n, s in speeds.items()],
        }
    )
    size, context = result["options"]["size"], result["options"]["context"]
    cards = {row["card"] for row in rows.values()}
    return pictures.figure(f"GPT-2 {size}, context {context}, {', '.join(cards)}", panels)
