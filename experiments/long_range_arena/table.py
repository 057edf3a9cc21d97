"""What the rows of Long Range Arena say together, beside the paper's table 3."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..common import picture as pictures
from ..common.classify import mean_and_interval

TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
# FlashAttention, table 3: accuracies in the order of TASKS, and speed beside standard attention.
PAPER = {
    "eager": ((36.0, 63.6, 81.6, 42.3, 72.7), 1.0),
    "attn": ((37.6, 63.9, 81.4, 43.5, 72.7), 2.4),
    "attn_block_sparse": ((37.0, 63.0, 81.3, 43.6, 73.3), 2.8),
    "linformer": ((35.6, 55.9, 77.7, 37.8, 67.6), 2.5),
    "local": ((36.1, 60.2, 76.7, 40.6, 66.6), 1.7),
    "reformer": ((36.5, 63.8, 78.5, 39.6, 69.4), 1.3),
}
SAID = {
    "root_operator_on_test": "knowing only the root operator",
    "distance_of_discs": "knowing only how far the discs are from each other",
    "shared_words": "knowing only how many words both documents have",
}


def means(result: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Of each task and attention: accuracy over the seeds with its interval."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for key, row in result["rows"].items():
        name, kind, *_ = key.split("/")
        if "accuracy" in row:
            found.setdefault(name, {}).setdefault(kind, []).append(row)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for name, kinds in found.items():
        table[name] = {}
        for kind, rows in kinds.items():
            mean, half = mean_and_interval([r["accuracy"] for r in rows], rows[0]["interval_95"])
            table[name][kind] = {"accuracy": mean, "interval": half, "seeds": len(rows)}
    return table


def milliseconds(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Of each task and attention, by its row TASK/time."""
    return {
        key.split("/")[0]: {k: v["ms"] for k, v in row["kinds"].items() if "ms" in v}
        for key, row in result["rows"].items()
        if "kinds" in row
    }


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def speed_ups(result: dict[str, Any]) -> dict[str, tuple[float, int]]:
    """Of each attention beside eager: the geometric mean over the tasks, and how many they are."""
    ms = milliseconds(result)
    kinds = {kind for of in ms.values() for kind in of}
    ratios = {
        kind: [of["eager"] / of[kind] for of in ms.values() if kind in of and "eager" in of]
        for kind in sorted(kinds)
    }
    return {kind: (geometric_mean(r), len(r)) for kind, r in ratios.items() if r}


def summary(result: dict[str, Any]) -> list[str]:
    lines = []
    for name, kinds in means(result).items():
        shown = []
        for kind, m in kinds.items():
            line = f"{kind} {100 * m['accuracy']:.1f} ± {100 * m['interval']:.1f} %"
            if kind in PAPER and name in TASKS:
                line += f" (paper: {PAPER[kind][0][TASKS.index(name)]})"
            shown.append(line)
        lines.append(f"{name}: {', '.join(shown)}")
        lines += differences(name, kinds)
        known = result["known"].get(name, {})
        lines += [
            f"{name}: {said} gives {100 * known[key]:.1f} %"
            for key, said in SAID.items()
            if key in known
        ]
    for name, of in milliseconds(result).items():
        lines.append(f"{name}: ms a step: " + ", ".join(f"{k} {ms:.2f}" for k, ms in of.items()))
    found = {kind: v for kind, v in speed_ups(result).items() if kind != "eager"}
    if found:
        shown = [
            f"{kind} {ratio:.2f} over {count} tasks"
            + (f" (paper: {PAPER[kind][1]})" if kind in PAPER else "")
            for kind, (ratio, count) in found.items()
        ]
        lines.append(f"times as fast as eager, geometric mean: {', '.join(shown)}")
    return lines


def differences(name: str, kinds: dict[str, dict[str, float]]) -> list[str]:
    """Whether the exact kinds reach the same accuracy as standard attention, PyTorch's or eager."""
    lines = []
    for standard in ("eager", "sdpa"):
        for kind in ("attn", "attn_block_sparse"):
            if kind not in kinds or standard not in kinds:
                continue
            mine, other = kinds[kind], kinds[standard]
            less = 100 * (mine["accuracy"] - other["accuracy"])
            half = 100 * math.hypot(mine["interval"], other["interval"])
            verdict = "equal within it" if abs(less) <= half else "not equal"
            lines.append(f"{name}: {kind} less {standard} {less:+.1f} ± {half:.1f} %: {verdict}")
    return lines


def picture(result: dict[str, Any]) -> str:
    accuracies = {
        name: {kind: round(100 * m["accuracy"], 1) for kind, m in kinds.items()}
        for name, kinds in means(result).items()
    }
    panels = []
    colours: dict[str, int] = {}  # of an attention, in both panels
    for title, label, table in (
        ("a training step", "ms", milliseconds(result)),
        ("accuracy", "%", accuracies),
    ):
        for kind in dict.fromkeys(kind for of in table.values() for kind in of):
            colours.setdefault(kind, len(colours) % 7)
        series = [
            (
                kind,
                colour,
                False,
                [(j + 1, of[kind]) for j, of in enumerate(table.values()) if kind in of],
            )
            for kind, colour in colours.items()
            if any(kind in of for of in table.values())
        ]
        if series:
            panel = {"title": title, "x": "", "y": label, "groups": list(table), "series": series}
            panels.append(panel | {"log_y": label == "ms"})
    cards = {row["card"] for row in result["rows"].values() if "card" in row}
    return pictures.figure(f"Long Range Arena, {', '.join(cards)}", panels)
