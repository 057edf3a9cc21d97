"""Runs a benchmark of a GPU where there is none, as a test of the benchmark: what it would do on a GPU, it does on the CPU.

  python3 tests/papers/on_cpu.py bench/papers/tables_gpu.py --library attn_c_cpu.so ...

"cuda" means the CPU, an event is the clock, every backend of PyTorch's attention is the CPU's, and --library is bench/gpu/attn_c.cpp compiled with -DATTN_C_ON_CPU. Times mean nothing. Needs PyTorch."""
import contextlib, os, runpy, sys, time, types

import torch
import torch.nn.attention
import torch._dynamo  # looks for Triton itself, before there is one in its place
from torch.overrides import TorchFunctionMode


class Event:
    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e3


class OnCpu(TorchFunctionMode):
    """Tensors that are asked for on "cuda" are made on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        if function in (torch.empty, torch.zeros) and kwargs.get("dtype") == torch.uint8:  # a workspace, aligned as a GPU's memory is
            whole = function(args[0] + 256, **kwargs)
            return whole[-whole.data_ptr() % 256:][:args[0]]
        return function(*args, **kwargs)


def do_bench(call, warmup=0, rep=0, return_mode="median"):
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def main():
    stream = types.SimpleNamespace(cuda_stream=None)
    for name, value in {"is_available": lambda: True, "get_device_name": lambda *_: "no GPU", "current_stream": lambda *_: stream, "Event": Event,
                        "synchronize": lambda *_: None, "empty_cache": lambda: None, "memory_allocated": lambda *_: 0,
                        "max_memory_allocated": lambda *_: 0, "reset_peak_memory_stats": lambda *_: None}.items():
        setattr(torch.cuda, name, value)
    torch.backends.cudnn.version = lambda: None
    torch.nn.attention.sdpa_kernel = lambda backend: contextlib.nullcontext()  # whatever kernel the CPU has
    triton = types.ModuleType("triton")
    triton.testing = types.ModuleType("triton.testing")
    triton.testing.do_bench = do_bench
    sys.modules |= {"triton": triton, "triton.testing": triton.testing}
    script, sys.argv = sys.argv[1], sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    with OnCpu():
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
