"""Attention of GPT-2's shape alone, causal, with dropout: figure 1, right, of FlashAttention.

Standard attention is also timed step by step: product, mask, softmax, dropout, product.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.nn.functional as F

from ..common import picture as pictures
from ..common import results, timing
from ..common.attention import attention, available

ROWS = ("eager", "attn", "sdpa_cudnn", "sdpa_flash", "eager_compiled")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--runs", default=",".join(ROWS))


def make_toy(options: argparse.Namespace) -> None:
    options.batch, options.heads, options.length = 1, 2, 64
    options.runs = "eager,sdpa_flash,attn"


def steps_of_eager(options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of each step of standard attention's forward pass."""
    shape = (options.batch, options.heads, options.length, options.head_dim)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device=options.device) for _ in range(3))
    n = options.length
    hidden = torch.ones(n, n, dtype=torch.bool, device=options.device).triu(1)
    scores = q @ k.transpose(-2, -1) * options.head_dim**-0.5
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    calls = {
        "product of Q and K": lambda: q @ k.transpose(-2, -1) * options.head_dim**-0.5,
        "mask": lambda: scores.masked_fill(hidden, float("-inf")),
        "softmax": lambda: torch.softmax(scores, dim=-1),
        "dropout": lambda: F.dropout(weights, options.dropout),
        "product with V": lambda: weights @ v,
    }
    repeats = 3 if options.toy else 20
    return {name: timing.median_ms(call, options.device, repeats) for name, call in calls.items()}


def one(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Forward, and forward and backward, with and without dropout, in milliseconds."""
    device = options.device
    base = name.removesuffix("_compiled")
    if not available(base, device):
        raise SystemExit(f"{base} does not train on a {device}")
    torch.manual_seed(options.seed)
    call = attention(base)
    if name != base:
        call = torch.compile(call)
    shape = (options.batch, options.length, options.heads, options.head_dim)
    # Rows in memory as a layer's projection gives them: q, k and v beside each other.
    qkv = torch.randn(*shape[:2], 3, *shape[2:], dtype=torch.bfloat16, device=device)
    q, k, v = (t.requires_grad_() for t in qkv.detach().unbind(2))
    d_out = torch.randn(shape, dtype=torch.bfloat16, device=device)
    repeats = 3 if options.toy else 20
    row: dict[str, Any] = {"card": results.card(device)}
    if name == "eager":
        row["steps_ms"] = steps_of_eager(options)
    for dropout in (options.dropout, 0.0):
        kind = "dropout" if dropout else "plain"

        def forward(dropout: float = dropout) -> torch.Tensor:
            with torch.no_grad():
                return call(q, k, v, causal=True, dropout=dropout)

        def both(dropout: float = dropout) -> None:
            out = call(q, k, v, causal=True, dropout=dropout)
            torch.autograd.grad(out, (q, k, v), d_out)

        try:
            row[f"forward_{kind}_ms"] = timing.median_ms(forward, device, repeats)
            row[f"both_{kind}_ms"] = timing.median_ms(both, device, repeats)
        except Exception as error:  # a peer may refuse dropout
            row[f"refused_{kind}"] = str(error)[:300]
    row["peak_megabytes"] = timing.peak_megabytes(device)
    return row


def run(options: argparse.Namespace) -> dict[str, Any]:
    keys = ("batch", "heads", "head_dim", "length", "dropout", "seed")
    result = results.begin(options, keys)
    for name in options.runs.split(","):
        if time.time() > options.deadline:
            break
        if name in result["rows"]:
            continue
        result["rows"][name] = results.apart(one, name, options)
        results.write_json(options.out / "result.json", result)
    return result


def ratios(result: dict[str, Any], measure: str) -> dict[str, float]:
    """How many times as fast as eager."""
    rows = {name: row[measure] for name, row in result["rows"].items() if measure in row}
    return {name: rows["eager"] / ms for name, ms in rows.items()} if "eager" in rows else {}


def summary(result: dict[str, Any]) -> list[str]:
    lines = []
    for measure in ("forward_dropout_ms", "both_dropout_ms", "forward_plain_ms", "both_plain_ms"):
        found = ratios(result, measure)
        words = measure.removesuffix("_ms").replace("_", ", ")
        shown = ", ".join(f"{n} {r:.1f}" for n, r in found.items() if n != "eager")
        lines.append(f"{words}: times as fast as eager: {shown}")
    return lines


def picture(result: dict[str, Any]) -> str:
    panels = []
    for kind, title in (("dropout", "with dropout 0.1"), ("plain", "without dropout")):
        series = [
            (name, pictures.colour(name) if name != "eager_compiled" else 4, False,
             [(i + 1, row[f"{phase}_{kind}_ms"]) for i, phase in enumerate(("forward", "both"))])
            for name, row in result["rows"].items()
            if f"both_{kind}_ms" in row
        ]  # fmt: skip
        panels.append(
            {
                "title": title,
                "x": "",
                "y": "ms",
                "groups": ["forward", "forward and backward"],
                "series": series,
            }
        )
    o = result["options"]
    shape = f"b{o['batch']} n{o['length']} h{o['heads']} d{o['head_dim']}"
    cards = {row["card"] for row in result["rows"].values() if "card" in row}
    return pictures.figure(f"Causal attention, {shape}, bf16, {', '.join(cards)}", panels)
