"""Figure 2 of the FlashAttention paper, theorem 2 and proposition 4 on a GPU, in float32: the three orders with the same arithmetic.

  python3 bench/papers/figure2_gpu.py --attn build/attn --library attn_c.so --out build/figure2_gpu --seconds 120

writes OUT.svg (figure2_draw.py) and OUT.json, prints tables and a sentence for each claim. Left: standard attention, FlashAttention (K, V outer) and
FlashAttention-2. Middle: bytes and time against B_c, in bf16 up to 512. Right: bytes and time against the share of blocks that a mask leaves. All of the forward pass; with --phase
backward the same of algorithms 3 and 4, the block-sparse form and FlashAttention-2, on the left of both passes as in the paper, and theorem 5's exponents. Bytes: model and
plan (`attn io --arch`) beside ncu's counters (io_gpu.py), "L2" being what passes between L2 and the multiprocessors, the paper's HBM accesses. Times:
medians of CUDA events, each result compared with fp64 first. Needs PyTorch and NumPy; without ncu the counters' columns stay empty."""
import argparse, json, math, statistics, sys, time

import numpy
import torch

import figure2_draw, io_gpu

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--library", default="attn_c.so")
arguments.add_argument("--attn", default="build/attn")
arguments.add_argument("--arch", default="sm_90a")
arguments.add_argument("--out", default="build/figure2_gpu")
arguments.add_argument("--seconds", type=float, default=120, help="after which nothing new is counted")
arguments.add_argument("--phase", default="forward", choices=("forward", "backward"))
arguments.add_argument("--batch", type=int, default=64, help="of the left and middle panels; a quarter in the right one")
options = arguments.parse_args()
BEGIN = time.monotonic()
HEADS, N, D = 16, 1024, 64
LEFT = f"b{options.batch}_n{N}_h{HEADS}_d{D}"
FLASH = io_gpu.FLASH


def of_block(keys, sparse=False):
    return f"{FLASH}/{'sparse_' if sparse else ''}n{keys}"


def row(descriptor, algorithm, kernel, **more):
    return {"problem": descriptor, "algorithm": algorithm, "kernel": kernel, **more}


def left_rows():
    return [row(f"{LEFT}_f32", "standard", "forward_standard"), row(f"{LEFT}_f32", "flash_attention", of_block(128)),
            row(f"{LEFT}_f32", "flash_attention_2", "forward_simt"), row(f"{LEFT}_bf16", "flash_attention_2", "")]


def middle_rows():
    return [row(f"{LEFT}_{dtype}", "flash_attention", of_block(keys), block=keys, dtype=dtype)
            for dtype, blocks in (("f32", (64, 128, 192, 256, 320)), ("bf16", (64, 128, 192, 256, 384, 512))) for keys in blocks]


def right_rows(n=4096):
    rows = []
    for share in (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.05):
        width = round(n * (1 - (1 - share) ** 0.5))  # a band leaves 1 - (1 - w / n)^2 of the scores
        mask = "" if share == 1 else f"_window{width}x{width}"
        rows.append(row(f"b{max(1, options.batch // 4)}_n{n}_h{HEADS}_d{D}{mask}_f32", "block_sparse", of_block(64, True), width=width if mask else None))
    return rows


def theorem_rows():
    return [row(f"b11_n{n}_h12_d{d}_f32", "flash_attention", of_block(keys), n=n, d=d, m=4 * d * keys * 4)
            for n in (1024, 4096) for d, blocks in ((32, (64, 128, 256)), (64, (64, 128, 256)), (128, (64, 128))) for keys in blocks]


def backward_rows():
    """Algorithm 3, algorithm 4 by B_c, the same where a band leaves some of the tiles, and FlashAttention-2."""
    name, rows = io_gpu.FLASH_BACKWARD, []
    for dtype, fast in (("f32", "backward_simt"), ("bf16", "backward_sm80"), ("bf16", "backward_sm90")):
        problem = f"{LEFT}_{dtype}"
        if fast != "backward_sm90":
            rows.append(row(problem, "standard", io_gpu.STANDARD_BACKWARD))
            rows += [row(problem, "flash_attention", f"{name}/n{keys}") for keys in (16, 32, 64)]
        rows.append(row(problem, "flash_attention_2", fast))
    bands = [row(f"b{max(1, options.batch // 4)}_n4096_h{HEADS}_d{D}_window{width}x{width}_f32", "block_sparse", f"{name}/n64_sparse", width=width)
             for width in (4095, 1024, 210)]
    return rows + bands


def backward_theorem_rows():
    return [row(f"b11_n{n}_h12_d{d}_f32", "flash_attention", f"{io_gpu.FLASH_BACKWARD}/n{keys}", n=n, d=d, m=4 * d * keys * 4)
            for n in (1024, 2048) for d in (32, 64, 128) for keys in (16, 32, 64)]


