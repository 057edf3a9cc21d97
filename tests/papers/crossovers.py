"""bench/papers/speedups.py on numbers whose crossovers are known."""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "papers"))
import speedups


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got}, not {wanted}")


def line(times, **flags):
    return [{"problem": {"n": n, "d": 64, "mask": False, "dropout": False, "causal": False} | flags, "both": s, "forward": s, "backward": s} if s else
            {"problem": {"n": n, "d": 64, "mask": False, "dropout": False, "causal": False} | flags, "missing": "out of memory"} for n, s in times.items()]


def main():
    ours = {128: 1.0, 256: 2.0, 512: 4.0, 1024: 8.0}
    expect("faster from the middle on", speedups.crossover({128: 2.0, 256: 3.0, 512: 3.5, 1024: 7.0}, ours), 512)
    expect("faster, slower and faster again", speedups.crossover({128: 0.5, 256: 3.0, 512: 5.0, 1024: 7.0}, ours), 1024)
    expect("faster at short lengths alone", speedups.crossover({128: 0.5, 256: 1.0, 512: 5.0, 1024: 9.0}, ours), None)
    expect("as fast is not faster", speedups.crossover(ours, ours), None)
    expect("faster at each length of both", speedups.crossover({256: 1.0, 512: 2.0, 2048: 99.0}, ours), 256)
    parts = {"plain": {"attn": line(ours), "Local": line({128: 2.0, 256: 3.0, 512: 3.5, 1024: 0})}}
    told = speedups.report(parts)
    expect("of a part", told["crossovers"]["plain"]["both"], {"Local": 512})
    expect("its sentence", told["sentences"][0], "plain, both passes, n 128 to 1024: faster than attn: Local from n 512 on.")
    expect("the paper's table 20", told["crossovers"]["plain"]["the paper, both"]["Linformer"], 1024)
    heads = {"attn": line(ours) + line(ours, mask=True), "PyTorch eager": line({n: 3 * s for n, s in ours.items()}) + line({128: 5.0, 256: 0}, mask=True)}
    expect("curves", speedups.curves(heads), {64: [("over standard", 0, False, [(n, 3.0) for n in ours])]})


if __name__ == "__main__":
    main()
