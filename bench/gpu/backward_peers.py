"""Backward pass beside its peers on one GPU, cell by cell in one process: cuDNN and FlashAttention-2 as PyTorch has
them, and FlashAttention-3 where a library of it is given. Gradients are checked against fp64 before they are timed.
Needs PyTorch and Triton.

  python3 bench/gpu/backward_peers.py --library attn_c.so --fa3 _C.so --kernel backward_sm90 \\
    --out bench/results/h200-backward.json

--library: bench/gpu/attn_c.cpp as a shared object. --fa3: flash_attn_3/_C.so of the wheel xformers.
The figures of FlashAttention-3's paper are f16."""
import argparse, math, sys

import torch
from torch.nn.attention import SDPBackend

from calls import DTYPES, Attention, FlashAttention3, Results, apart, median_ms, pytorch_backward, random_inputs

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--fa3", default="")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--lengths", default="512,1024,2048,4096,8192,16384")
arguments.add_argument("--dims", default="64,128,256")
arguments.add_argument("--dtype", default="bf16", choices=list(DTYPES))
arguments.add_argument("--kernel", default="")
arguments.add_argument("--rep", type=int, default=40)
options = arguments.parse_args()
kTokens, kHidden = 16384, 2048
kPeers = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
results, wrong = Results(options.out, options.commit, dtype=options.dtype), []


def errors(q, k, v, d_o, causal, gradients, others):
    """Largest error of each gradient against fp64, over that of the peer, on the first head of the first entry."""
    one = lambda t: t[:1, :, :1].transpose(1, 2)
    leaves = [one(t).double().requires_grad_() for t in (q, k, v)]
    n = q.shape[1]
    s = leaves[0] @ leaves[1].transpose(2, 3) / math.sqrt(q.shape[-1])
    if causal:
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device="cuda").triu(1), -math.inf)
    exact = torch.autograd.grad(s.softmax(-1) @ leaves[2], leaves, one(d_o).double())
    worst = 0.0
    for mine, other, true in zip(gradients, others, exact):
        error = (one(mine).double() - true).abs().max() / (other[:1, :1].double() - true).abs().max()
        worst = max(worst, error.item() if math.isfinite(error.item()) else math.inf)
    return worst


def cell(d, causal, n):
    b, h = kTokens // n, kHidden // d
    given = random_inputs(b, n, h, h, d, options.dtype)
    ours = Attention(options.library, f"b{b}_n{n}_h{h}_d{d}{'_causal' if causal else ''}_{options.dtype}", *given)
    run, gradients = ours.backward(options.kernel)
    run()
    calls = {"ours": run, **{name: pytorch_backward(backend, *given, causal) for name, backend in kPeers.items()}}
    row = dict(d=d, causal=causal, n=n)
    row["error over cudnn's"] = round(errors(*given, causal, gradients, calls["cudnn"]()), 2)
    right = row["error over cudnn's"] <= 2
    if options.fa3:
        calls["fa3"], theirs = FlashAttention3(options.fa3, *given[:3], causal, given[3]).backward()
        calls["fa3"]()
        row["apart from fa3's"] = round(apart(gradients, theirs), 4)
        right = right and row["apart from fa3's"] < 0.02
    results.add_speeds(row, 10 * b * h * n * n * d * (0.5 if causal else 1), median_ms(calls, options.rep))
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
