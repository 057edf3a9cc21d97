"""Figure 2 of the FlashAttention paper, theorems 2 and 5 and proposition 4 on a CPU whose L2 cache is the fast memory.

  python3 bench/papers/figure2.py --build build --out build/figure2

writes OUT.svg and OUT.json, prints tables and, for each claim, a sentence that says whether it holds here.
Left, of both passes as in the paper, and of the backward pass alone: GFLOP, bytes and time of standard attention, FlashAttention and
FlashAttention-2 (--left b1_n1024_h16_d64 is one sequence of the paper's GPT-2 medium). Middle: bytes and time against B_c. Right: bytes and time
against the share of blocks that a mask leaves. Bytes: `attn io` (model, simulated cache); times: `attn bench` and flash_blocks,
each result compared with fp64 first. Needs numpy and a C++ compiler."""
import argparse, json, math, os, re, subprocess, sys, tempfile

import numpy

import svg

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--build", default="build", help="folder with attn and libattn.a")
arguments.add_argument("--out", default="build/figure2")
arguments.add_argument("--n", type=int, default=1024, help="left panels; middle and right take 4 times as many")
arguments.add_argument("--heads", type=int, default=4)
arguments.add_argument("--d", type=int, default=64)
arguments.add_argument("--fast-bytes", type=int, default=0, help="M; default: the L2 cache of this machine")
arguments.add_argument("--left", default="", help="the problem of the left panels, in f32; default: b1_nN_hHEADS_dD of the options above")
arguments.add_argument("--cxx", default=os.environ.get("CXX", "c++"))
options = arguments.parse_args()
ATTN = os.path.join(options.build, "attn")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LEFT = options.left or f"b1_n{options.n}_h{options.heads}_d{options.d}"
LEFT_ORDERS = ("standard", "flash_attention", "flash_attention_2")
LONG = 4 * options.n


