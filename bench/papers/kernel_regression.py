"""Kernel regression (examples/kernel_regression.cpp, normalised) beside PyTorch the way KeOps does it: chunks of queries, no n x n matrix kept.

  python3 bench/papers/kernel_regression.py --attn build/attn --n 4096 --d 8

The score is q.k / h^2 - |q|^2 / 2 h^2 - |k|^2 / 2 h^2 on both sides: two buffers are subtracted, as in the example. attn: `attn bench`, which compares with
fp64 before it times; PyTorch: compared with fp64 here. Backward recomputes the chunks. Milliseconds, forward and backward, of --threads threads or a GPU. Needs PyTorch."""
import argparse, json, statistics, subprocess, sys, time

import torch
from torch.utils.checkpoint import checkpoint

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--attn", default="build/attn")
arguments.add_argument("--n", type=int, default=4096)
arguments.add_argument("--d", type=int, default=8)
arguments.add_argument("--chunk", type=int, default=512)
arguments.add_argument("--threads", type=int, default=2)
arguments.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
options = arguments.parse_args()
torch.set_num_threads(options.threads)
N, D = options.n, options.d


def attn_milliseconds(phase):
    problem = f"b1_n{N}_h1_d{D}_score(score-a[query]-b[key])_buffer(a:f32:{N})_buffer(b:f32:{N})_f32"
    where = ["--device", "cuda"] if options.device == "cuda" else ["--threads", str(options.threads)]
    row = json.loads(subprocess.run([options.attn, "bench", problem, "--phase", phase, "--seconds", "1", "--json", "-", *where], check=True, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)["results"][0]
    if not row["correct"]:
        sys.exit(f"attn, {phase}: wrong, so not timed")
    return row["seconds_median"] * 1e3


def chunk_of(q, k, v, a, b):
    return torch.softmax(q @ k.T * D ** -0.5 - a[:, None] - b, -1) @ v


def chunked(q, k, v, a, b):
    return torch.cat([checkpoint(chunk_of, q[i:i + options.chunk], k, v, a[i:i + options.chunk], b, use_reentrant=False) for i in range(0, N, options.chunk)])


def milliseconds(call):
    times = []
    for _ in range(7):
        if options.device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if options.device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]) * 1e3


def main():
    torch.manual_seed(1)
    q, k, v, given = (torch.randn(N, D, device=options.device) for _ in range(4))
    a, b = (torch.randn(N, device=options.device) for _ in range(2))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    rows = slice(0, 64)
    exact = chunk_of(q[rows].double(), k.double(), v.double(), a[rows].double(), b.double())
    error = (chunked(q, k, v, a, b)[rows].double() - exact).abs().max().item()
    if not error < 1e-5:
        sys.exit(f"PyTorch in chunks errs by {error:.1e}")
    with torch.no_grad():
        forward = milliseconds(lambda: chunked(q, k, v, a, b))
    both = milliseconds(lambda: torch.autograd.grad(chunked(q, k, v, a, b), leaves, given))
    ours, ours_backward = attn_milliseconds("forward"), attn_milliseconds("backward")
    print(f"n {N}, d {D}, {options.device}, ms: attn forward {ours:.2f}, backward {ours_backward:.2f}; PyTorch in chunks of {options.chunk} forward {forward:.2f} "
          f"({forward / ours:.2f} times), forward and backward {both:.2f} ({both / (ours + ours_backward):.2f} times)")


if __name__ == "__main__":
    main()
