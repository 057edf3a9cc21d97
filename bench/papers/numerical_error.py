"""Table 3 of the FlashAttention-3 paper, its fp16 half: root mean squared errors against fp64 where Q, K and V have outliers.

  python3 bench/papers/numerical_error.py --attn build/attn

Entries are drawn from N(0, 1) + N(0, 100) Bernoulli(0.001), as there. "standard, fp16" rounds S and P to fp16, as attention written with matrix products
does; "O rounded" is fp64 rounded to fp16 once, which nothing with an fp16 result can be below. attn runs on this machine's CPU (--device cuda: on a
GPU). The paper does not say its sizes; --n and --d choose. Needs NumPy."""
import argparse, os, subprocess, tempfile

import numpy

PAPER = {"standard": 3.2e-4, "flash": 1.9e-4}

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--attn", default="build/attn")
arguments.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
arguments.add_argument("--algorithms", default="flash_attention_2,flash_attention,memory_efficient")
arguments.add_argument("--n", type=int, default=2048)
arguments.add_argument("--d", type=int, default=128)
arguments.add_argument("--heads", type=int, default=2)
arguments.add_argument("--seeds", type=int, default=3)
options = arguments.parse_args()


def draw(random):
    """[1, n, heads, d] with outliers, in fp16."""
    shape = (1, options.n, options.heads, options.d)
    return (random.standard_normal(shape) + 10 * random.standard_normal(shape) * (random.random(shape) < 0.001)).astype(numpy.float16)


def by_head(x, dtype):
    return x[0].transpose(1, 0, 2).astype(dtype)


def attention(q, k, v, low):
    """Of heads of fp16 numbers: in fp64, or (low) with products and softmax in fp32 whose results are fp16."""
    wide = numpy.float32 if low else numpy.float64
    store = (lambda x: x.astype(numpy.float16).astype(wide)) if low else (lambda x: x)
    q, k, v = (by_head(x, wide) for x in (q, k, v))
    s = store(q @ k.transpose(0, 2, 1) * wide(options.d ** -0.5))
    p = numpy.exp(s - s.max(-1, keepdims=True))
    return (store(p / p.sum(-1, keepdims=True)) @ v).astype(numpy.float16 if low else wide)


def by_attn(folder, algorithm):
    subprocess.run([options.attn, "run", *(word for name in "qkv" for word in (f"--{name}", f"{folder}/{name}.npy")), "--output", f"{folder}/o.npy",
                    "--device", options.device, "--algorithm", algorithm, "--seconds", "0"], check=True, stdout=subprocess.DEVNULL)
    return by_head(numpy.load(f"{folder}/o.npy"), numpy.float16)


squares = {}
with tempfile.TemporaryDirectory() as folder:
    for seed in range(options.seeds):
        random = numpy.random.default_rng(seed)
        q, k, v = inputs = [draw(random) for _ in range(3)]
        for name, tensor in zip("qkv", inputs):
            numpy.save(os.path.join(folder, f"{name}.npy"), tensor)
        exact = attention(q, k, v, False)
        results = {"standard, fp16": attention(q, k, v, True), "O rounded": exact.astype(numpy.float16)}
        results |= {f"attn {algorithm}": by_attn(folder, algorithm) for algorithm in options.algorithms.split(",")}
        for name, o in results.items():
            squares.setdefault(name, []).append(numpy.mean((o.astype(numpy.float64) - exact) ** 2))

rmse = {name: numpy.sqrt(numpy.mean(values)) for name, values in squares.items()}
print(f"n {options.n}, d {options.d}, {options.heads} heads, {options.seeds} seeds, fp16 in and out, {options.device}")
for name, error in rmse.items():
    print(f"  {name:28} RMSE {error:.2e}   {rmse['standard, fp16'] / error:.2f} times below standard")
print(f"  the paper (H100): standard {PAPER['standard']:.1e}, FlashAttention-2 and 3 {PAPER['flash']:.1e}, {PAPER['standard'] / PAPER['flash']:.1f} times below")
