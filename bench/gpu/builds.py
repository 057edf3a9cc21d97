"""Builds of the library beside each other in one process, cell by cell: speed of each over the first one's, with which its results are compared
before they are timed. Whether the first is right, forward_peers.py and backward_peers.py say.

  python3 bench/gpu/builds.py --libraries before.so,after.so --phase backward --dims 64,128 --out OUT.json

--libraries: bench/gpu/attn_c.cpp with each build (bench/README.md says how). 16k tokens, hidden size 2048, bf16, full and causal."""
import argparse, os, statistics, sys

from calls import Attention, Results, apart, median_ms, random_inputs

arguments = argparse.ArgumentParser()
arguments.add_argument("--libraries", required=True, help="two or more, separated by commas")
arguments.add_argument("--phase", default="backward", choices=("forward", "backward"))
arguments.add_argument("--dims", default="64,128,256")
arguments.add_argument("--lengths", default="512,1024,2048,4096,8192,16384")
arguments.add_argument("--kernel", default="")
arguments.add_argument("--deterministic", action="store_true")
arguments.add_argument("--rep", type=int, default=10, help="ms of a timing: longer ones follow the card's power")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
options = arguments.parse_args()
kTokens, kHidden, kApart = 16384, 2048, 0.01
libraries = options.libraries.split(",")
names = [os.path.basename(path) for path in libraries]
if len(set(names)) < max(2, len(names)):
    sys.exit(f"--libraries is {options.libraries}; accepted are two or more of different names, separated by commas")
results, speeds = Results(options.out, options.commit, phase=options.phase), {}


def pass_of(path, word, given):
    build = Attention(path, word, *given)
    return build.forward(options.kernel) if options.phase == "forward" else build.backward(options.kernel, options.deterministic)


def cell(d, causal, n):
    b, h = max(1, kTokens // n), kHidden // d
    word = f"b{b}_n{n}_h{h}_d{d}{'_causal' if causal else ''}_bf16"
    given = random_inputs(b, n, h, h, d)
    calls, first = {}, None
    for name, path in zip(names, libraries):
        calls[name], values = pass_of(path, word, given)
        calls[name]()
        first = first or [value.clone() for value in values]
        if not (far := apart(values, first)) < kApart:
            sys.exit(f"{word}: results of {name} and {names[0]} are {far} apart")
    ms = median_ms(calls, options.rep)
    row = results.add(d=d, causal=causal, n=n, ms=round(ms[names[0]], 4), speed={name: round(ms[names[0]] / ms[name], 4) for name in names[1:]})
    for name, speed in row["speed"].items():
        speeds.setdefault((name, d), []).append(speed)


for d in map(int, options.dims.split(",")):
    for causal in (False, True):
        for n in map(int, options.lengths.split(",")):
            cell(d, causal, n)
for (name, d), values in speeds.items():
    print(f"{name}, d {d}: {statistics.geometric_mean(values):.4f} of {names[0]} in {len(values)} cells")
