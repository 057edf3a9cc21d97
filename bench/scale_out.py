"""Writes docs/scale-out.svg, what `attn dist --simulate` predicts for 2 to 1,024 GPUs, and prints the table of docs/scale-out.md.

  python3 bench/scale_out.py BUILD [--check]      BUILD: a folder with attn; --check: exits with 1 where the files differ"""
import re, subprocess, sys
from pathlib import Path

from papers import svg

ROOT = Path(__file__).parent.parent
ROWS, NODE = 8192, 8  # tokens a GPU; GPUs of a node
RANKS = (2, 4, 8, 16, 64, 256, 1024)
PROBLEMS = {
    "64 heads on 8, causal": "hq64_hk8_d128_causal_bf16",
    "32 heads, causal": "hq32_hk32_d128_causal_bf16",
    "8 heads on 1, causal": "hq8_hk1_d128_causal_bf16",
    "64 on 8, window 4096": "hq64_hk8_d128_window4096x0_sink_bf16",
}
LINE = re.compile(r"^(forward|backward) +[\d.]+ ms, of which ([\d.]+) exposed; ideal [\d.]+ ms, ([\d.]+) %", re.M)


def predicted(build, problem, ranks):
    """{phase: (ms exposed, % of the ideal)}"""
    command = [f"{build}/attn", "dist", f"b1_n{ROWS * ranks}_{problem}", "--ranks", str(ranks), "--simulate", "--node", str(NODE)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {phase: (float(exposed), float(share)) for phase, exposed, share in LINE.findall(text)}


def main():
    build = sys.argv[1]
    found = {name: {ranks: predicted(build, problem, ranks) for ranks in RANKS} for name, problem in PROBLEMS.items()}
    panels = [
        {
            "title": f"{phase}, nodes of {NODE}",
            "x": "GPUs, 8192 tokens each",
            "y": "% of ideal",
            "log_x": True,
            "series": [(name, i, False, [(ranks, of[ranks][phase][1]) for ranks in RANKS]) for i, (name, of) in enumerate(found.items())],
        }
        for phase in ("forward", "backward")
    ]
    table = ["| GPUs | " + " | ".join(map(str, RANKS)) + " |", "|---" * (len(RANKS) + 1) + "|"]
    table += [
        f"| {name} | " + " | ".join(f"{of[n]['forward'][1]:.0f}, {of[n]['backward'][1]:.0f}" for n in RANKS) + " |" for name, of in found.items()
    ]
    picture = svg.figure("Predicted share of the ideal on H100s, compared with no run", panels)
    path = ROOT / "docs/scale-out.svg"
    page = (ROOT / "docs/scale-out.md").read_text()
    if "--check" in sys.argv:
        return 0 if path.read_text() == picture and "\n".join(table) in page else 1
    path.write_text(picture)
    print("\n".join(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
