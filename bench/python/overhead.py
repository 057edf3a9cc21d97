"""What Python costs: the import, a call beside PyTorch's, and large calls beside the C++ command.

  python bench/python/overhead.py --attn build/attn [--rounds 7] [--json FILE]

Small calls attend one query to one key, so that what remains is overhead; each number is the least
of many short repeats, since other work on the machine only adds. Large calls (n 1024, 8 heads of 64)
and `attn bench` of the same problem alternate; the median of the ratios of their least times counts. PyTorch and
JAX are measured where they are installed."""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time

import jax_overhead
import measured

PROBLEM = "b1_n1024_h8_d64_f32"


def microseconds(call, number=200, repeat=200):
    return measured.microseconds(call, number, repeat)


def import_milliseconds(module, repeat=15):
    """The least of `repeat` imports, each in an interpreter of its own that has started already."""
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            for _ in range(repeat)]
    return 1e3 * min(float(run.stdout) for run in runs)


def small_calls():
    import numpy as np

    import attn

    x = np.ones((1, 1, 1, 8), np.float32)
    plan = attn.plan(x, x, x)
    mask = attn.Formula("ids[key] == 0", ids=np.zeros(1, np.int32))
    found = {
        "NumPy": microseconds(lambda: attn.attention(x, x, x)),
        "NumPy, causal": microseconds(lambda: attn.attention(x, x, x, causal=True)),
        "NumPy, mask and lse": microseconds(
            lambda: attn.attention(x, x, x, mask=mask, return_lse=True)),
        "NumPy, plan": microseconds(lambda: plan.forward(x, x, x)),
    }
    if importlib.util.find_spec("torch"):
        import torch

        t = torch.from_numpy(x)
        out = torch.empty_like(t)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        found["PyTorch"] = microseconds(lambda: attn.attention(t, t, t))
        found["PyTorch, out"] = microseconds(lambda: attn.attention(t, t, t, out=out))
        with torch.no_grad():
            found["PyTorch's own scaled_dot_product_attention"] = microseconds(lambda: sdpa(t, t, t))
    if importlib.util.find_spec("jax"):
        import jax

        j = jax.numpy.asarray(x)
        found["JAX"] = microseconds(lambda: attn.attention(j, j, j), 20)
        found |= jax_overhead.calls(j)
    return found


def large_calls(command, rounds):
    """Median over the rounds of the time of a call from Python over that of the C++ command."""
    import numpy as np

    import attn

    arrays = [np.random.default_rng(i).standard_normal((1, 1024, 8, 64)).astype(np.float32)
              for i in range(3)]
    libraries = {"NumPy": arrays}
    if importlib.util.find_spec("torch"):
        import torch

        libraries["PyTorch"] = [torch.from_numpy(x) for x in arrays]
    ratios = {name: [] for name in libraries}
    for _ in range(rounds):
        run = subprocess.run([command, "bench", PROBLEM, "--seconds", "0.5", "--json", "-"],
                             capture_output=True, text=True, check=True)
        cpp = json.loads(run.stdout)["results"][0]["seconds_minimum"]
        for name, (q, k, v) in libraries.items():
            seconds, stop = [], time.perf_counter() + 0.5
            while len(seconds) < 3 or time.perf_counter() < stop:
                start = time.perf_counter()
                attn.attention(q, k, v)
                seconds.append(time.perf_counter() - start)
            ratios[name].append(min(seconds) / cpp)
    return {name: statistics.median(found) for name, found in ratios.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attn", default="build/attn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = {
        "import_ms": {name: import_milliseconds(name) for name in ("attn", "numpy")},
        "small_call_us": small_calls(),
        "over_cpp_at_n1024": large_calls(options.attn, options.rounds),
    }
    for title, rows in results.items():
        for name, value in rows.items():
            print(f"{title:20} {name:45} {value:8.3f}")
    measured.save(options.json, results)


if __name__ == "__main__":
    main()
