"""attn and PyTorch's scaled_dot_product_attention (flash path) on the same CPU threads, cell by cell, alternating.

  python3 bench/cpu/torch_peer.py --attn build/attn --threads 2 --rounds 5 --out bench/results/NAME-torch.json

Each round times a few cells with `attn bench` (which checks the answers against fp64 first) and then with PyTorch; a
cell's time is the median over the rounds of the medians within a round. Where --out exists, its rounds count too. Tensors are [batch, n, heads, d] in memory
for both; PyTorch gets them transposed to [batch, heads, n, d]. Backward is autograd.grad of o by q, k and v alone.
GFLOP/s count a causal mask as half the flops and backward as 2.5 times forward. Any PyTorch 2.3 or newer will do."""
import argparse, datetime, itertools, json, os, statistics, subprocess, sys, tempfile, time

CELLS = [("forward", d, n, causal, "f32") for d in (64, 128) for n, causal in
         ((512, 0), (2048, 0), (8192, 0), (2048, 1), (8192, 1))]
CELLS += [("backward", d, 2048, causal, "f32") for d in (64, 128) for causal in (0, 1)]
CELLS += [("forward", d, n, 0, "bf16") for d in (64, 128) for n in (2048, 8192)]
CELLS += [("backward", d, 2048, causal, "bf16") for d in (64, 128) for causal in (0, 1)]
ASKED = {("forward", 0): 1.2, ("forward", 1): 1.4, ("backward", 0): 1.5, ("backward", 1): 1.5}

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--attn", default="build/attn")
arguments.add_argument("--threads", type=int, default=2)
arguments.add_argument("--heads", type=int, default=4)
arguments.add_argument("--rounds", type=int, default=5)
arguments.add_argument("--seconds", type=float, default=0.2, help="of timing a cell, a side and a round")
arguments.add_argument("--out", default="")
options = arguments.parse_args()
os.environ["OMP_NUM_THREADS"] = str(options.threads)  # read when torch is imported

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.set_num_threads(options.threads)


def name_of(cell):
    _, d, n, causal, dtype = cell
    return f"b1_n{n}_h{options.heads}_d{d}{'_causal' if causal else ''}_{dtype}"


def time_attn(cells):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "out.json")
        subprocess.run([options.attn, "bench", *map(name_of, cells), "--phase", cells[0][0], "--threads",
                        str(options.threads), "--seconds", str(options.seconds), "--json", path],
                       check=True, stdout=subprocess.DEVNULL)
        with open(path) as file:
            return json.load(file)


def time_torch(cell):
    phase, d, n, causal, dtype = cell
    backward = phase == "backward"
    torch.manual_seed(1)
    q, k, v, d_o = (torch.randn(1, n, options.heads, d, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
                    .transpose(1, 2) for _ in range(4))
    seconds = []
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.set_grad_enabled(backward):
        for x in (q, k, v):
            x.requires_grad_(backward)
        forward = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=bool(causal))
        o = forward()
        call = (lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)) if backward else forward
        call()
        while len(seconds) < 3 or sum(seconds) < options.seconds:
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def key(phase, problem):
    return f"{phase} {problem}"


rounds = {}  # of a cell: [seconds of attn, of PyTorch]
if options.out and os.path.exists(options.out):
    with open(options.out) as file:
        rounds = {key(row["phase"], row["problem"]): row["seconds"] for row in json.load(file)["results"]}
flops = {}
for _ in range(options.rounds):
    for _, group in itertools.groupby(CELLS, lambda cell: (cell[0], cell[1], cell[4])):
        group = list(group)
        report = time_attn(group)
        for cell, row in zip(group, report["results"]):
            rounds.setdefault(key(cell[0], name_of(cell)), []).append([row["seconds_median"], time_torch(cell)])
            flops[cell] = row["flops"]
rows = []
for cell in CELLS:
    seconds = rounds[key(cell[0], name_of(cell))]
    attn, peer = (statistics.median(x) for x in zip(*seconds))
    ratios = [t / a for a, t in seconds]
    rows.append({"problem": name_of(cell), "phase": cell[0], "attn_gflops": round(flops[cell] / attn / 1e9, 1),
                 "torch_gflops": round(flops[cell] / peer / 1e9, 1), "ratio": round(peer / attn, 3),
                 "ratio_least": round(min(ratios), 3), "ratio_most": round(max(ratios), 3),
                 "asked": ASKED[cell[0], cell[3]] if cell[4] == "f32" else None, "seconds": seconds})
    print("{phase:8} {problem:28} attn {attn_gflops:7.1f}  torch {torch_gflops:7.1f}  ratio {ratio:.2f} "
          "({ratio_least:.2f} to {ratio_most:.2f})  asked {asked}".format(**rows[-1]))
result = {"command": "python3 bench/cpu/torch_peer.py " + " ".join(sys.argv[1:]),
          "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
          "torch": torch.__version__, "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
          "threads": options.threads, "attn_commit": report["commit"], "machine": report["machine"], "results": rows}
if options.out:
    with open(options.out, "w") as file:
        json.dump(result, file, indent=2)
        file.write("\n")
