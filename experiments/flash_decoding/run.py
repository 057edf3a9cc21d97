"""Decoding with a Llama-shaped model end to end: tokens a second against the length of the context.

The model has Llama 2 7B's shape (32 layers, width 4096, heads of 128, SwiGLU), random weights in
bf16, and 32 heads of K and V (mha) or 8 (gqa). A step decodes one token of each sequence behind
`context` random keys; it is a CUDA graph, so that launches cost nothing. All but attention is the
same compiled code. Rows are ATTENTION/KIND/BATCH/CONTEXT; logits are compared with those of eager.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common import picture as pictures
from ..common import results, timing
from ..common.attention import attention as attention_of

HEAD = 128


@dataclass
class Shape:
    layers: int = 32
    width: int = 4096
    hidden: int = 11008
    vocabulary: int = 32000


SHAPES = {"7B": Shape(), "toy": Shape(layers=2, width=256, hidden=512, vocabulary=100)}


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def before(x: Tensor, qkv: Tensor, heads_k: int, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """Norm, projection and rotation: q, k and v as [batch, 1, heads, HEAD]."""
    batch, width = x.shape
    rows = F.linear(F.rms_norm(x, (width,)), qkv)
    q, k, v = rows.split([width, heads_k * HEAD, heads_k * HEAD], dim=1)
    q, k, v = (t.view(batch, 1, -1, HEAD) for t in (q, k, v))
    return [rotated(q, cos, sin), rotated(k, cos, sin), v]


def after(x: Tensor, out: Tensor, project: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    x = x + F.linear(out.reshape(x.shape), project)
    gate, up = F.linear(F.rms_norm(x, (x.shape[1],)), gate_up).chunk(2, dim=1)
    return x + F.linear(F.silu(gate) * up, down)


class Decoder:
    """Weights, and one step behind a cache [layers, 2, batch, context + 1, heads_k, HEAD]."""

    def __init__(self, shape: Shape, heads_k: int, attention: str, device: str) -> None:
        self.shape, self.heads_k = shape, heads_k
        self.attend = attention_of(attention)
        generator = torch.Generator(device).manual_seed(1)
        width, heads_width = shape.width, heads_k * HEAD

        def weights(rows: int, columns: int) -> Tensor:
            made = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
            return made.normal_(0, columns**-0.5, generator=generator)

        self.layers = [
            (
                weights(width + 2 * heads_width, width),
                weights(width, width),
                weights(2 * shape.hidden, width),
                weights(width, shape.hidden),
            )
            for _ in range(shape.layers)
        ]
        self.embedding = weights(shape.vocabulary, width)
        self.head = weights(shape.vocabulary, width)
        is_cuda = device == "cuda"
        self.before = torch.compile(before, dynamic=False) if is_cuda else before
        self.after = torch.compile(after, dynamic=False) if is_cuda else after

    def step(self, tokens: Tensor, cache: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """tokens: [batch]. Logits [batch, vocabulary]; the last place of the cache is written."""
        x = F.embedding(tokens, self.embedding)
        for (qkv, project, gate_up, down), (keys, values) in zip(self.layers, cache, strict=True):
            q, k, v = self.before(x, qkv, self.heads_k, cos, sin)
            keys[:, -1:] = k
            values[:, -1:] = v
            out = self.attend(q, keys, values, causal=True)
            x = self.after(x, out, project, gate_up, down)
        return F.linear(F.rms_norm(x, (x.shape[1],)), self.head)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", default="attn,sdpa_flash,eager,sdpa_cudnn")
    parser.add_argument("--size", default="7B", choices=list(SHAPES))
    parser.add_argument("--contexts", default="512,2048,8192,32768,65536")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--kinds", default="gqa,mha")
    parser.add_argument("--most-gigabytes", type=float, default=80, help="of a cache")


def make_toy(options: argparse.Namespace) -> None:
    options.size, options.contexts, options.runs = "toy", "16,64", "attn,sdpa_flash,eager"


def cell(decoder: Decoder, batch: int, context: int, options: argparse.Namespace) -> dict[str, Any]:
    device = options.device
    shape = decoder.shape
    generator = torch.Generator(device).manual_seed(context + batch)
    cache = torch.empty(
        (shape.layers, 2, batch, context + 1, decoder.heads_k, HEAD),
        dtype=torch.bfloat16,
        device=device,
    )
    for layer in cache:
        layer.normal_(generator=generator)
    tokens = torch.arange(batch, device=device) % shape.vocabulary
    angles = context * 10000.0 ** (-torch.arange(HEAD // 2, device=device) / (HEAD // 2))
    cos, sin = angles.cos(), angles.sin()
    kept: list[Tensor] = []

    def step() -> None:
        kept[:] = [decoder.step(tokens, cache, cos, sin)]

    with torch.no_grad():
        if device == "cuda":
            graph = timing.graph_of(step)
            ms = timing.median_ms(graph.replay, device, repeats=20)
        else:
            ms = timing.median_ms(step, device, repeats=3)
    return {
        "milliseconds": ms,
        "tokens_per_second": 1e3 * batch / ms,
        "logits": [round(float(x), 4) for x in kept[0][-1, :8]],
        "gigabytes_of_cache": round(cache.numel() * 2 / 2**30, 2),
    }


def one(attention: str, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """All lengths and batches, each kept in a file as it is measured; a failure is a row."""
    shape = SHAPES[options.size]
    heads_k = shape.width // HEAD if kind == "mha" else max(1, shape.width // HEAD // 4)
    decoder = Decoder(shape, heads_k, attention, options.device)
    rows: dict[str, Any] = {}
    for batch in map(int, options.batches.split(",")):
        for context in map(int, options.contexts.split(",")):
            name = f"{attention}/{kind}/{batch}/{context}"
            cache = 4.0 * shape.layers * batch * context * heads_k * HEAD / 2**30
            if cache > options.most_gigabytes:
                rows[name] = {"left_out": f"its cache takes {cache:.0f} GB"}
                continue
            if time.time() > options.deadline:
                break
            try:
                rows[name] = cell(decoder, batch, context, options)
            except Exception as error:
                rows[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
                if options.toy:
                    raise
            print(name, rows[name], flush=True)
            results.write_json(options.out / f"{attention}_{kind}.json", rows)
    return {"rows": rows, "card": results.card(options.device)}


def run(options: argparse.Namespace) -> dict[str, Any]:
    keys = ("size", "contexts", "batches", "kinds")
    result = results.begin(options, keys)
    for kind in options.kinds.split(","):
        for attention in options.runs.split(","):
            if time.time() > options.deadline:
                break
            if any(name.startswith(f"{attention}/{kind}/") for name in result["rows"]):
                continue
            found = results.apart(one, attention, kind, options)
            result["rows"] |= found.get("rows", {f"{attention}/{kind}": found})
            result["card"] = found.get("card", result.get("card", ""))
            results.write_json(options.out / "result.json", result)
    return result


def lines_of(result: dict[str, Any]) -> dict[tuple[str, str, str], list[tuple[int, float]]]:
    """(attention, kind, batch): (context, tokens a second), by context."""
    found: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    for name, row in result["rows"].items():
        if "tokens_per_second" in row:
            attention, kind, batch, context = name.split("/")
            line = found.setdefault((attention, kind, batch), [])
            line.append((int(context), row["tokens_per_second"]))
    return {key: sorted(line) for key, line in found.items()}


def summary(result: dict[str, Any]) -> list[str]:
    lines = []
    found = lines_of(result)
    for kind, batch in sorted({key[1:] for key in found}):
        chosen = {a: line for (a, k, b), line in found.items() if (k, b) == (kind, batch)}
        if "attn" in chosen:
            longest = chosen["attn"][-1][0]
            speeds = {a: dict(line)[longest] for a, line in chosen.items() if longest in dict(line)}
            shown = ", ".join(f"{a} {s:,.0f}" for a, s in speeds.items())
            lines.append(f"{kind}, batch {batch}, context {longest}: tokens/s: {shown}")
    return lines


def picture(result: dict[str, Any]) -> str:
    found = lines_of(result)
    panels = []
    for kind, batch in sorted({key[1:] for key in found}):
        series = [
            (a, pictures.colour(a), False, line)
            for (a, k, b), line in found.items()
            if (k, b) == (kind, batch)
        ]
        panels.append(
            {"title": f"{kind}, batch {batch}", "x": "context", "y": "tokens/s", "log_x": True}
            | {"log_y": True, "series": series}
        )
    size = result["options"]["size"]
    return pictures.figure(f"Decoding, {size}, bf16, {result.get('card', '')}", panels)
