"""Runs FlashAttention 2's own tests on attn.flash_attn: a sample of their cases, by hash.

  python python/tests/run_flash_attn_suite.py PATH/test_flash_attn.py --sample 20000 --jobs 12

The file is not part of this repository: tests/test_flash_attn.py of Dao-AILab/flash-attention. It
needs pytest and einops. A case is a test function with one choice of each of its parameters. The
cases with the least hashes are chosen, at least --at-least of each function.

Most of the time is compiling: cases that need the same kernels (KERNEL) are a group, and --kernels
0.25 chooses from a quarter of each function's groups, those with the least hashes, so that as many
cases need fewer kernels. One process runs the first cases of a group; the others find its kernels
on disk (ATTN_CACHE_DIR) and are shared out. Groups run in the order of a hash, so that what a limit
of time leaves out is random too. The summary counts what passed, what the file skips itself, and
what failed, with both sides of the assertion.

A case that asserts `dropout_fraction`, the share of some thousands of bits, within 0.01 of its
probability misses it by chance one time in eight with 3,300 of them. Such a case is drawn six more
times, with the seeds 1 to 6 for the file's 0; the mean of their shares is held to the same 0.01,
all else of each draw to what the file asks, and the case is counted as "redrawn".

--cpu runs cases on CPU tensors, to try the command where there is no GPU: "cuda" is then the CPU.
"""

from __future__ import annotations

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import heapq
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import re
import sys
import time
import traceback
import unittest.mock
from pathlib import Path

import pytest
import torch

import attn.flash_attn


