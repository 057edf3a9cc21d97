"""bench/papers/figure2_gpu.py where there is no GPU: both phases from plans to pictures, with made-up times and counters in place of a GPU's.

  python3 tests/papers/figure2_report.py ATTN OUT forward|backward

Needs PyTorch and NumPy."""
import os, sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "papers"))


def main():
    attn, out, phase = sys.argv[1:]
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_name = lambda *_: "no GPU"
    torch.cuda.empty_cache = lambda: None
    sys.argv = ["figure2_gpu.py", "--phase", phase, "--batch", "2", "--out", out, "--attn", attn]
    import figure2_gpu, io_gpu
    io_gpu.precompile = lambda *_: None
    io_gpu.load = lambda _: None

    def time_rows(_, rows):
        for place, entry in enumerate(rows, 1):
            entry["ms"] = float(place)
    figure2_gpu.time_rows = time_rows
    asked = []

    def measure(configurations, *_):
        asked.extend(configurations)
        return {key: {"l2": 1e9 * place, "dram": 5e8 * place, "shared": 2e9 * place} for place, key in enumerate(configurations, 1)}, ""
    io_gpu.measure = measure
    figure2_gpu.main()
    if len(asked) != len(set(asked)) or not asked:
        sys.exit(f"counted are {asked}")


if __name__ == "__main__":
    main()
