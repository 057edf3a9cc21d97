"""The deterministic backward pass beside the default one on one GPU, cell by cell in one process: speed, how far the
gradients are apart, and whether repeats give equal bits. Needs PyTorch and Triton.

  python3 bench/gpu/backward_deterministic.py --library attn_c.so --out bench/results/h200-deterministic.json

--library: bench/gpu/attn_c.cpp as a shared object."""
import argparse, ctypes, datetime, json, math, random, statistics, sys, time

import torch
from triton.testing import do_bench

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--lengths", default="512,1024,2048,4096,8192,16384")
arguments.add_argument("--dims", default="64,128,256")
arguments.add_argument("--kernel", default="", help="of the deterministic pass")
arguments.add_argument("--rep", type=int, default=40)
arguments.add_argument("--repeats", type=int, default=50, help="of which all must give equal bits")
options = arguments.parse_args()
kTokens, kHidden = 16384, 2048
pointer = ctypes.c_void_p
library = ctypes.CDLL(options.library)
kPlans = {"default": library.attn_plan_backward, "deterministic": library.attn_plan_deterministic}
library.attn_plan.restype = pointer
for plan in kPlans.values():
    plan.restype = pointer


def at(tensor):
    return pointer(tensor.data_ptr())


def planned(plan, descriptor, kernel=""):
    size = ctypes.c_longlong()
    handle = plan(descriptor.encode(), kernel.encode(), ctypes.byref(size))
    if not handle:
        sys.exit(1)
    return pointer(handle), torch.empty(max(1, size.value), dtype=torch.uint8, device="cuda"), size


def passes(descriptor, q, k, v, d_o):
    """{name: (run, gradients)} of the two backward passes, which share the results of a forward pass."""
    b, n, h, d = q.shape
    o, lse = torch.full_like(q, math.nan), torch.full((b, h, n), math.nan, device="cuda")
    none, stream = (pointer * 1)(), pointer(torch.cuda.current_stream().cuda_stream)
    forward, space, size = planned(library.attn_plan, descriptor)
    if library.attn_forward(forward, at(q), at(k), at(v), at(o), at(lse), none, at(space), size, stream):
        sys.exit(1)

    def bound(name, plan):
        backward, workspace, bytes_ = planned(plan, descriptor, options.kernel if name == "deterministic" else "")
        gradients = [torch.full_like(q, math.nan) for _ in range(3)]

        def run(keep=(q, k, v, o, lse, d_o, *gradients)):
            if library.attn_backward(backward, *map(at, keep), none, at(workspace), bytes_, stream):
                sys.exit(1)
        return run, gradients
    return {name: bound(name, plan) for name, plan in kPlans.items()}


def median_ms(calls):
    """Of each, the median of three rounds, each after a rest, in another order: a card under load slows down."""
    times = {name: [] for name in calls}
    for _ in range(3):
        for name in random.sample(list(calls), len(calls)):
            torch.cuda.synchronize()
            time.sleep(0.1)
            times[name].append(do_bench(calls[name], warmup=25, rep=options.rep, return_mode="median"))
    return {name: statistics.median(t) for name, t in times.items()}


def cell(d, causal, n):
    b, h = kTokens // n, kHidden // d
    q, k, v, d_o = (torch.randn(b, n, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    both = passes(f"b{b}_n{n}_h{h}_d{d}{'_causal' if causal else ''}_bf16", q, k, v, d_o)
    for run, _ in both.values():
        run()
    ours, theirs = both["deterministic"][1], both["default"][1]
    apart = max(((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in zip(ours, theirs))
    first, equal = [x.clone() for x in ours], True
    for _ in range(options.repeats):
        both["deterministic"][0]()
        equal = equal and all(torch.equal(x.view(torch.int16), y.view(torch.int16)) for x, y in zip(first, ours))
    count = 10 * b * h * n * n * d * (0.5 if causal else 1) * 1e-9
    speed = {name: count / ms for name, ms in median_ms({name: run for name, (run, _) in both.items()}).items()}
    row = dict(d=d, causal=causal, n=n, apart=round(apart, 5), equal=equal,
               **{name: round(x, 1) for name, x in speed.items()},
               ratio=round(speed["deterministic"] / speed["default"], 3))
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
rows = result["rows"]
print(f"geometric mean of the default: {statistics.geometric_mean(row['ratio'] for row in rows):.3f}, "
      f"least {min(row['ratio'] for row in rows):.3f}")
wrong = [row for row in rows if not row["equal"] or not row["apart"] < 0.01]
if wrong:
    print("WRONG:", *wrong, sep="\n")
    sys.exit(1)