def attn(*words):
    """Rows of a command's JSON, and where and when it ran."""
    report = json.loads(subprocess.run([ATTN, *map(str, words), "--json", "-"], check=True, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    return report["results"], {key: report[key] for key in ("date", "commit", "machine")}


def io(descriptors, *words):
    descriptors = [descriptors] if isinstance(descriptors, str) else descriptors
    return attn("io", *descriptors, *words)[0]


def seconds(jobs):
    """{job: the least time of a call} of jobs (descriptor, algorithm, phase); others may use the machine, so the jobs are timed in turns, three times."""
    least = {}
    for descriptor, algorithm, phase in jobs * 3:
        row = attn("bench", descriptor, "--algorithm", algorithm, "--phase", phase, "--threads", 1, "--seconds", 0.5)[0][0]
        if not row["correct"]:
            sys.exit(f"{descriptor} {algorithm} {phase}: wrong, so not timed")
        job = descriptor, algorithm, phase
        least[job] = min(row["seconds_minimum"], least.get(job, math.inf))
    return least


def table(title, header, rows):
    print(f"\n{title}")
    lines = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row] for row in [header] + rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        print("  " + "  ".join(text.rjust(width) for text, width in zip(line, widths)))


def left_panel(fast):
    """{phase: [an entry for each of LEFT_ORDERS]}, of "forward", "backward" and their sums, "both"."""
    columns = "gflop", "model_bytes", "simulated_bytes", "seconds"
    d = int(re.search(r"_d(\d+)", LEFT)[1])
    block = fast // (8 * d * 4)  # half of the paper's rule, so that LRU has room for the tile of S and the gradients too
    # The CPU's backward pass of FlashAttention is in FlashAttention-2's order: its time stands for both.
    job_of = lambda phase, algorithm: (LEFT, "flash_attention_2" if (phase, algorithm) == ("backward", "flash_attention") else algorithm, phase)
    panels = {"forward": [], "backward": []}
    times = seconds(list(dict.fromkeys(job_of(phase, algorithm) for phase in panels for algorithm in LEFT_ORDERS)))
    for phase, entries in panels.items():
        for algorithm in LEFT_ORDERS:
            # What stays is the Q block in FlashAttention-2's forward pass, else the K, V block; the other has d rows.
            stays, passes = ("--block-q", "--block-k") if (phase, algorithm) == ("forward", "flash_attention_2") else ("--block-k", "--block-q")
            row = io(LEFT, "--algorithm", algorithm, "--phase", phase, "--fast-bytes", fast, "--measure", stays, block, passes, min(block, d))[0]
            values = row["flops"] * 1e-9, row["model"]["bytes"], row["measured"]["simulator"]["bytes"], times[job_of(phase, algorithm)]
            entries.append({"algorithm": algorithm, **dict(zip(columns, values))})
    panels["both"] = [{"algorithm": first["algorithm"], **{what: first[what] + second[what] for what in columns}}
                      for first, second in zip(panels["forward"], panels["backward"])]
    for phase, entries in panels.items():
        table(f"Left: {LEFT}, {phase}, one thread", ["algorithm", "GFLOP", "model MB", "simulated MB", "ms"],
              [[r["algorithm"], r["gflop"], r["model_bytes"] * 1e-6, r["simulated_bytes"] * 1e-6, r["seconds"] * 1e3] for r in entries])
    return panels


def left_picture(phase, entries):
    """Bars of each order as shares: of the largest number of operations, and of standard attention's bytes and time."""
    base = {**entries[0], "gflop": max(entry["gflop"] for entry in entries)}
    what = (("gflop", "GFLOP", 1, "", 0), ("model_bytes", "model bytes", 1e-6, " MB", 1), ("simulated_bytes", "simulated bytes", 1e-6, " MB", 2), ("seconds", "time", 1e3, " ms", 3))
    return {"title": f"{LEFT}, {'forward and backward' if phase == 'both' else phase}".replace("_", " "), "x": "", "y": "share", "groups": ["standard", "FlashAttention", "FlashAttention-2"],
            "series": [(f"{name}, of {base[key] * factor:.3g}{unit}", colour, False, [(i, entry[key] / base[key]) for i, entry in enumerate(entries, 1)])
                       for key, name, factor, unit, colour in what]}


def middle_panel(fast, folder):
    program = os.path.join(folder, "flash_blocks")
    subprocess.run([options.cxx, "-std=c++20", "-O2", "-I", f"{ROOT}/include", "-I", f"{ROOT}/src",
                    f"{ROOT}/bench/papers/flash_blocks.cpp", f"{options.build}/libattn.a", "-lfmt", "-lpthread", "-ldl",
                    "-o", program], check=True)
    sizes = [64, 128, 192, 256, 384, 512]
    # d = 64 at n a multiple of every size, so that the last block is as large as the others.
    n = 1536 * max(1, LONG // 1536)
    timed = subprocess.run([program, str(n), str(options.heads), str(options.d), "7", *map(str, sizes)], check=True,
                           text=True, stdout=subprocess.PIPE).stdout
    of_size = {int(line.split()[0]): float(line.split()[1]) for line in timed.splitlines()}
    rows = []
    for size in sizes:
        descriptor = f"b1_n{n}_h{options.heads}_d{options.d}"
        row = [io(descriptor, "--algorithm", algorithm, "--block-q", q, "--block-k", k, "--fast-bytes", fast, "--measure")[0]
               for algorithm, q, k in (("flash_attention", 64, size), ("flash_attention_2", size, 64))]
        rows.append({"block": size, "model_bytes": row[0]["model"]["bytes"], "simulated_bytes": row[0]["measured"]["simulator"]["bytes"],
                     "flash_2_model_bytes": row[1]["model"]["bytes"], "compulsory_bytes": row[0]["compulsory"]["bytes"],
                     "seconds": of_size[size]})
    table(f"Middle: n {n}, {options.heads} heads, d {options.d}, forward, FlashAttention's order, one thread",
          ["B_c", "model MB", "simulated MB", "FA-2 model MB", "inputs, outputs MB", "ms"],
          [[r["block"]] + [r[k] * 1e-6 for k in ("model_bytes", "simulated_bytes", "flash_2_model_bytes", "compulsory_bytes")]
           + [r["seconds"] * 1e3] for r in rows])
    return n, rows


def right_panel(fast):
    rows = []
    n = LONG
    for share in (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.05):
        # A band of w keys to each side leaves 1 - (1 - w / n)^2 of the scores.
        width = round(n * (1 - (1 - share) ** 0.5))
        mask = "" if share == 1 else f"_window{width}x{width}"
        descriptor = f"b1_n{n}_h{options.heads}_d{options.d}{mask}"
        row = io(descriptor, "--algorithm", "block_sparse", "--block-q", 64, "--block-k", 64, "--fast-bytes", fast, "--measure")[0]
        rows.append({"descriptor": descriptor, "density": row["tiles_visited"] / row["tiles"], "model_bytes": row["model"]["bytes"],
                     "simulated_bytes": row["measured"]["simulator"]["bytes"]})
    times = seconds([(row["descriptor"], algorithm, "forward") for algorithm in ("block_sparse", "flash_attention_2") for row in rows])
    for row in rows:
        row |= {"seconds": times[row["descriptor"], "block_sparse", "forward"], "flash_2_seconds": times[row["descriptor"], "flash_attention_2", "forward"]}
    table(f"Right: n {n}, bands of keys, blocks of 64, forward, one thread",
          ["share of blocks", "model MB", "simulated MB", "block-sparse ms", "flash_attention_2 ms"],
          [[r["density"], r["model_bytes"] * 1e-6, r["simulated_bytes"] * 1e-6, r["seconds"] * 1e3, r["flash_2_seconds"] * 1e3]
           for r in rows])
    return n, rows


def fit(design, y):
    """Least squares: coefficients and their standard errors, and the share of variance explained."""
    design, y = numpy.asarray(design, float), numpy.asarray(y, float)
    coefficients, *_ = numpy.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ coefficients
    variance = residual @ residual / max(1, len(y) - design.shape[1])
    errors = numpy.sqrt(numpy.diag(numpy.linalg.inv(design.T @ design)) * variance)
    return coefficients, errors, 1 - residual @ residual / ((y - y.mean()) @ (y - y.mean()))


def theorem(number, phase):
    """Bytes of FlashAttention against N, d and M (theorem 2 forward, 5 backward); B_c = M / 8 d, so that LRU has room for the tile of S too."""
    points = []
    for d in (32, 64, 128):
        for m in (32 << 10, 64 << 10, 128 << 10):
            block = m // (8 * d * 4)
            rows = io([f"b1_n{n}_h1_d{d}" for n in (1024, 2048, 4096)], "--algorithm", "flash_attention", "--phase", phase, "--block-k", block,
                      "--block-q", min(block, d), "--fast-bytes", m, "--measure")
            for n, row in zip((1024, 2048, 4096), rows):
                points.append((n, d, m, row["model"]["bytes"], row["measured"]["simulator"]["bytes"]))
    design = [[1, numpy.log(n), numpy.log(d), numpy.log(m)] for n, d, m, *_ in points]
    result = {}
    for name, index in (("model", 3), ("simulated", 4)):
        exponents, errors, r2 = fit(design, [numpy.log(point[index]) for point in points])
        result[name] = {axis: {"exponent": exponents[i + 1], "standard_error": errors[i + 1], "theorem": expected}
                        for i, (axis, expected) in enumerate((("N", 2), ("d", 2), ("M", -1)))}
        result[name]["r2"] = r2
    table(f"Theorem {number}, {phase}: bytes ~ N^a d^b M^c (27 points; B_c = M / 8 d)", ["bytes", "a (2)", "b (2)", "c (-1)", "R^2"],
          [[name] + [f"{fitted[axis]['exponent']:.3f} +- {fitted[axis]['standard_error']:.3f}" for axis in "NdM"]
           + [f"{fitted['r2']:.4f}"] for name, fitted in result.items()])
    return result


def proposition_4(n, rows):
    """Bytes against the share of blocks s: linear, with slope near that of N^2 d^2 / M."""
    result = {}
    for name in ("model_bytes", "simulated_bytes"):
        (constant, slope), (_, error), r2 = fit([[1, row["density"]] for row in rows], [row[name] for row in rows])
        # T_c (3 N d + 4 N) elements with B_c = 64, all heads: the term of N^2 d^2 / M in algorithm 5.
        expected = options.heads * (n / 64) * (3 * n * options.d + 4 * n) * 4
        result[name] = {"constant": constant, "slope": slope, "standard_error": error, "expected_slope": expected, "r2": r2}
    table("Proposition 4: bytes = a + b s", ["bytes", "a MB", "b MB", "b of the theory, MB", "R^2"],
          [[name, f["constant"] * 1e-6, f"{f['slope'] * 1e-6:.1f} +- {f['standard_error'] * 1e-6:.1f}", f["expected_slope"] * 1e-6,
            f"{f['r2']:.4f}"] for name, f in result.items()])
    return result


def sentences(left, middle, right, theorems, proposition):
    """theorems: {number: what theorem() gave}."""
    said = [f"{'Left' if phase == 'both' else 'Its backward pass alone'}: FlashAttention does {flash['gflop'] / standard['gflop']:.2f} times the arithmetic of standard attention, moves "
            f"1/{standard['model_bytes'] / flash['model_bytes']:.1f} of the bytes (simulated: 1/{standard['simulated_bytes'] / flash['simulated_bytes']:.1f}) and takes "
            f"1/{standard['seconds'] / flash['seconds']:.2f} of the time"
            + (": the paper's 1.13, 1/9.2 and 1/5.7 on an A100, whose memory is slower beside its arithmetic." if phase == "both" else ".")
            for phase in ("both", "backward") for standard, flash, _ in [left[phase]]]
    first, last = middle[0], middle[-1]
    best = min(middle, key=lambda row: row["simulated_bytes"])
    time = last["seconds"] / first["seconds"]
    said.append(f"Middle: from B_c 64 to {best['block']} the simulated cache moves {first['simulated_bytes'] / best['simulated_bytes']:.1f} times fewer bytes, "
                f"as the model says ({first['model_bytes'] / best['model_bytes']:.1f})"
                + (f"; beyond, a block of K and V does not fit M any more and bytes are {last['simulated_bytes'] / last['model_bytes']:.1f} "
                   f"times the model's at {last['block']}" if best is not last else "")
                + f". Time changes by a factor of {time:.2f} from 64 to {last['block']}: "
                + ("it follows bytes." if time < 0.6 else "arithmetic binds at B_c 64 already, where the paper's GPU is bound by memory up to 256."))
    low, high = right[-1], right[0]
    said.append(f"Right: at {low['density']:.0%} of the blocks, bytes are {low['model_bytes'] / high['model_bytes']:.1%} and time "
                f"{low['seconds'] / high['seconds']:.1%} of the dense run: time falls in proportion to the blocks, as in the paper"
                + ("." if low["seconds"] / high["seconds"] < 1.5 * low["density"] + 0.03 else ", but for a constant part."))
    for number, name, fitted in ((number, *row) for number, theorem in theorems.items() for row in theorem.items()):
        off = max(abs(fitted[axis]["exponent"] - fitted[axis]["theorem"]) for axis in "NdM")
        exponents = ", ".join(f"{axis} {fitted[axis]['exponent']:.2f}" for axis in "NdM")
        said.append(f"Theorem {number}, {name}: exponents {exponents} where 2, 2, -1 are asymptotic; "
                    + ("they agree within 0.15." if off < 0.15 else "terms of lower order (N d once, l and m) still count at these sizes."))
    slope = proposition["model_bytes"]
    said.append(f"Proposition 4: bytes are linear in s (R^2 {slope['r2']:.4f}), slope {slope['slope'] / slope['expected_slope']:.2f} of "
                f"T_c (3 N d + 4 N); simulated {proposition['simulated_bytes']['slope'] / slope['expected_slope']:.2f} (R^2 "
                f"{proposition['simulated_bytes']['r2']:.4f}).")
    return said


run = attn("info")[1]
machine = run["machine"]
fast = options.fast_bytes or machine["l2_bytes"]
left = left_panel(fast)
with tempfile.TemporaryDirectory() as folder:
    middle_n, middle = middle_panel(min(fast, 256 << 10), folder)
right_n, right = right_panel(min(fast, 128 << 10))
fitted, fitted_backward = theorem(2, "forward"), theorem(5, "backward")
proposition = proposition_4(right_n, right)
said = sentences(left, middle, right, {2: fitted, 5: fitted_backward}, proposition)
print("\n" + "\n".join(said))

mega = lambda rows, x, y: [(row[x], row[y] * 1e-6) for row in rows]
relative = lambda rows, x, y, base: [(row[x], row[y] / rows[base][y]) for row in rows]
figure = svg.figure(f"FlashAttention, figure 2, on {machine['cpu'].strip()} (one thread, f32)", [
    left_picture("both", left["both"]), left_picture("backward", left["backward"]),
    {"title": f"block size, n {middle_n}", "x": "B_c", "y": "MB, ms", "log_x": True, "log_y": True, "series": [
        ("FlashAttention, model", 1, False, mega(middle, "block", "model_bytes")),
        ("FlashAttention, simulated cache", 2, False, mega(middle, "block", "simulated_bytes")),
        ("FlashAttention-2, model", 0, False, mega(middle, "block", "flash_2_model_bytes")),
        ("inputs and outputs once (lower bound)", 6, True, mega(middle, "block", "compulsory_bytes")),
        ("time, ms", 3, False, [(r["block"], r["seconds"] * 1e3) for r in middle])]},
    {"title": f"sparsity, n {right_n}", "x": "share of blocks", "y": "of dense", "series": [
        ("model bytes", 1, False, relative(right, "density", "model_bytes", 0)),
        ("simulated bytes", 2, False, relative(right, "density", "simulated_bytes", 0)),
        ("time, block-sparse", 3, False, relative(right, "density", "seconds", 0)),
        ("time, flash_attention_2", 0, False, relative(right, "density", "flash_2_seconds", 0)),
        ("proportional", 6, True, [(0.05, 0.05), (1, 1)])]}])
with open(options.out + ".svg", "w") as file:
    file.write(figure)
with open(options.out + ".json", "w") as file:
    json.dump({"command": " ".join(["python3", *sys.argv]), **run, "fast_bytes": fast, "left": {"problem": LEFT, **left},
               "middle": {"n": middle_n, "fast_bytes": min(fast, 256 << 10), "rows": middle},
               "right": {"n": right_n, "fast_bytes": min(fast, 128 << 10), "rows": right}, "theorem_2": fitted, "theorem_5": fitted_backward,
               "proposition_4": proposition, "sentences": said}, file, indent=1)
    file.write("\n")
print(f"\n{options.out}.svg and {options.out}.json written")