class OnCpu(torch.overrides.TorchFunctionMode):
    """Makes "cuda" the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def load(path, on_cpu):
    """The module of tests, which finds attn's flash_attn."""
    if on_cpu:
        OnCpu().__enter__()
        torch.cuda.get_device_capability = lambda device=None: (9, 0)
    attn.flash_attn.install()
    spec = importlib.util.spec_from_file_location("suite", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def axes(function):
    """Names and values of each of a function's parametrisations."""
    marks = [m for m in getattr(function, "pytestmark", []) if m.name == "parametrize"]
    return [
        ([name.strip() for name in mark.args[0].split(",")], list(mark.args[1])) for mark in marks
    ]


def parameters(function, index):
    """The arguments of case `index`."""
    found = {}
    for names, values in axes(function):
        index, at = divmod(index, len(values))
        value = values[at]
        found |= zip(names, value if len(names) > 1 else [value], strict=True)
    return found


def hashed(seed, name, index):
    return hashlib.sha256(f"{seed}/{name}/{index}".encode()).digest()


# Parameters that decide which kernels a case needs, with what those mean that a function lacks;
# others are sizes and ways to call.
KERNEL = {
    "dtype": None, "d": None, "causal": False, "local": False, "alibi": False,
    "deterministic": False, "dropout_p": 0.0, "softcap": 0.0,
}  # fmt: skip
MOST_OF_PART = 16  # cases that one process runs in a row


def kernel(arguments):
    return ", ".join(f"{name}={arguments.get(name, usual)}" for name, usual in KERNEL.items())


def groups_of(function):
    """The group of each case, in the order of their numbers."""
    steps = []  # of each axis: what of its values decides the kernels
    for names, values in axes(function):
        rows = [dict(zip(names, v if len(names) > 1 else [v], strict=True)) for v in values]
        steps.append([tuple((n, row[n]) for n in names if n in KERNEL) for row in rows])
    known = {}
    # The first axis varies fastest.
    for chosen in itertools.product(*reversed(steps)):
        if chosen not in known:
            known[chosen] = kernel(dict(itertools.chain.from_iterable(chosen)))
        yield known[chosen]


def within_groups(seed, function, share, fewest):
    """The cases of a function in `share` of its groups."""
    group_of = list(groups_of(function))
    known = sorted(set(group_of), key=lambda key: hashed(seed, "", key))
    kept = set(known[: max(fewest, round(share * len(known)))])
    return [i for i, key in enumerate(group_of) if key in kept]


def choose(module, options):
    """(cases of each function, groups to run), each group as parts of a few cases."""
    tests = {n: f for n, f in vars(module).items() if n.startswith("test_") and callable(f)}
    totals = {n: math.prod(len(values) for _, values in axes(f)) for n, f in tests.items()}
    wanted = {
        n: within_groups(options.seed, tests[n], options.kernels, options.fewest)
        for n in totals
        if re.search(options.only, n)
    }
    picked = []
    for n, cases in wanted.items():  # each function's part of the sample
        count = math.ceil(options.sample * totals[n] / sum(totals[name] for name in wanted))
        of_n = ((n, i) for i in cases)
        picked += heapq.nsmallest(
            max(count, options.at_least), of_n, key=lambda c: hashed(options.seed, *c)
        )
    groups = {}
    for n, i in sorted(picked, key=lambda c: hashed(options.seed, *c)):
        groups.setdefault(kernel(parameters(tests[n], i)), []).append((n, i))
    ordered = [groups[key] for key in sorted(groups, key=lambda key: hashed(options.seed, "", key))]
    return totals, [list(batched(group, MOST_OF_PART)) for group in ordered]


def batched(cases, size):
    return (cases[i : i + size] for i in range(0, len(cases), size))


def sides(error):
    """The assertion that failed and the values of its two sides."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    path = frame.f_code.co_filename
    source = Path(path).read_text().splitlines()[line - 1].strip() if Path(path).is_file() else ""
    text = f"line {line}: {source}"
    with contextlib.suppress(Exception):
        compared = ast.parse(source).body[0].test
        for side in (compared.left, compared.comparators[0]):
            value = eval(ast.unparse(side), frame.f_globals, frame.f_locals)
            text += f" [{value:.4g}]"
    return text


KEPT_BYTES = 4 << 30
DRAWS = 6
OUTCOMES = ("passed", "redrawn", "skipped", "failed")
_module = None


def start(path, on_cpu, threads):
    global _module
    torch.set_num_threads(threads)
    _module = load(path, on_cpu)


def ready():
    """What a process does before it has cases: start()."""


def run_part(cases, until):
    """What run() gives of each case that begins before the time `until`."""
    return [run(case) for case in cases if time.time() < until]


def seeded(draw):
    """Makes the file's own seed another one in draws after the first."""
    seed = torch.random.manual_seed
    return unittest.mock.patch.object(torch.random, "manual_seed", lambda s: seed(s + draw))


def redraw(function, arguments):
    """(outcome, what went wrong) of DRAWS draws: their mean share decides, not that of each."""
    wanted, shares = arguments["dropout_p"], []
    share = _module.get_dropout_fraction

    def recorded(*given, **named):
        shares.append(float(share(*given, **named)))
        # So that the file goes on to its other assertions.
        return torch.tensor(wanted, dtype=torch.float64)

    try:
        for draw in range(1, DRAWS + 1):
            with (
                seeded(draw),
                unittest.mock.patch.object(_module, "get_dropout_fraction", recorded),
            ):
                function(**arguments)
    except Exception as error:
        return "failed", f"draw {draw}: {type(error).__name__}: {str(error)[:300]} {sides(error)}"
    mean = sum(shares) / len(shares)
    if abs(mean - wanted) <= (0.04 if arguments.get("local") else 0.01):
        return "redrawn", ""
    return "failed", f"the mean share of {DRAWS} draws is {mean:.4f}, not {wanted}"


def run(case):
    """(case, outcome, what went wrong, seconds); "redrawn": by redraw()."""
    name, index = case
    function = getattr(_module, name)
    skips = [m for m in getattr(function, "pytestmark", []) if m.name == "skipif" and m.args[0]]
    if skips:
        return case, "skipped", "", 0.0
    began = time.perf_counter()
    outcome, text = "passed", ""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        for attempt in itertools.count():
            try:
                function(**parameters(function, index))
            except pytest.skip.Exception:
                outcome = "skipped"
            except torch.OutOfMemoryError as error:  # other processes hold the memory
                torch.cuda.empty_cache()
                if attempt < 5:
                    time.sleep(3)
                    continue
                outcome, text = "failed", str(error)[:300]
            except Exception as error:
                text = f"{type(error).__name__}: {str(error)[:300]} {sides(error)}"
                outcome = "failed"
                if "assert abs(dropout_fraction" in text:
                    outcome, text = redraw(function, parameters(function, index))
            break
    if torch.cuda.is_available() and torch.cuda.memory_reserved() > KEPT_BYTES:
        torch.cuda.empty_cache()  # other processes need memory too
    return case, outcome, text, time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path")
    parser.add_argument("--sample", type=int, default=20000)
    parser.add_argument("--at-least", type=int, default=4, help="cases of each function")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a regular expression of function names")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start nothing after that")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument(
        "--kernels", type=float, default=1.0, help="share of the groups of each function"
    )
    parser.add_argument(
        "--fewest", type=int, default=48, help="groups of a function that --kernels leaves"
    )
    parser.add_argument("--json")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    until = time.time() + options.seconds
    pool = concurrent.futures.ProcessPoolExecutor(
        options.jobs, multiprocessing.get_context("spawn"), start,
        (options.path, options.cpu, max(1, (os.cpu_count() or 1) // options.jobs)),
    )  # fmt: skip
    for _ in range(options.jobs):
        pool.submit(ready)  # they start while the cases are chosen
    suite = load(options.path, options.cpu)
    totals, groups = choose(suite, options)
    chosen = sum(len(part) for parts in groups for part in parts)
    print(
        f"{chosen} of {sum(totals.values())} cases in {len(groups)} groups, {options.jobs} jobs",
        flush=True,
    )
    counts = {name: dict.fromkeys(OUTCOMES, 0) for name in totals}
    failures, slowest, spent = [], [], dict.fromkeys(totals, 0.0)
    # The first part of each group; the others follow when it has made their kernels.
    left = collections.deque((parts[0], parts[1:]) for parts in groups)
    waiting = {}
    while True:
        while left and len(waiting) < options.jobs + 2 and time.time() < until:
            part, others = left.popleft()
            waiting[pool.submit(run_part, part, until)] = others
        if not waiting:
            break
        done, _ = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
            left.extendleft((part, []) for part in waiting.pop(future))
        results = itertools.chain.from_iterable(future.result() for future in done)
        for case, outcome, text, seconds in results:
            name, index = case
            counts[name][outcome] += 1
            spent[name] += seconds
            slowest = heapq.nlargest(5, [*slowest, (seconds, name, index)])
            if outcome == "failed":
                arguments = parameters(getattr(suite, name), index)
                described = ", ".join(f"{n}={v}" for n, v in arguments.items())
                failures.append(f"{name}({described}): {text}")
                print(f"FAILED {failures[-1]}", flush=True)
    pool.shutdown()
    for name, found in counts.items():
        outcomes = " ".join(f"{found[o]:6d} {o}" for o in found)
        print(f"{name:48} {outcomes}  of {totals[name]}, {spent[name]:.0f} s of a process")
    whole = {o: sum(found[o] for found in counts.values()) for o in OUTCOMES}
    ran = sum(whole.values())
    taken = time.perf_counter() - began
    print(
        f"{ran} of {chosen} chosen cases ran in {taken:.0f} s, {ran / taken:.1f} a second:", whole
    )
    print("slowest:", *(f"{n}[{i}] {s:.1f} s" for s, n, i in slowest))
    if options.json:
        report = {"totals": totals, "counts": counts, "failures": failures, "chosen": chosen}
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(1 if whole["failed"] or not ran else 0)


if __name__ == "__main__":
    main()