def check_backward(run, width):
    """Ends the program unless dQ, dK and dV of two heads are within twice the error of autograd in the same type, and some roundings."""
    n = run.q.shape[1]
    parts = [t[:1, :, :2].transpose(1, 2) for t in (run.q, run.k, run.v, run.d_o)]
    at = torch.arange(n, device="cuda")
    hidden = None if width is None else (at[:, None] - at[None, :]).abs() > width

    def gradients(low):
        q, k, v, d_o = (t.to(low).detach() for t in parts)
        leaves = [t.requires_grad_() for t in (q, k, v)]
        s = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        if hidden is not None:
            s = s.masked_fill(hidden, -math.inf)
        return torch.autograd.grad(s.softmax(-1) @ v, leaves, d_o)
    exact, low = gradients(torch.double), gradients(run.q.dtype)
    for name, of_run, right, standard in zip(("dq", "dk", "dv"), run.gradients, exact, low):
        allowed = 2 * (standard.double() - right).abs().max() + 4 * torch.finfo(run.q.dtype).eps * right.abs().max()
        error = (of_run[:1, :, :2].transpose(1, 2).double() - right).abs().max()
        if not bool(error <= allowed):
            sys.exit(f"{name} is wrong, so not timed: error {error:.3g}, allowed {allowed:.3g}")


def check(run, width):
    """Ends the program unless O of some rows of two heads is within twice the error of standard attention in the same type, and a rounding."""
    n = run.q.shape[1]
    rows = torch.cat([torch.tensor([0, n - 1]), torch.randperm(n)[:254]]).cuda()
    q, k, v, o = (t[:1, :, :2].transpose(1, 2) for t in (run.q[:, rows], run.k, run.v, run.o[:, rows]))
    distance = rows[:, None] - torch.arange(n, device="cuda")[None, :]

    def standard(q, k, v, low):
        s = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        if width is not None:
            s = s.masked_fill(distance.abs() > width, -math.inf)
        return s.softmax(-1).to(low) @ v
    exact = standard(q.double(), k.double(), v.double(), torch.double)
    allowed = 2 * (standard(q, k, v, q.dtype).double() - exact).abs().max() + torch.finfo(q.dtype).eps * exact.abs().max()
    error = (o.double() - exact).abs().max()
    if not bool(error <= allowed):
        sys.exit(f"wrong, so not timed: error {error:.3g}, allowed {allowed:.3g}")


def milliseconds(run):
    times = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[2:])


def time_rows(library, rows):
    made = {}
    for entry in rows:
        key = entry["problem"], entry["kernel"]
        if key not in made:
            backward = io_gpu.phase_of(entry["kernel"]) == "backward"
            run = io_gpu.Run(library, entry["problem"], "" if backward else entry["kernel"])
            run()
            check(run, entry.get("width"))
            if backward:
                run = io_gpu.Run(library, *key, forward=run)
                run()
                check_backward(run, entry.get("width"))
            made[key] = milliseconds(run)
            del run
        entry["ms"] = made[key]


def plan_rows(rows):
    for entry in rows:
        io = io_gpu.planned(options.attn, entry["problem"], entry["algorithm"], entry["kernel"], options.arch)
        entry |= {"model": io["model"]["bytes"], "once": io["compulsory"]["bytes"], "gflop": io["flops"] * 1e-9, "density": io["tiles_visited"] / io["tiles"]}
        if io["plan"] is not None:
            entry |= {"plan": io["plan"]["bytes"], "target": io["plan"]["target"].split()[0]}


def add_counters(rows, counted):
    for entry in rows:
        entry |= counted.get((entry["problem"], entry["kernel"]), {})


