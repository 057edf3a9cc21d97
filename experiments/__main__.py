"""The papers' experiments.

  python -m experiments list
  python -m experiments data --data DIR [--tokens N]  tokens of Python sources on this machine
  python -m experiments run NAME [--toy] [--data DIR] [--out DIR] [--minutes N] [--resume] ...
  python -m experiments prepare NAME --data DIR       what `run NAME` would make for itself first
  python -m experiments report     makes the pictures, and the table of experiments/README.md

`run NAME --help` has the options of an experiment. With --toy it takes less than a minute on two
CPU cores and shows that everything runs, no result. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .common import results

# In the order of the papers' claims that they belong to; each is a folder with run.py.
EXPERIMENTS = {
    "gpt2": "GPT-2 trained: loss and speed (FlashAttention, table 2, figure 4)",
    "gpt2_context": "GPT-2 with 1k to 16k tokens of context (FlashAttention, table 4)",
    "attention_share": "attention of GPT-2's shape alone (FlashAttention, figure 1, right)",
    "training_throughput": "FLOP/s of training 1.3B (FlashAttention-2, table 1)",
    "bert": "a step of BERT-large, padded and packed (FlashAttention, table 1)",
    "long_range_arena": "the five tasks of Long Range Arena (FlashAttention, table 3)",
    "long_documents": "documents of many labels, 512 to 16k tokens (FlashAttention, table 5)",
    "path_x": "Path-X and Path-256, 16k and 64k tokens (FlashAttention, table 6)",
    "flash_decoding": "decoding end to end (Flash-Decoding, CodeLlama)",
}


def module(name: str) -> Any:
    if name not in EXPERIMENTS:
        raise SystemExit(f"experiment {name!r} is not known; accepted are {', '.join(EXPERIMENTS)}")
    return importlib.import_module(f".{name}.run", __package__)


def parser_of(name: str) -> argparse.ArgumentParser:
    experiment = module(name)
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments run {name}",
        description=experiment.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # Not by asking the driver: processes that are forked from this one use the GPU.
    device = "cuda" if Path("/dev/nvidiactl").exists() else "cpu"
    parser.add_argument("--toy", action="store_true", help="small, on a CPU, no result")
    parser.add_argument("--device", default=device, choices=["cpu", "cuda"])
    parser.add_argument("--data", type=Path, default=Path("data"), help="has token files; data")
    parser.add_argument("--out", type=Path, help="where result.json goes; the experiment's folder")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="nothing starts after")
    parser.add_argument("--resume", action="store_true", help="goes on from what --out has")
    parser.add_argument("--no-checkpoint", action="store_true", help="one takes 1.5 GB")
    parser.add_argument("--seed", type=int, default=1)
    experiment.add_options(parser)
    return parser


def run(name: str, arguments: list[str]) -> None:
    options = parser_of(name).parse_args(arguments)
    experiment = module(name)
    if options.toy:
        import torch

        options.device = "cpu"
        torch.set_num_threads(1)  # a toy's tensors are smaller than what waking a thread costs
        experiment.make_toy(options)
    if options.out is None:
        options.out = Path(tempfile.mkdtemp()) if options.toy else results.FOLDER / name
    options.deadline = time.time() + 60 * options.minutes
    result = experiment.run(options)
    (options.out / "picture.svg").write_text(experiment.picture(result))
    print("\n".join(experiment.summary(result)))
    failures = [row for row in result["rows"].values() if "error" in row]
    if options.toy and failures:
        raise SystemExit(f"{name}: {failures[0]['error']}")


def prepare(name: str, arguments: list[str]) -> None:
    options = parser_of(name).parse_args(arguments)
    if hasattr(module(name), "prepare"):
        module(name).prepare(options)


def report() -> None:
    """Pictures of all results, and the table in README.md, between its marks."""
    lines = ["| experiment | what it reproduces | result |", "|---|---|---|"]
    for name, title in EXPERIMENTS.items():
        folder = results.FOLDER / name
        summary = ["no result.json yet"]
        if (folder / "result.json").exists():
            experiment = module(name)
            result = results.read_json(folder / "result.json")
            (folder / "picture.svg").write_text(experiment.picture(result))
            summary = experiment.summary(result)
        lines.append(f"| [{name}]({name}) | {title} | {'<br>'.join(summary)} |")
    readme = results.FOLDER / "README.md"
    before, _, rest = readme.read_text().partition("<!-- report -->\n")
    _, _, after = rest.partition("<!-- end -->\n")
    table = "\n".join(lines)
    readme.write_text(f"{before}<!-- report -->\n{table}\n<!-- end -->\n{after}")
    print(table)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["list"]:
        for name, title in EXPERIMENTS.items():
            print(f"{name:20} {title}")
    elif arguments[:1] == ["data"]:
        from .common import data

        data.main(arguments[1:])
    elif arguments[:1] == ["run"] and len(arguments) > 1:
        run(arguments[1], arguments[2:])
    elif arguments[:1] == ["prepare"] and len(arguments) > 1:
        prepare(arguments[1], arguments[2:])
    elif arguments == ["report"]:
        report()
    else:
        print(__doc__)
        raise SystemExit(0 if arguments in (["-h"], ["--help"]) else 2)


if __name__ == "__main__":
    main()
