"""attn and PyTorch's scaled_dot_product_attention in float64, on one thread of one process, call by call in turns.

  PYTHONPATH=build/python/package python bench/cpu/torch_f64.py --out bench/results/NAME-torch-f64.json

The package is the one that `python/tests/run.sh build` makes. Times are processor time of the calling thread, so that a machine
that is busy with other work does not decide; a ratio is attn's time over PyTorch's, the median over the rounds of a round's
ratios. Tensors are [batch, n, heads, d] in memory for both; PyTorch gets them transposed. Results are compared first."""
import argparse, datetime, json, os, platform, statistics, subprocess, sys, time

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import attn

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--heads", type=int, default=2)
arguments.add_argument("--rounds", type=int, default=7)
arguments.add_argument("--seconds", type=float, default=8.0, help="of timing a cell, at most")
arguments.add_argument("--n", type=int, nargs="*", default=[512, 1024, 2048, 4096])
arguments.add_argument("--out", default="")
options = arguments.parse_args()
torch.set_num_threads(1)


def timed(call):
    start = time.thread_time()
    call()
    return time.thread_time() - start


def cell(n, d, causal):
    torch.manual_seed(1)
    q, k, v, d_o = (torch.randn(1, n, options.heads, d, dtype=torch.float64) for _ in range(4))
    theirs = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
    keywords = {"causal": causal, "threads": 1}
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        o = F.scaled_dot_product_attention(*theirs, is_causal=causal)
        out, lse = attn.attention(q, k, v, return_lse=True, **keywords)
        assert (out - o.detach().transpose(1, 2)).abs().max() < 1e-13

        def peer_forward():
            with torch.no_grad():
                F.scaled_dot_product_attention(*theirs, is_causal=causal)

        def peer_backward():
            return torch.autograd.grad(o, theirs, d_o.transpose(1, 2), retain_graph=True)

        def backward():
            return attn.attention_backward(d_o, q, k, v, out, lse, **keywords)

        for ours, peers in zip(backward().values(), peer_backward()):
            assert (ours - peers.transpose(1, 2)).abs().max() < 1e-12
        rounds = []
        until = time.monotonic() + options.seconds
        while len(rounds) < 3 or (len(rounds) < options.rounds and time.monotonic() < until):
            rounds.append([timed(lambda: attn.attention(q, k, v, return_lse=True, **keywords)), timed(peer_forward),
                           timed(backward), timed(peer_backward)])
    return rounds


rows = []
for d in (64, 128):
    for n in options.n:
        for causal in (False, True):
            rounds = cell(n, d, causal)
            flops = 4 * n * n * d * options.heads / (2 if causal else 1)
            forward, peer, backward, peer_backward = (statistics.median(x) for x in zip(*rounds))
            rows.append({
                "n": n, "d": d, "causal": causal,
                "forward_ratio": round(statistics.median(a / b for a, b, _, _ in rounds), 3),
                "both_ratio": round(statistics.median((a + c) / (b + e) for a, b, c, e in rounds), 3),
                "attn_gflops": [round(flops / forward / 1e9, 1), round(2.5 * flops / backward / 1e9, 1)],
                "torch_gflops": [round(flops / peer / 1e9, 1), round(2.5 * flops / peer_backward / 1e9, 1)],
                "seconds": rounds})
            print("n {n:5} d {d:3} {0:6}  forward {forward_ratio:.2f}  forward and backward {both_ratio:.2f}  GFLOP/s attn "
                  "{attn_gflops} torch {torch_gflops}".format("causal" if causal else "", **rows[-1]), flush=True)
with open("/proc/cpuinfo") as file:
    cpu = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.processor())
commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
result = {"command": "python bench/cpu/torch_f64.py " + " ".join(sys.argv[1:]),
          "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "torch": torch.__version__,
          "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(), "threads": 1, "heads": options.heads, "cpu": cpu,
          "attn_commit": commit, "results": rows}
if options.out:
    with open(options.out, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
