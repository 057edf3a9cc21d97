"""Forward pass of 8-bit floats (e4m3) beside FlashAttention-3's and our own in bf16 on one GPU, cell by cell in one process, with O
of some rows beside fp64 first. Needs PyTorch, Triton and the extension of the package fa3-fwd.

  python3 bench/gpu/float8_peers.py --library attn_c.so --fa3 _C.abi3.so --out bench/results/h200-float8.json

FlashAttention-3 gives LSE always; ours is timed without, as sums of P cost nothing then, and with --lse with it too (ours-lse)."""
import argparse, sys

import torch

from calls import Attention, Results, flash_attention_3, median_ms
from forward_errors import some_rows

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--fa3", default="")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--lengths", default="512,1024,2048,4096,8192,16384")
arguments.add_argument("--dims", default="64,128,256")
arguments.add_argument("--kernel", default="")
arguments.add_argument("--lse", action="store_true")
arguments.add_argument("--rep", type=int, default=10)
options = arguments.parse_args()
kTokens, kHidden = 16384, 2048
results, wrong = Results(options.out, options.commit, dtype="e4m3"), []
if options.fa3:
    flash_attention_3(options.fa3)


def fa3(q, k, v, causal):
    """run() of FlashAttention-3, with a scale of 1 for each batch entry and head; returns O."""
    ones = [torch.ones(q.shape[0], q.shape[2], device="cuda") for _ in range(3)]
    nothing = [None] * 13
    return lambda: torch.ops.fa3_fwd.fwd.default(q, k, v, None, None, None, *nothing, None, *ones, q.shape[-1] ** -0.5, causal,
                                                 -1, -1, 0, 0.0, True, None, 1, None, 0)[0]


def error(q, k, v, o, causal):
    """Root of the mean square of O's error on some rows of a head, over that of O."""
    rows, n = some_rows(q.shape[1], 256), q.shape[1]
    s = (q[0, rows, 0].double() @ k[0, :, 0].double().T) * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.arange(n, device="cuda")[None, :] > rows[:, None], -torch.inf)
    right = s.softmax(-1) @ v[0, :, 0].double()
    return ((o[0, rows, 0].double() - right).norm() / right.norm()).item()


def cell(d, causal, n):
    b, h = kTokens // n, kHidden // d
    low = [torch.randn(b, n, h, d, device="cuda").to(torch.float8_e4m3fn) for _ in range(3)]
    wide = [x.to(torch.bfloat16) for x in low]
    name = f"b{b}_n{n}_h{h}_d{d}{'_causal' if causal else ''}"
    ours = Attention(options.library, f"{name}_q(e4m3)_kv(e4m3)_bf16", *low)
    run, (o, _) = ours.forward(options.kernel, dtype=torch.bfloat16, lse=False)
    run()
    row = {"d": d, "causal": causal, "n": n, "error": round(error(*low, o, causal), 4)}
    calls = {"ours": run, "bf16": Attention(options.library, f"{name}_bf16", *wide).forward()[0]}
    if options.lse:
        calls["ours-lse"] = ours.forward(options.kernel, dtype=torch.bfloat16)[0]
    if options.fa3:
        calls["fa3"] = fa3(*low, causal)
        row["error of fa3"] = round(error(*low, calls["fa3"](), causal), 4)
    results.add_speeds(row, 4 * b * h * n * n * d * (0.5 if causal else 1), median_ms(calls, options.rep))
    if not row["error"] <= 0.1:
        wrong.append(row)


for d in map(int, options.dims.split(",")):
    for causal in (False, True):
        for n in map(int, options.lengths.split(",")):
            cell(d, causal, n)
results.print_means()
if wrong:
    print("WRONG:", *wrong, sep="\n")
    sys.exit(1)
