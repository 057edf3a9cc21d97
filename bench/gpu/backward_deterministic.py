"""The deterministic backward pass beside the default one on one GPU, cell by cell in one process: speed, how far the
gradients are apart, and whether repeats give equal bits: of dQ, dK and dV, and of all that the pass leaves in its
workspace. Among that are the float32 sums of dQ, where an order that changed shows in each repeat; rounded to bfloat16
it shows in one of thousands of elements. The default pass is repeated too: its workspace is to differ, or else the
comparison sees nothing; at n 512 it goes in order by itself, so that a longer one is needed. Needs PyTorch and
Triton.

  python3 bench/gpu/backward_deterministic.py --library attn_c.so --out bench/results/h200-backward-deterministic.json

--library: bench/gpu/attn_c.cpp as a shared object. --variants: others, whose deterministic pass stands beside the
first's default pass too: NAME=LIBRARY,..."""
import argparse, statistics, sys

import torch

from calls import Attention, Results, apart, median_ms, random_inputs

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--variants", default="")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--lengths", default="512,1024,2048,4096,8192,16384")
arguments.add_argument("--dims", default="64,128,256")
arguments.add_argument("--kernel", default="", help="of the deterministic pass")
arguments.add_argument("--rep", type=int, default=40)
arguments.add_argument("--repeats", type=int, default=50, help="of which all must give equal bits")
arguments.add_argument("--default-repeats", type=int, default=5, help="of the default pass, of which some are to differ")
options = arguments.parse_args()
kTokens, kHidden = 16384, 2048
libraries = {"deterministic": options.library}
libraries |= dict(pair.split("=", 1) for pair in options.variants.split(",") if pair)
results = Results(options.out, options.commit)


def repeats_that_differ(run, tensors, count):
    """Of so many repeats after a first run, those after which some bit of the tensors differs."""
    run()
    first, differ = [x.clone().view(torch.uint8) for x in tensors], 0
    for _ in range(count):
        run()
        differ += not all(torch.equal(x, y.view(torch.uint8)) for x, y in zip(first, tensors))
    return differ


def cell(d, causal, n):
    b, h = kTokens // n, kHidden // d
    descriptor = f"b{b}_n{n}_h{h}_d{d}{'_causal' if causal else ''}_bf16"
    inputs = random_inputs(b, n, h, h, d)
    ours = Attention(options.library, descriptor, *inputs)
    plan = ours.planned("attn_plan_backward", "")
    default, others = ours.backward_of(*plan)
    default_differ = repeats_that_differ(default, [plan[1]], options.default_repeats)
    runs, checks = {"default": default}, {}
    for name, library in libraries.items():
        attention = Attention(library, descriptor, *inputs)
        ordered_plan = attention.planned("attn_plan_deterministic", options.kernel)
        runs[name], gradients = attention.backward_of(*ordered_plan)
        checks[name] = dict(differ=repeats_that_differ(runs[name], [ordered_plan[1], *gradients], options.repeats),
                            apart=round(apart(gradients, others), 5))
    count = 10 * b * h * n * n * d * (0.5 if causal else 1) * 1e-9
    speed = {name: count / ms for name, ms in median_ms(runs, options.rep).items()}
    for name, check in checks.items():
        results.add(d=d, causal=causal, n=n, **check, default_differ=default_differ, default=round(speed["default"], 1),
                    **{} if name == "deterministic" else {"variant": name}, deterministic=round(speed[name], 1),
                    ratio=round(speed[name] / speed["default"], 3))


for d in map(int, options.dims.split(",")):
    for causal in (False, True):
        for n in map(int, options.lengths.split(",")):
            cell(d, causal, n)
for name in libraries:
    ratios = [row["ratio"] for row in results.rows if row.get("variant", "deterministic") == name]
    print(f"geometric mean of the default, {name}: {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")
wrong = [row for row in results.rows if row["differ"] or not row["apart"] < 0.01]
if wrong:
    print("WRONG:", *wrong, sep="\n")
if not any(row["default_differ"] for row in results.rows):
    wrong.append("default")
    print("WRONG: the workspace of the default pass never differed, so this comparison sees nothing")
sys.exit(1 if wrong else 0)
