"""Forward pass of 8-bit floats (e4m3) beside FlashAttention-3's and our own in bf16 on one GPU, cell by cell in one process, with O
of some rows beside fp64 first. Needs PyTorch, Triton and the extension of the package fa3-fwd; with --cudnn, cuDNN's pass is a peer
too, by the package nvidia-cudnn-frontend (cudnn_float8.py).

  python3 bench/gpu/float8_peers.py --library attn_c.so --fa3 _C.abi3.so --cudnn --out bench/results/h200-float8.json

FlashAttention-3 gives LSE always; ours is timed without, as sums of P cost nothing then, and with --lse with it too (ours-lse). A peer
that refuses or is wrong is named and left out of its cell. A table of all cells comes last."""
import argparse, sys, time

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
arguments.add_argument("--cudnn", action="store_true")
arguments.add_argument("--no-bf16", action="store_true", help="leave out our own pass in bf16")
arguments.add_argument("--limit", type=float, default=1e9, help="seconds after which no cell begins")
arguments.add_argument("--rep", type=int, default=10)
options = arguments.parse_args()
kTokens, kHidden = 16384, 2048
results, wrong = Results(options.out, options.commit, dtype="e4m3"), []
if options.fa3:
    flash_attention_3(options.fa3)


def fa3(q, k, v, causal):
    """run() of FlashAttention-3, with a scale of 1 for each batch entry and head, and o() after it."""
    ones = [torch.ones(q.shape[0], q.shape[2], device="cuda") for _ in range(3)]
    nothing = [None] * 13

    def run():
        return torch.ops.fa3_fwd.fwd.default(q, k, v, None, None, None, *nothing, None, *ones, q.shape[-1] ** -0.5, causal,
                                             -1, -1, 0, 0.0, True, None, 1, None, 0)[0]
    return run, run


def cudnn(q, k, v, causal):
    """The same of cuDNN."""
    from cudnn_float8 import CudnnFloat8

    begin = time.time()
    call = CudnnFloat8(q, k, v, causal)
    if time.time() - begin > 5:
        print(f"cudnn: planning took {time.time() - begin:.1f} s", flush=True)

    def o():
        call.out.view(torch.uint8).fill_(0x7f)  # NaN
        call.run()
        return call.o()
    return call.run, o


def error(q, k, v, o, causal):
    """Root of the mean square of O's error on some rows of a head, over that of O."""
    rows, n = some_rows(q.shape[1], 256), q.shape[1]
    s = (q[0, rows, 0].double() @ k[0, :, 0].double().T) * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.arange(n, device="cuda")[None, :] > rows[:, None], -torch.inf)
    right = s.softmax(-1) @ v[0, :, 0].double()
    return ((o[0, rows, 0].double() - right).norm() / right.norm()).item()


peers = ({"fa3": fa3} if options.fa3 else {}) | ({"cudnn": cudnn} if options.cudnn else {})


def cell(d, causal, n):
    b, h = kTokens // n, kHidden // d
    low = [torch.randn(b, n, h, d, device="cuda").to(torch.float8_e4m3fn) for _ in range(3)]
    name = f"b{b}_n{n}_h{h}_d{d}{'_causal' if causal else ''}"
    ours = Attention(options.library, f"{name}_q(e4m3)_kv(e4m3)_bf16", *low)
    run, (o, _) = ours.forward(options.kernel, dtype=torch.bfloat16, lse=False)
    run()
    row = {"d": d, "causal": causal, "n": n, "error": round(error(*low, o, causal), 4)}
    calls = {"ours": run}
    if not options.no_bf16:
        wide = [x.to(torch.bfloat16) for x in low]
        calls["bf16"] = Attention(options.library, f"{name}_bf16", *wide).forward()[0]
    if options.lse:
        calls["ours-lse"] = ours.forward(options.kernel, dtype=torch.bfloat16)[0]
    for peer, make in peers.items():
        try:
            call, o_of = make(*low, causal)
            found = error(*low, o_of(), causal)
            torch.cuda.synchronize()
        except Exception as refusal:  # of whatever kind a peer's package raises
            print(f"{name}: {peer} refuses: {' '.join(str(refusal).split())[:300]}", flush=True)
            continue
        row[f"error of {peer}"] = round(found, 4)
        if found <= 0.1:
            calls[peer] = call
        else:
            print(f"{name}: {peer} is wrong, error {found}: left out", flush=True)
    results.add_speeds(row, 4 * b * h * n * n * d * (0.5 if causal else 1), median_ms(calls, options.rep))
    if not row["error"] <= 0.1:
        wrong.append(row)


begin, ended = time.time(), ""
for d in map(int, options.dims.split(",")):
    for causal in (False, True):
        for n in map(int, options.lengths.split(",")):
            if ended or time.time() - begin > options.limit:
                print(f"left out: d {d} {'causal' if causal else 'full'} n {n}")
                continue
            try:
                cell(d, causal, n)
            except Exception as failure:  # after which a device takes nothing more, perhaps
                ended = f"d {d} {'causal' if causal else 'full'} n {n}: {failure}"
names = ["ours", *([] if options.no_bf16 else ["bf16"]), *peers]
print("TFLOP/s            ", *(f"{name:>6}" for name in names), " ours/" + " ours/".join(peers), "error of each")
for row in results.rows:
    print(f"d{row['d']:<3} {'causal' if row['causal'] else 'full  '} n{row['n']:<6}", *(f"{row.get(name, 0):6.0f}" for name in names),
          *(f"{row.get(f'ours/{name}', 0):8.3f}" for name in peers), row["error"], *(row.get(f"error of {name}", "-") for name in peers))
results.print_means()
if wrong or ended:
    print("WRONG:", *wrong, ended, sep="\n")
    sys.exit(1)
