"""Writes what the front pages show of the GPU's speed from the results in bench/results: docs/speed-forward.svg, docs/speed-backward.svg, and
what stands between the markers of docs/speed.md (tables) and README.md (means). No number of these is written by hand.

  python3 bench/report.py [--check]      --check: writes nothing, exits with 1 where a file is not what the results give"""
import argparse, json, statistics, sys
from pathlib import Path

from papers import svg

ROOT = Path(__file__).parent.parent
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
PEERS = {"cudnn": "cuDNN", "fa3": "FlashAttention-3", "fa2": "FlashAttention-2"}


def cells(name):
    """(the file's text, {(d, causal, n): row}), TFLOP/s of ours and of each peer in a row."""
    file = json.loads((ROOT / "bench/results" / f"{name}.json").read_text())
    return file, {(row["d"], row["causal"], row["n"]): row for row in file.get("fwd") or file["rows"]}


def figure(phase, rows):
    """A panel for each head size, causal: the harder case, as tiles on the diagonal are half empty."""
    panels = []
    for d in (64, 128, 256):
        series = []
        for i, (key, title) in enumerate({"ours": "attn.cpp", **PEERS}.items()):
            points = [(n, rows[d, True, n][key]) for n in LENGTHS if key in rows.get((d, True, n), ())]
            if points:
                series.append((title, i, key == "fa2", points))
        panels.append({"title": f"head size {d}, causal", "x": "sequence length, 16384 tokens", "y": "TFLOP/s", "log_x": True, "series": series})
    return svg.figure(f"{phase.capitalize()}, bf16, one H200", panels)


def mean(rows, peer):
    return statistics.geometric_mean(row["ours"] / row[peer] for row in rows if peer in row)


def means(phase, rows):
    """One sentence of the README."""
    rows = rows.values()
    of = [f"{mean(rows, peer):.2f} of {name}" for peer, name in PEERS.items() if any(peer in row for row in rows)]
    return f"{phase}, over {len(rows)} cells, {', '.join(of)}"


def one(row, peers):
    ratios = ", ".join(f"{row['ours'] / row[peer]:.2f}" for peer in peers if peer in row)
    return f"{row['ours']:.0f} ({ratios})"


def table(phase, file, rows):
    peers = [peer for peer in PEERS if any(peer in row for row in rows.values())]
    of = []
    for peer in peers:
        least = [row["ours"] >= row[peer] for row in rows.values() if peer in row]
        of.append(f"{mean(rows.values(), peer):.3f} of {PEERS[peer]} ({sum(least)} of {len(least)} cells at 1.00 or more)")
    lines = [f"### {phase.capitalize()}", f"{file['date']}, commit {file['commit']}, `{file['command']}`.",
             f"Geometric means: {', '.join(of)}.", "",
             "| | mask | " + " | ".join(map(str, LENGTHS)) + " |", "|---" * (len(LENGTHS) + 2) + "|"]
    for d in (64, 128, 256):
        for causal in (False, True):
            shown = [one(rows[d, causal, n], peers) if (d, causal, n) in rows else "" for n in LENGTHS]
            lines.append(f"| d {d} | {'causal' if causal else 'full'} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def between_markers(path, text):
    """The file with this text between its markers."""
    begin, end = "<!-- bench/report.py -->\n", "<!-- end -->"
    head, rest = (ROOT / path).read_text().split(begin)
    return head + begin + text + "\n" + end + rest.split(end)[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    written, tables, sentences = {}, [], []
    for phase, name in (("forward", "h200-forward"), ("backward", "h200-backward")):
        file, rows = cells(name)
        written[f"docs/speed-{phase}.svg"] = figure(phase, rows)
        tables.append(table(phase, file, rows))
        sentences.append(means(phase, rows))
    written["docs/speed.md"] = between_markers("docs/speed.md", "\n\n".join(tables))
    written["README.md"] = between_markers("README.md", "Geometric means of speed: " + "; ".join(sentences) + ".")
    stale = [path for path, text in written.items() if not (ROOT / path).exists() or (ROOT / path).read_text() != text]
    if check:
        sys.exit(f"not what bench/results give, run bench/report.py: {', '.join(stale)}" if stale else 0)
    for path in stale:
        (ROOT / path).write_text(written[path])
        print(path)


if __name__ == "__main__":
    main()
