"""Results as files: what ran, where, and what came out; and runs in processes of their own."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1]


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all; lists of numbers on one line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(_text(value, "") + "\n")
    beside.replace(path)


def _text(value: Any, indent: str) -> str:
    flat = json.dumps(value)
    is_leaf = not isinstance(value, (dict, list)) or (
        isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value)
    )
    if is_leaf or len(flat) + len(indent) < 100:
        return flat
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{inner}{json.dumps(key)}: {_text(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _text(item, inner) for item in value) + f"\n{indent}]"


def about(device: str) -> dict[str, Any]:
    """The machine, versions and command of a run. Does not initialise CUDA."""
    import torch

    try:
        commit = subprocess.run(
            ["git", "-C", str(FOLDER), "rev-parse", "--short=10", "HEAD"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        commit = os.environ.get("ATTN_COMMIT", "")
    return {
        "command": "python -m experiments " + " ".join(sys.argv[1:]),
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def cores() -> int:
    """Of this process, which may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def begin(options: Any, keys: Sequence[str]) -> dict[str, Any]:
    """A result without rows; with --resume the rows that options.out has, but failures."""
    file = options.out / "result.json"
    found = read_json(file) if options.resume and file.exists() else {"rows": {}}
    rows = {n: row for n, row in found["rows"].items() if "error" not in row}
    chosen = {key: getattr(options, key) for key in keys}
    result = {"about": about(options.device), "options": chosen, "rows": rows}
    return result | ({"known": found["known"]} if "known" in found else {})


def card(device: str) -> str:
    """Its name; in a process that may use it."""
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU"


def _child(function: Callable[..., Any], arguments: tuple[Any, ...], pipe: Any) -> None:
    try:
        pipe.send((True, function(*arguments)))
    except BaseException as error:
        traceback.print_exc()
        pipe.send((False, f"{type(error).__name__}: {str(error)[:400]}"))
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit handlers of the parent's modules are not this process's to run.
    os._exit(0)


def apart(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """function(*arguments) in a process with memory of its own, whose failure is a row.

    The process is forked: importing PyTorch again would take longer than many a measurement. The
    caller must not have used the GPU. Of a failure the result is {"error": what it said}.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(function, arguments, sender))
    process.start()
    sender.close()
    try:
        fine, value = receiver.recv()
    except EOFError:
        fine, value = False, "the process ended without a result"
    process.join()
    row = value if fine else {"error": value}
    named = [a for a in arguments if isinstance(a, (str, int, bool))]
    print(json.dumps({"measured": named, **row}), flush=True)  # a log alone is enough
    return row


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
