"""Forward pass beside its peers on one GPU, cell by cell in one process: cuDNN and FlashAttention-2 as PyTorch has them, and
FlashAttention-3 where a library of it is given. O is checked against fp64 before it is timed. Needs PyTorch and Triton.

  python3 bench/gpu/forward_peers.py --library attn_c.so --fa3 _C.so --peers cudnn \\
    --out bench/results/h200-forward.json

--library: bench/gpu/attn_c.cpp as a shared object. --fa3: flash_attn_3/_C.so of the wheel xformers.
The figures of FlashAttention-3's paper are f16."""
import argparse, sys

from torch.nn.attention import SDPBackend

from calls import DTYPES, Attention, FlashAttention3, Results, apart, median_ms, pytorch_forward, random_inputs
from forward_errors import error_of_rows

kPeers = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--fa3", default="")
arguments.add_argument("--peers", default=",".join(kPeers), help=f"of PyTorch, some of {', '.join(kPeers)}")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--lengths", default="512,1024,2048,4096,8192,16384")
arguments.add_argument("--dims", default="64,128,256")
arguments.add_argument("--dtype", default="bf16", choices=list(DTYPES))
arguments.add_argument("--kernel", default="")
arguments.add_argument("--rep", type=int, default=40)
options = arguments.parse_args()
kTokens, kHidden = 16384, 2048
results, wrong = Results(options.out, options.commit, dtype=options.dtype), []
peers = [name for name in options.peers.split(",") if name]


def cell(d, causal, n):
    b, h = kTokens // n, kHidden // d
    q, k, v, _ = random_inputs(b, n, h, h, d, options.dtype)
    descriptor = f"b{b}_n{n}_h{h}_d{d}{'_causal' if causal else ''}_{options.dtype}"
    run, (o, lse) = Attention(options.library, descriptor, q, k, v).forward(options.kernel)
    run()
    row = {"d": d, "causal": causal, "n": n, "error over standard's": round(error_of_rows(q, k, v, o, causal), 2)}
    right = row["error over standard's"] <= 2
    calls = {"ours": run, **{name: pytorch_forward(kPeers[name], q, k, v, causal) for name in peers}}
    if options.fa3:
        calls["fa3"], theirs = FlashAttention3(options.fa3, q, k, v, causal).forward()
        calls["fa3"]()
        row["apart from fa3's"] = round(apart((o, lse), theirs), 4)
        right = right and row["apart from fa3's"] < 0.02
    results.add_speeds(row, 4 * b * h * n * n * d * (0.5 if causal else 1), median_ms(calls, options.rep))
    if not right:
        wrong.append(row)


for d in map(int, options.dims.split(",")):
    for causal in (False, True):
        for n in map(int, options.lengths.split(",")):
            cell(d, causal, n)
results.print_means()
if wrong:
    print("WRONG:", *wrong, sep="\n")
    sys.exit(1)
