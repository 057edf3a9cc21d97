"""bench/papers/figure2_draw.py on rows whose sums and shares are known: both passes of its left panel, and the backward pass alone."""
import os, re, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "papers"))
import figure2_draw


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got}, not {wanted}")


def entry(algorithm, kernel, dtype="f32", **values):
    return {"problem": f"b1_n1024_h16_d64_{dtype}", "algorithm": algorithm, "kernel": kernel, "density": 1.0, "once": 1e9, **values}


def main():
    forward = [entry("standard", "forward_standard", gflop=2.0, model=10e9, plan=20e9, l2=20e9, ms=6.0),
               entry("flash_attention", "forward_flash_attention/n128", gflop=2.0, model=4e9, plan=4e9, l2=4e9, ms=3.0),
               entry("flash_attention_2", "forward_simt", model=3e9, plan=3e9, l2=3e9, ms=2.0)]
    backward = [entry("standard", "backward_standard", gflop=4.0, model=30e9, plan=60e9, l2=60e9, ms=14.0),
                entry("flash_attention", "backward_flash_attention/n16", model=24e9, plan=24e9, l2=24e9, ms=30.0),
                entry("flash_attention", "backward_flash_attention/n64", gflop=5.5, model=6e9, plan=6e9, l2=6e9, ms=12.0),
                entry("flash_attention_2", "backward_simt", model=5e9, l2=13e9, ms=8.0),
                entry("flash_attention", "backward_flash_attention/n64", "bf16", model=3e9, plan=3e9, l2=3e9, ms=11.0),
                entry("block_sparse", "backward_flash_attention/n64_sparse", model=8e9, l2=8e9, ms=8.0),
                {**entry("block_sparse", "backward_flash_attention/n64_sparse", model=2e9, l2=2e9, ms=2.0), "density": 0.25}]
    bars, blocks, sparse = figure2_draw.backward_panels(backward)
    expect("the bars", [bar["kernel"] for bar in bars], ["backward_standard", "backward_flash_attention/n64", "backward_simt"])
    expect("blocks", [(row["block"], row["dtype"]) for row in blocks], [(16, "f32"), (64, "f32"), (64, "bf16")])
    expect("densities", [row["density"] for row in sparse], [1.0, 0.25])
    both = [figure2_draw.sum_of(*pair) for pair in zip(forward, bars)]
    expect("a column that one pass lacks has no sum", [sorted(total) for total in both], [["gflop", "l2", "model", "ms", "plan"]] * 2 + [["l2", "model", "ms"]])
    panel = figure2_draw.left_panel("both", both)
    shares = {name.partition(",")[0]: [share for _, share in points] for name, _, _, points in panel["series"]}
    expect("shares of both passes", shares, {"GFLOP": [1.0, 1.25], "model bytes": [1.0, 0.25, 0.2], "plan": [1.0, 0.125], "L2": [1.0, 0.125, 0.2], "time": [1.0, 0.75, 0.5]})
    said = figure2_draw.backward_sentences(forward, backward)
    expect("of both passes", said[0].partition(";")[0],
           "Left, both passes: FlashAttention (B_c 64) moves 1/8.0 of standard attention's bytes (l2")
    expect("of the backward pass alone", figure2_draw.backward_sentences([], backward), said[1:])
    titles = lambda left: re.findall(r'font-size="14">([^<]*)<', figure2_draw.draw_backward(left, backward, "a GPU"))
    alone = ["b1 n1024 h16 d64 f32, backward", "block size", "sparsity, n 4096"]
    rows = [{"model": 1.0, "plan": 1.0, "l2": 1.0}, {"model": 1.0, "plan": 1.0}]
    expect("columns that were not counted", figure2_draw.fits("Theorem 2", rows, {"model": 1, "plan": 1}),
           "Theorem 2: exponents of model (2 problems), plan (2 problems); none of l2 (1 of 2 counted), dram (0 of 2 counted): 8 are needed, and counting "
           "ends with --seconds.")
    expect("panels without the forward pass", titles([]), alone)
    expect("panels", titles(forward), ["b1 n1024 h16 d64 f32, both passes", *alone])


if __name__ == "__main__":
    main()