def table(title, header, rows):
    print(f"\n{title}")
    lines = [["-" if x is None else f"{x:.4g}" if isinstance(x, float) else str(x) for x in line] for line in [header] + rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        print("  " + "  ".join(text.rjust(width) for text, width in zip(line, widths)))


def giga(entry, *keys):
    return [entry[key] * 1e-9 if key in entry else None for key in keys]


BYTES = ("model", "plan", "l2", "dram", "shared")


def show(title, rows, name):
    table(title, [name, "kernel", *(f"{what + ' (lsu)' * (what == 'shared')} GB" for what in BYTES), "ms"],
          [[entry.get(name), entry["kernel"] or entry.get("target"), *giga(entry, *BYTES), entry.get("ms")] for entry in rows])


def fit(design, y):
    """Least squares: coefficients and their standard errors, and the share of variance explained."""
    design, y = numpy.asarray(design, float), numpy.asarray(y, float)
    coefficients, *_ = numpy.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ coefficients
    variance = residual @ residual / max(1, len(y) - design.shape[1])
    errors = numpy.sqrt(numpy.diag(numpy.linalg.inv(design.T @ design)) * variance)
    return coefficients, errors, 1 - residual @ residual / ((y - y.mean()) @ (y - y.mean()))


def theorem(title, rows):
    result = {}
    for what in ("model", "plan", "l2", "dram"):
        points = [entry for entry in rows if what in entry]
        if len(points) < figure2_draw.POINTS:
            continue
        exponents, errors, r2 = fit([[1, *(math.log(entry[axis]) for axis in "ndm")] for entry in points], [math.log(entry[what]) for entry in points])
        result[what] = {"points": len(points), "r2": r2, **{axis.upper(): {"exponent": exponents[i + 1], "standard_error": errors[i + 1], "theorem": expected}
                                                            for i, (axis, expected) in enumerate((("n", 2), ("d", 2), ("m", -1)))}}
    table(f"{title}: bytes ~ N^a d^b M^c, M = 4 d B_c elements", ["bytes", "points", "a (2)", "b (2)", "c (-1)", "R^2"],
          [[what, str(f["points"]), *(f"{f[axis]['exponent']:.3f} +- {f[axis]['standard_error']:.3f}" for axis in "NDM"), f"{f['r2']:.4f}"]
           for what, f in result.items()])
    return result


def proposition_4(rows):
    result = {}
    for what in (*BYTES, "ms"):
        points = [entry for entry in rows if what in entry]
        if len(points) < 4:
            continue
        dense = next(entry[what] for entry in points if entry["density"] == 1)
        (constant, slope), (_, error), r2 = fit([[1, entry["density"]] for entry in points], [entry[what] / dense for entry in points])
        result[what] = {"constant": constant, "slope": slope, "standard_error": error, "r2": r2}
    table("Proposition 4: share of the dense run = a + b s", ["what", "a", "b (1)", "R^2"],
          [[what, f"{f['constant']:.3f}", f"{f['slope']:.3f} +- {f['standard_error']:.3f}", f"{f['r2']:.4f}"] for what, f in result.items()])
    return result


def main():
    io_gpu.require_gpu()
    if options.phase == "backward":
        panels, timed, report = (left_rows()[:3], backward_rows(), backward_theorem_rows()), 2, report_backward
    else:
        panels, timed, report = (left_rows(), middle_rows(), right_rows(), theorem_rows()), 3, report_forward
    configurations = [(entry["problem"], entry["kernel"]) for rows in panels for entry in rows]
    unique = list(dict.fromkeys(configurations))
    io_gpu.precompile(options.attn, unique, options.arch)
    for rows in panels:
        plan_rows(rows)
    library = io_gpu.load(options.library)
    for rows in panels[:timed]:
        time_rows(library, rows)
    torch.cuda.empty_cache()
    report(*panels, "they are being read")  # what there is, should this program be ended
    counted, why = io_gpu.measure(unique, options.library, max(10.0, options.seconds - (time.monotonic() - BEGIN) - 15))
    for rows in panels:
        add_counters(rows, counted)
    report(*panels, why)


def save(content, why):
    with open(options.out + ".json", "w") as file:
        json.dump({"command": " ".join(["python3", *sys.argv]), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "no_counters": why,
                   **content, "seconds": time.monotonic() - BEGIN}, file, indent=1)
        file.write("\n")
    print(f"\n{options.out}.json written after {time.monotonic() - BEGIN:.0f} s", flush=True)


def report_forward(left, middle, right, rows, why):
    """Tables, sentences, OUT.svg and OUT.json; why there are no counters, or nothing."""
    if why:
        print(f"no counters: {why}")
    show(f"Left: {LEFT}, forward", left, "algorithm")
    for dtype in ("f32", "bf16"):
        show(f"Middle: FlashAttention's order, {dtype}", [entry for entry in middle if entry["dtype"] == dtype], "block")
    show("Right: bands of keys, B_c 64", right, "density")
    fitted, proposition = theorem("Theorem 2", rows), proposition_4(right)
    said = [*figure2_draw.sentences(left, middle, right, proposition), figure2_draw.fits("Theorem 2", rows, fitted)]
    print("\n" + "\n".join(said))
    with open(options.out + ".svg", "w") as file:
        file.write(figure2_draw.draw(left, middle, right, torch.cuda.get_device_name()))
    save({"left": left, "middle": middle, "right": right, "theorem_2": {"rows": rows, "fit": fitted}, "proposition_4": proposition, "sentences": said}, why)


def report_backward(left, rows, of_theorem, why):
    if why:
        print(f"no counters: {why}")
    show(f"Left: {LEFT}, forward", left, "algorithm")
    show("Backward", rows, "problem")
    fitted = theorem("Theorem 5", of_theorem)
    said = [*figure2_draw.backward_sentences(left, rows), figure2_draw.fits("Theorem 5", of_theorem, fitted)]
    print("\n" + "\n".join(said))
    with open(options.out + ".svg", "w") as file:
        file.write(figure2_draw.draw_backward(left, rows, torch.cuda.get_device_name()))
    save({"left": left, "rows": rows, "theorem_5": {"rows": of_theorem, "fit": fitted}, "sentences": said}, why)


if __name__ == "__main__":
    main()
