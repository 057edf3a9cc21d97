"""What a captured number costs a kernel beside the same number as a literal.

  python bench/python/scalars.py [--device cuda] [--lengths 1024 4096] [--pairs 25] [--json FILE]

A number that a function captures is read by the kernels at each call; attn.literal compiles it into the formula. Each
ratio is the median over pairs of calls, in turns, of the time with the number captured over that of the literal. On a
CPU processor time of one thread, f32, one sequence of 8 heads to n 1024, of one at 4096; on a GPU the time between two
events, bf16, 16 heads of 16384 tokens.
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


def processor_seconds(call):
    start = time.process_time()
    call()
    return time.process_time() - start


def gpu_seconds(call):
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(4):  # one launch is as short as what the host takes for it
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3 / 4


def inputs(n, d, device):
    if device == "cpu":
        random = np.random.default_rng(n + d)
        heads = min(8, max(1, 8 * 1024**2 // n**2))
        return [random.standard_normal((1, n, heads, d), dtype=np.float32) for _ in range(3)]
    import torch

    shape = (16384 // n, n, 16, d)
    return [torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3)]


def ratio(captured, literal, pairs, seconds_of):
    calls = (captured, literal)
    # Bits of a factor differ on a GPU, where a literal is multiplied into the exponent and a captured
    # number into the score; two roundings of bf16 are allowed there.
    one, other = captured(), literal()
    allowed = 0 if seconds_of is processor_seconds else 2**-7 * float(abs(other).max())
    if not float(abs(one - other).max()) <= allowed:
        raise SystemExit("a captured number and the literal give other results")
    ratios, least = [], float("inf")
    for pair in range(pairs):
        seconds = [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):
            seconds[which] = seconds_of(calls[which])
        ratios.append(seconds[0] / seconds[1])
        least = min(least, seconds[1])
    return statistics.median(ratios), 1e3 * least


def measure(n, d, pairs, device):
    q, k, v = inputs(n, d, device)
    threads = {"threads": 1} if device == "cpu" else {}
    seconds_of = processor_seconds if device == "cpu" else gpu_seconds
    captured = functions(0.37, n // 4 + 1)
    literals = functions(attn.literal(0.37), attn.literal(n // 4 + 1))
    result = {}
    for name, (option, function) in captured.items():
        of_literal = literals[name][1]
        found, milliseconds = ratio(
            lambda option=option, f=function: attn.attention(q, k, v, **threads, **{option: f}),
            lambda option=option, f=of_literal: attn.attention(q, k, v, **threads, **{option: f}),
            pairs,
            seconds_of,
        )
        result[name] = {"ratio": found, "literal_ms": milliseconds}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = {}
    print(f"{'':22}{'captured / literal':>20}{'literal, ms':>14}")
    for n in options.lengths:
        for d in (64, 128):
            results[f"n {n}, d {d}"] = rows = measure(n, d, options.pairs, options.device)
            for name, row in rows.items():
                label = f"n {n}, d {d}, {name}"
                print(f"{label:22}{row['ratio']:20.3f}{row['literal_ms']:14.2f}", flush=True)
    measured.save(options.json, results)


if __name__ == "__main__":
    main()
