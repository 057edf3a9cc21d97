"""What Python costs: the import, a call beside PyTorch's, and large calls beside the C++ command.

  python bench/python/overhead.py --attn build/attn [--rounds 7] [--json FILE]

Small calls attend one query to one key, so that what remains is overhead; each number is the least
of many short repeats, since other work on the machine only adds. Large calls (n 1024, 8 heads of 64)
and `attn bench` of the same problem alternate; the median of the ratios of their least times counts. PyTorch and
JAX are measured where they are installed."""

import argparse
import ctypes
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

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
        found |= jax_calls(j)
    return found


EMPTY = """
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
using Array = ffi::AnyBuffer;
static ffi::Error nothing(Array, Array, Array, ffi::Result<Array>, ffi::Result<Array>) {
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(empty, nothing, ffi::Ffi::Bind().Arg<Array>().Arg<Array>()
    .Arg<Array>().Ret<Array>().Ret<Array>());
"""


def empty_foreign_function():
    """A foreign function of XLA with the arrays of attention, that computes nothing."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        source, library = os.path.join(folder, "empty.cpp"), os.path.join(folder, "empty.so")
        with open(source, "w") as file:
            file.write(EMPTY)
        subprocess.run([os.environ.get("CXX", "c++"), "-std=c++17", "-O2", "-w", "-shared", "-fPIC",
                        "-I", jax.ffi.include_dir(), source, "-o", library], check=True)
        handler = ctypes.CDLL(library).empty
    jax.ffi.register_ffi_target("attn_bench_empty", jax.ffi.pycapsule(handler), platform="cpu")

    def call(q, k, v):
        results = [jax.ShapeDtypeStruct(shape, q.dtype) for shape in (q.shape, q.shape[:-1])]
        return jax.ffi.ffi_call("attn_bench_empty", results)(q, k, v)

    return call


def jax_calls(x):
    """attn.jax beside jax.nn, and beside programs that only return their argument or call nothing."""
    import jax

    import attn.jax

    functions = {
        "JAX, identity within jit": lambda q, k, v: (q, q[..., 0]),
        "JAX, an empty foreign function within jit": empty_foreign_function(),
        "JAX, attn.jax within jit": attn.jax.attention,
        "JAX, jax.nn within jit": jax.nn.dot_product_attention,
        "JAX, attn.jax, forward and backward within jit": jax.grad(
            lambda *qkv: attn.jax.attention(*qkv).sum(), (0, 1, 2)),
    }
    found = {}
    for name, function in functions.items():
        compiled = jax.jit(function)
        compiled(x, x, x)
        found[name] = microseconds(lambda: compiled(x, x, x), 50)
    found["JAX, attn.jax"] = microseconds(lambda: attn.jax.attention(x, x, x), 50)
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
