"""Backward pass beside its peers on one GPU, cell by cell in one process: cuDNN and FlashAttention-2 as PyTorch has
them, and FlashAttention-3 where a library of it is given. Gradients are checked against fp64 before they are timed.
Needs PyTorch and Triton.

  python3 bench/gpu/backward_peers.py --library attn_c.so --fa3 libfa3.so --kernel backward_sm90 \\
    --out bench/results/h200-backward.json

--library: bench/gpu/attn_c.cpp as a shared object. --fa3: one with the entry points of bench/gpu/backward/peer.hpp."""
import argparse, ctypes, datetime, json, math, random, statistics, sys, time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--fa3", default="")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--lengths", default="512,1024,2048,4096,8192,16384")
arguments.add_argument("--dims", default="64,128,256")
arguments.add_argument("--kernel", default="")
arguments.add_argument("--rep", type=int, default=40)
options = arguments.parse_args()
kTokens, kHidden = 16384, 2048
kPeers = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
pointer = ctypes.c_void_p
library = ctypes.CDLL(options.library)
library.attn_plan.restype = library.attn_plan_backward.restype = pointer
wrong = []
if options.fa3:
    fa3 = ctypes.CDLL(options.fa3)
    integer = ctypes.c_int
    fa3.fa3_fwd.argtypes = [pointer] * 5 + [integer] * 7 + [ctypes.c_float, pointer, pointer]
    fa3.fa3_bwd.argtypes = [pointer] * 17 + [integer] * 7 + [ctypes.c_float, integer, pointer]
    fa3.fa3_bwd_sizes.argtypes = [integer] * 8 + [ctypes.POINTER(ctypes.c_longlong)]


def at(tensor):
    return pointer(tensor.data_ptr())


def planned(plan, descriptor, kernel):
    size = ctypes.c_longlong()
    handle = plan(descriptor.encode(), kernel.encode(), ctypes.byref(size))
    if not handle:
        sys.exit(1)
    return pointer(handle), torch.empty(max(1, size.value), dtype=torch.uint8, device="cuda"), size


def ours(descriptor, q, k, v, d_o):
    """(run, gradients): run() puts the backward pass into the stream. O and LSE come from our forward pass."""
    b, n, h, d = q.shape
    o, dq, dk, dv = (torch.full_like(q, math.nan) for _ in range(4))
    lse = torch.full((b, h, n), math.nan, device="cuda")
    none = (pointer * 1)()
    stream = pointer(torch.cuda.current_stream().cuda_stream)
    forward, space, size = planned(library.attn_plan, descriptor, "")
    if library.attn_forward(forward, at(q), at(k), at(v), at(o), at(lse), none, at(space), size, stream):
        sys.exit(1)
    backward, workspace, bytes_ = planned(library.attn_plan_backward, descriptor, options.kernel)

    def run(keep=(q, k, v, d_o, o, lse, dq, dk, dv, workspace)):
        if library.attn_backward(backward, *map(at, keep[:3]), at(o), at(lse), at(d_o), at(dq), at(dk), at(dv), none,
                                 at(workspace), bytes_, stream):
            sys.exit(1)
    return run, (dq, dk, dv)


def peer(backend, q, k, v, d_o, causal):
    leaves = [t.transpose(1, 2).detach().requires_grad_() for t in (q, k, v)]
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    given = d_o.transpose(1, 2)
    return lambda: torch.autograd.grad(out, leaves, given, retain_graph=True)


def flash_attention_3(q, k, v, d_o, causal):
    """(run, gradients), as ours."""
    b, n, h, d = q.shape
    o, dq, dk, dv = (torch.full_like(q, math.nan) for _ in range(4))
    lse = torch.full((b, h, n), math.nan, device="cuda")
    stream = pointer(torch.cuda.current_stream().cuda_stream)
    sizes, semaphore = (b, n, n, h, h, d, int(causal)), torch.zeros(1, dtype=torch.int32, device="cuda")
    if fa3.fa3_fwd(*map(at, (q, k, v, o, lse)), *sizes, d ** -0.5, at(semaphore), stream):
        sys.exit("fa3_fwd failed")
    count = (ctypes.c_longlong * 8)()
    if fa3.fa3_bwd_sizes(*sizes, 0, count):
        sys.exit("fa3_bwd_sizes failed")
    spaces = [torch.empty(max(1, c), dtype=torch.uint8, device="cuda") for c in count[:4]]

    def run(keep=(q, k, v, o, lse, d_o, dq, dk, dv, *spaces)):
        if fa3.fa3_bwd(*map(at, keep), None, None, None, None, *sizes, d ** -0.5, 0, stream):
            sys.exit("fa3_bwd failed")
    return run, (dq, dk, dv)


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


def median_ms(calls):
    """Of each, the median of three rounds, each after a rest, in another order: a card under load slows down."""
    times = {name: [] for name in calls}
    for _ in range(3):
        for name in random.sample(list(calls), len(calls)):
            torch.cuda.synchronize()
            time.sleep(0.12)
            times[name].append(do_bench(calls[name], warmup=25, rep=options.rep, return_mode="median"))
    return {name: statistics.median(t) for name, t in times.items()}


def cell(d, causal, n):
    b, h = kTokens // n, kHidden // d
    q, k, v, d_o = (torch.randn(b, n, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    run, gradients = ours(f"b{b}_n{n}_h{h}_d{d}{'_causal' if causal else ''}_bf16", q, k, v, d_o)
    run()
    calls = {"ours": run, **{name: peer(backend, q, k, v, d_o, causal) for name, backend in kPeers.items()}}
    if options.fa3:
        calls["fa3"], theirs = flash_attention_3(q, k, v, d_o, causal)
        calls["fa3"]()
    row = dict(d=d, causal=causal, n=n)
    row["error over cudnn's"] = round(errors(q, k, v, d_o, causal, gradients, calls["cudnn"]()), 2)
    if not row["error over cudnn's"] <= 2:
        wrong.append(row)
    if options.fa3:
        difference = max((a.float() - b.float()).norm() / b.float().norm() for a, b in zip(gradients, theirs)).item()
        row["apart from fa3's"] = round(difference, 4)
        if not difference < 0.02:
            wrong.append(row)
    count = 10 * b * h * n * n * d * (0.5 if causal else 1) * 1e-9
    speed = {name: count / ms for name, ms in median_ms(calls).items()}
    row.update({name: round(x, 1) for name, x in speed.items()})
    row.update({f"ours/{name}": round(speed["ours"] / speed[name], 3) for name in speed if name != "ours"})
    print(row, flush=True)
    return row


result = dict(device=torch.cuda.get_device_name(), date=str(datetime.date.today()), commit=options.commit,
              command=" ".join(sys.argv), rows=[])
for d in map(int, options.dims.split(",")):
    for causal in (False, True):
        for n in map(int, options.lengths.split(",")):
            result["rows"].append(cell(d, causal, n))
            if options.out:
                json.dump(result, open(options.out, "w"), indent=1)
for name in [*kPeers, *(["fa3"] if options.fa3 else [])]:
    mean = statistics.geometric_mean(row[f"ours/{name}"] for row in result["rows"])
    print(f"geometric mean ours / {name}: {mean:.3f}")
if wrong:
    print("WRONG:", *wrong, sep="\n")
    sys.exit(1)
