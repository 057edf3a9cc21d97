"""The table and the figure of what torch_peers.py measured, beside its JSON file.

  python bench/python/torch_peers_report.py FILE.json [...]      writes FILE.md and FILE.svg

The figure shows milliseconds by length, both scales logarithmic: a row of panels for each pass and head size, a panel
for each mask. It leaves out masks with fewer than two lengths, which make no line."""

import itertools
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from papers import svg

NAMES = {
    "attn": "attn.torch",
    "cudnn": "SDPA, cuDNN",
    "fa2": "SDPA, FlashAttention 2",
    "flex": "FlexAttention, compiled",
}
PASSES = ("forward", "backward")


def table(result):
    """One line for each cell, in the order of mask, head size and length."""
    lines = [
        f"`{result['command']}`. Milliseconds forward / backward (seconds of the first call), bf16. "
        "An implementation without a number refuses the cell.",
        "",
        "| mask | d | n | " + " | ".join(NAMES.values()) + " |",
        "|---" * (3 + len(NAMES)) + "|",
    ]
    for row in sorted(result["rows"], key=lambda row: (row["kind"], row["d"], row["n"])):
        shown = [one(row, name) for name in NAMES]
        lines.append(f"| {row['kind']} | {row['d']} | {row['n']} | " + " | ".join(shown) + " |")
    return "\n".join([*lines, ""])


def one(row, name):
    if name not in row["forward"]:
        return ""
    times = " / ".join(f"{row[phase][name]:.3g}" for phase in PASSES)
    return f"{times} ({row['first'][name]:.3g} s)"


def panel(rows, kind, phase):
    series = []
    for colour, (name, title) in enumerate(NAMES.items()):
        points = [(row["n"], row[phase][name]) for row in rows if name in row[phase]]
        if len(points) > 1:
            series.append((title, colour, False, points))
    axes = {"x": "sequence length", "y": "ms", "log_x": True, "log_y": True}
    return {"title": kind, **axes, "series": series}


def figure(result):
    """Rows of panels below each other; None where there is no line to draw."""
    rows = sorted(result["rows"], key=lambda row: row["n"])
    kinds = dict.fromkeys(row["kind"] for row in sorted(rows, key=lambda row: row["kind"]))
    parts = []
    for phase, d in itertools.product(PASSES, sorted({row["d"] for row in rows})):
        panels = [
            panel([row for row in rows if (row["kind"], row["d"]) == (kind, d)], kind, phase)
            for kind in kinds
        ]
        panels = [spec for spec in panels if spec["series"]]
        if panels:
            tokens = result.get("tokens", 16384)
            parts.append(svg.figure(f"{phase}, head size {d}, bf16, {tokens} tokens", panels))
    return stacked(parts) if parts else None


def stacked(parts):
    """Figures below each other as one."""
    sizes = [re.search(r'width="(\d+)" height="(\d+)"', part).groups() for part in parts]
    width, height = max(int(w) for w, _ in sizes), sum(int(h) for _, h in sizes)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
           f'height="{height}">', '<rect width="100%" height="100%" fill="#ffffff"/>']
    y = 0
    for part, (_, h) in zip(parts, sizes):
        out.append(part.replace("<svg ", f'<svg y="{y}" ', 1).rstrip())
        y += int(h)
    return "\n".join([*out, "</svg>", ""])


def write(path):
    """FILE.md and FILE.svg beside FILE.json."""
    result = json.loads(Path(path).read_text())
    result["rows"] = [row for row in result["rows"] if row.get("forward") and row.get("backward")]
    Path(path).with_suffix(".md").write_text(table(result))
    if (drawn := figure(result)) is not None:
        Path(path).with_suffix(".svg").write_text(drawn)


def main():
    for path in sys.argv[1:]:
        write(path)


if __name__ == "__main__":
    main()
