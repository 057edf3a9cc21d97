"""The picture and the sentences of figure2_gpu.py, from its rows or from what it wrote.

  python3 bench/papers/figure2_draw.py bench/results/h200-figure2.json --out build/figure2
  python3 bench/papers/figure2_draw.py bench/results/h200-figure2-backward.json --out build/figure2_backward

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


COLUMNS = (("model bytes", "model", 1e-9, "GB", 1), ("plan", "plan", 1e-9, "GB", 0), ("L2, counted", "l2", 1e-9, "GB", 2),
           ("DRAM, counted", "dram", 1e-9, "GB", 4), ("time", "ms", 1, "ms", 3))
LEFT_COLUMNS = (("GFLOP", "gflop", 1, "", 5), *COLUMNS)
LINES = [(f"{name}, ms" if what == "ms" else name.split()[0] if what == "model" else name, what, factor, colour) for name, what, factor, _, colour in COLUMNS]


def left_panel(title, bars):
    """Bars of standard attention, FlashAttention and FlashAttention-2, as shares of the first: columns that standard attention and another have."""
    shares = [(f"{name}, of {bars[0][what] * factor:.3g} {unit}".rstrip(), colour, False, [(i, entry[what] / bars[0][what]) for i, entry in enumerate(bars, 1) if what in entry])
              for name, what, factor, unit, colour in LEFT_COLUMNS if what in bars[0] and any(what in entry for entry in bars[1:])]
    return {"title": title.replace("_", " "), "x": "", "y": "share", "groups": ["standard", "FlashAttention", "FlashAttention-2"], "series": shares}


def middle_panel(rows):
    f32, bf16 = ([entry for entry in rows if entry["dtype"] == dtype] for dtype in ("f32", "bf16"))
    return {"title": "block size", "x": "B_c", "y": "GB, ms", "log_x": True, "log_y": True,
            "series": [(name, colour, False, series(f32, "block", what, factor)) for name, what, factor, colour in LINES]
            + [(f"{name}, bf16", colour, True, series(bf16, "block", what, factor)) for name, what, factor, colour in LINES if what in ("plan", "l2", "ms")]
            + [("inputs and outputs once (lower bound)", 6, True, series(f32, "block", "once", 1e-9))]}


def right_panel(rows):
    shares = [(name, colour, False, series(rows, "density", what, 1, rows[0].get(what))) for name, what, _, _, colour in COLUMNS if what in ("model", "l2", "ms")]
    return {"title": "sparsity, n 4096", "x": "share of blocks", "y": "of dense", "series": shares + [("proportional", 6, True, [(0.05, 0.05), (1, 1)])]}


def picture(title, panels):
    for panel in panels:
        panel["series"] = [line for line in panel["series"] if line[3]]
    return svg.figure(title, panels)


def draw(left, middle, right, gpu):
    return picture(f"FlashAttention, figure 2, on one {gpu} (FMA; f32 but where bf16 is said)",
                   [left_panel(left[0]["problem"], left[:3]), middle_panel(middle), right_panel(right)])


def sum_of(first, second):
    return {what: first[what] + second[what] for _, what, *_ in LEFT_COLUMNS if what in first and what in second}


def backward_panels(rows):
    """(bars, rows by block, rows by share of blocks) of the rows of the backward pass; the bars have FlashAttention's largest B_c."""
    f32 = [entry for entry in rows if entry["problem"].endswith("_f32")]
    by_algorithm = lambda rows, name: [entry for entry in rows if entry["algorithm"] == name]
    bars = [by_algorithm(f32, name)[-1] for name in ("standard", "flash_attention", "flash_attention_2")]
    blocks = [{**entry, "block": int(entry["kernel"].rpartition("/n")[2]), "dtype": entry["problem"].rsplit("_", 1)[1]} for entry in by_algorithm(rows, "flash_attention")]
    return bars, blocks, by_algorithm(f32, "block_sparse")


def draw_backward(left, rows, gpu):
    """left: the forward pass of the same problem by standard attention, FlashAttention and FlashAttention-2; empty: the backward pass alone."""
    bars, blocks, sparse = backward_panels(rows)
    both = [left_panel(f"{bars[0]['problem']}, both passes", [sum_of(*pair) for pair in zip(left, bars)])] if left else []
    return picture(f"FlashAttention, figure 2 of the backward pass, on one {gpu} (FMA; f32 but where bf16 is said)",
                   [*both, left_panel(f"{bars[0]['problem']}, backward", bars), middle_panel(blocks), right_panel(sparse)])


def backward_sentences(left, rows):
    bars, blocks, sparse = backward_panels(rows)
    said = []
    for name, (standard, flash, flash_2) in ([("Left, both passes", [sum_of(*pair) for pair in zip(left, bars)])] if left else []) + [("Left, backward", bars)]:
        what = "l2" if all("l2" in entry for entry in (standard, flash, flash_2)) else "model"
        said.append(f"{name}: FlashAttention (B_c {bars[1]['kernel'].rpartition('/n')[2]}) moves 1/{standard[what] / flash[what]:.1f} of standard attention's bytes ({what}; the model says 1/"
                    f"{standard['model'] / flash['model']:.1f}) and takes {flash['ms'] / standard['ms']:.2f} times as long, FlashAttention-2 1/"
                    f"{standard[what] / flash_2[what]:.1f} and {flash_2['ms'] / standard['ms']:.2f}; the paper, both passes in half precision on an A100: 1/9.2 of the bytes, 1/5.7 of the time.")
    f32 = [entry for entry in blocks if entry["dtype"] == "f32"]
    what = "l2" if all("l2" in entry for entry in f32) else "plan"
    said.append(f"Middle: from B_c {f32[0]['block']} to {f32[-1]['block']} bytes ({what}) fall by a factor of {f32[0][what] / f32[-1][what]:.2f} (model "
                f"{f32[0]['model'] / f32[-1]['model']:.2f}), time by {f32[0]['ms'] / f32[-1]['ms']:.2f}.")
    low, high = sparse[-1], sparse[0]
    said.append(f"Right: at {low['density']:.0%} of the blocks time is {low['ms'] / high['ms']:.1%} of the dense run's.")
    return said


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("result", help="what figure2_gpu.py wrote, of either pass")
    arguments.add_argument("--out", default="", help="OUT.svg")
    options = arguments.parse_args()
    with open(options.result) as file:
        result = json.load(file)
    if "rows" in result:
        left = result.get("left", [])
        said, theorem, number = backward_sentences(left, result["rows"]), result["theorem_5"], 5
        drawn = draw_backward(left, result["rows"], result["gpu"])
    else:
        panels = [result[name] for name in ("left", "middle", "right")]
        said, theorem, number = sentences(*panels, result["proposition_4"]), result["theorem_2"], 2
        drawn = draw(*panels, result["gpu"])
    print("\n".join([*said, fits(f"Theorem {number}", theorem["rows"], theorem["fit"])]))
    if options.out:
        with open(options.out + ".svg", "w") as file:
            file.write(drawn)


if __name__ == "__main__":
    main()
