"""The picture and the sentences of figure2_gpu.py, from its rows or from what it wrote.

  python3 bench/papers/figure2_draw.py bench/results/h200-figure2.json --out build/figure2

prints what the result says and writes OUT.svg. Needs nothing but Python."""
import argparse, json

import svg

POINTS = 8  # problems that an exponent is fitted to at least


def fits(name, rows, fitted):
    """Which columns have exponents, and why others have none."""
    counted = {what: sum(what in entry for entry in rows) for what in ("model", "plan", "l2", "dram")}
    there = [f"{what} ({counted[what]} problems)" for what in counted if what in fitted]
    missing = [f"{what} ({counted[what]} of {len(rows)} counted)" for what in counted if what not in fitted]
    return (f"{name}: exponents of {', '.join(there) or 'nothing'}"
            + (f"; none of {', '.join(missing)}: {POINTS} are needed, and counting ends with --seconds." if missing else "."))


def sentences(left, middle, right, proposition):
    standard, flash, flash_2, _ = left
    what = "l2" if all("l2" in entry for entry in left) else "plan"
    said = [f"Left: FlashAttention moves 1/{standard[what] / flash[what]:.1f} of standard attention's bytes ({what}; the model says 1/"
            f"{standard['model'] / flash['model']:.1f}) and takes 1/{standard['ms'] / flash['ms']:.2f} of its time, FlashAttention-2 1/"
            f"{standard[what] / flash_2[what]:.1f} and 1/{standard['ms'] / flash_2['ms']:.2f}, all with the same FMA arithmetic; the paper, forward and "
            f"backward in half precision on an A100: 1/9.2 of the bytes, 1/5.7 of the time."]
    f32 = [entry for entry in middle if entry["dtype"] == "f32"]
    best, first = min(f32, key=lambda entry: entry["ms"]), f32[0]
    what = "l2" if all("l2" in entry for entry in f32) else "plan"
    said.append(f"Middle: from B_c 64 to {f32[-1]['block']} bytes ({what}) fall by a factor of {first[what] / f32[-1][what]:.2f} (model {first['model'] / f32[-1]['model']:.2f}); "
                f"time is lowest at B_c {best['block']}, {first['ms'] / best['ms']:.2f} times faster than at 64"
                + ("." if best is f32[-1] else f", and {f32[-1]['ms'] / best['ms']:.2f} times longer than that at {f32[-1]['block']}, where fewer blocks of threads fit a multiprocessor."))
    bf16 = [entry for entry in middle if entry["dtype"] == "bf16"]
    if bf16:
        best, first, last = min(bf16, key=lambda entry: entry["ms"]), bf16[0], bf16[-1]
        what = "l2" if all("l2" in entry for entry in bf16) else "plan"
        said.append(f"Middle, bf16: from B_c {first['block']} to {last['block']} bytes ({what}) fall by a factor of {first[what] / last[what]:.2f} (model "
                    f"{first['model'] / last['model']:.2f}); time is lowest at B_c {best['block']}, {first['ms'] / best['ms']:.2f} times faster than at "
                    f"{first['block']}, and {last['ms'] / best['ms']:.2f} times longer than that at {last['block']}.")
    low, high = right[-1], right[0]
    said.append(f"Right: at {low['density']:.0%} of the blocks time is {low['ms'] / high['ms']:.1%} of the dense run's"
                + (f" and bytes (L2) {low['l2'] / high['l2']:.1%}" if "l2" in low and "l2" in high else "")
                + f"; the fitted slope of time is {proposition['ms']['slope']:.2f} +- {proposition['ms']['standard_error']:.2f}, 1 being in proportion.")
    return said


def series(rows, x, y, factor=1.0, base=None):
    return [(entry[x], entry[y] * factor / (base or 1)) for entry in rows if y in entry]


def draw(left, middle, right, gpu):
    f32, bf16 = ([entry for entry in middle if entry["dtype"] == dtype] for dtype in ("f32", "bf16"))
    bars = left[:3]
    shares = [(f"{name}, of {bars[0][what] * factor:.3g} {unit}", colour, False, [(i + 1, entry[what] / bars[0][what]) for i, entry in enumerate(bars)])
              for name, what, factor, unit, colour in (("model bytes", "model", 1e-9, "GB", 1), ("plan", "plan", 1e-9, "GB", 0), ("L2, counted", "l2", 1e-9, "GB", 2),
                                                       ("DRAM, counted", "dram", 1e-9, "GB", 4), ("time", "ms", 1, "ms", 3)) if all(what in entry for entry in bars)]
    ratio = [(name, colour, False, series(right, "density", what, 1, right[0].get(what))) for name, what, colour in
             (("model bytes", "model", 1), ("L2, counted", "l2", 2), ("time", "ms", 3))]
    lines = [("model", "model", 1e-9, 1), ("plan", "plan", 1e-9, 0), ("L2, counted", "l2", 1e-9, 2), ("DRAM, counted", "dram", 1e-9, 4), ("time, ms", "ms", 1, 3)]
    panels = [
        {"title": bars[0]["problem"].replace("_", " "), "x": "", "y": "share",
         "groups": ["standard", "FlashAttention", "FlashAttention-2"], "series": shares},
        {"title": "block size", "x": "B_c", "y": "GB, ms", "log_x": True, "log_y": True,
         "series": [(name, colour, False, series(f32, "block", what, factor)) for name, what, factor, colour in lines]
         + [(f"{name}, bf16", colour, True, series(bf16, "block", what, factor)) for name, what, factor, colour in lines if what in ("plan", "l2", "ms")]
         + [("inputs and outputs once (lower bound)", 6, True, series(f32, "block", "once", 1e-9))]},
        {"title": "sparsity, n 4096", "x": "share of blocks", "y": "of dense", "series": ratio + [("proportional", 6, True, [(0.05, 0.05), (1, 1)])]}]
    for panel in panels:
        panel["series"] = [line for line in panel["series"] if line[3]]
    return svg.figure(f"FlashAttention, figure 2, on one {gpu} (FMA; f32 but where bf16 is said)", panels)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("result", help="what figure2_gpu.py wrote, of the forward pass")
    arguments.add_argument("--out", default="", help="OUT.svg")
    options = arguments.parse_args()
    with open(options.result) as file:
        result = json.load(file)
    panels = [result[name] for name in ("left", "middle", "right")]
    theorem = result["theorem_2"]
    print("\n".join([*sentences(*panels, result["proposition_4"]), fits("Theorem 2", theorem["rows"], theorem["fit"])]))
    drawn = draw(*panels, result["gpu"])
    if options.out:
        with open(options.out + ".svg", "w") as file:
            file.write(drawn)


if __name__ == "__main__":
    main()
