"""What a captured number costs a kernel beside the same number as a literal, on a CPU.

  python bench/python/scalars.py [--lengths 1024 4096] [--pairs 25] [--json FILE]

A number that a function captures is read by the kernels at each call; attn.literal compiles it into the formula. Each
ratio is the median over pairs of calls, in turns, of the processor time with the number captured over that of the
literal. One thread, f32, one sequence of 8 heads to n 1024, of one at 4096.
"""

import argparse
import statistics
import time

import measured
import numpy as np

import attn


def functions(number, integer):
    """By name: which option, and the function of a number and of an integer that it has there."""
    return {
        "window": ("mask", lambda s: (s.key <= s.position) & (s.position - s.key < integer)),
        "modulus": ("mask", lambda s: (s.position - s.key) % integer == 0),
        "factor": ("score", lambda s: s.score * number),
        "slope": ("score", lambda s: s.score - number * (s.position - s.key)),
    }


def ratio(captured, literal, pairs):
    calls = (captured, literal)
    if not np.array_equal(captured(), literal()):
        raise SystemExit("a captured number and the literal give other results")
    ratios, least = [], float("inf")
    for pair in range(pairs):
        seconds = [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):
            start = time.process_time()
            calls[which]()
            seconds[which] = time.process_time() - start
        ratios.append(seconds[0] / seconds[1])
        least = min(least, seconds[1])
    return statistics.median(ratios), 1e3 * least


def measure(n, d, pairs):
    random = np.random.default_rng(n + d)
    heads = min(8, max(1, 8 * 1024**2 // n**2))
    q, k, v = (random.standard_normal((1, n, heads, d), dtype=np.float32) for _ in range(3))
    captured = functions(0.37, n // 4 + 1)
    literals = functions(attn.literal(0.37), attn.literal(n // 4 + 1))
    result = {}
    for name, (option, function) in captured.items():
        of_literal = literals[name][1]
        found, milliseconds = ratio(
            lambda option=option, f=function: attn.attention(q, k, v, threads=1, **{option: f}),
            lambda option=option, f=of_literal: attn.attention(q, k, v, threads=1, **{option: f}),
            pairs,
        )
        result[name] = {"ratio": found, "literal_ms": milliseconds}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = {}
    print(f"{'':22}{'captured / literal':>20}{'literal, ms':>14}")
    for n in options.lengths:
        for d in (64, 128):
            results[f"n {n}, d {d}"] = rows = measure(n, d, options.pairs)
            for name, row in rows.items():
                label = f"n {n}, d {d}, {name}"
                print(f"{label:22}{row['ratio']:20.3f}{row['literal_ms']:14.2f}", flush=True)
    measured.save(options.json, results)


if __name__ == "__main__":
    main()
