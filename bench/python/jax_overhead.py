"""What attn.jax costs before the work begins, beside a foreign function that does nothing.

  python bench/python/jax_overhead.py [--json FILE]

Calls attend one query to one key on JAX's first device; each number is the least mean of many short
repeats. On a GPU a call returns before its work is done, and each repeat begins with nothing left to do."""

import argparse
import ctypes
import os
import subprocess
import tempfile

import measured

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
    platform = "cpu" if jax.default_backend() == "cpu" else "CUDA"
    jax.ffi.register_ffi_target("attn_bench_empty", jax.ffi.pycapsule(handler), platform=platform)

    def call(q, k, v):
        results = [jax.ShapeDtypeStruct(shape, q.dtype) for shape in (q.shape, q.shape[:-1])]
        return jax.ffi.ffi_call("attn_bench_empty", results)(q, k, v)

    return call


def calls(x):
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
    # A GPU takes 32 calls before JAX waits.
    number, repeat, before = (50, 200, None) if jax.default_backend() == "cpu" else (20, 300, wait)
    found = {}
    for name, function in functions.items():
        compiled = jax.jit(function)
        compiled(x, x, x)
        found[name] = measured.microseconds(lambda: compiled(x, x, x), number, repeat, before)
    found["JAX, attn.jax"] = measured.microseconds(
        lambda: attn.jax.attention(x, x, x), number, repeat, before)
    return found


def wait():
    """Until JAX's device has nothing left to do: one device works in the order of the calls."""
    import jax

    (jax.device_put(0) + 1).block_until_ready()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    options = parser.parse_args()
    import jax

    dtype = jax.numpy.float32 if jax.default_backend() == "cpu" else jax.numpy.bfloat16
    found = calls(jax.numpy.ones((1, 1, 1, 64), dtype))
    for name, number in found.items():
        print(f"{name:58} {number:8.2f}")
    measured.save(options.json, {"device": str(jax.devices()[0]), "jax": jax.__version__, "us": found})


if __name__ == "__main__":
    main()
