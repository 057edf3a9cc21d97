"""Forward over scores that jump from block to block of keys, as while a model learns: random Q and K, so scaled that scores are
1 to 100 times as large, causal, beside cuDNN's. The first sequence is compared with fp64 before it is timed. Needs PyTorch.

  python3 bench/gpu/jumping_scores.py --library attn_c.so [--dtype f16]"""

import argparse, sys

import torch
from torch.nn.attention import SDPBackend

from calls import Attention, exact, median_ms, pytorch_forward, random_inputs

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--dtype", default="bf16", choices=("bf16", "f16"))
options = arguments.parse_args()
kMost = {"bf16": 0.05, "f16": 0.01}  # P is rounded to 16 bits, and a row may have one key alone

for batch, n, heads, dim in ((32, 1024, 12, 64), (4, 8192, 12, 64), (8, 4096, 8, 128)):
    for times in (1, 8, 16, 32, 100):
        q, k, v, _ = random_inputs(batch, n, heads, heads, dim, options.dtype)
        q, k = q * times**0.5, k * times**0.5
        run, (o, _) = Attention(
            options.library, f"b{batch}_n{n}_h{heads}_d{dim}_causal_{options.dtype}", q, k, v
        ).forward()
        run()
        error = (o[0].double() - exact(q[0], k[0], v[0])).abs().max().item()
        if not error < kMost[options.dtype]:
            sys.exit(f"n {n} d {dim} x{times}: O is off by {error:.3g}")
        cudnn = pytorch_forward(SDPBackend.CUDNN_ATTENTION, q, k, v, causal=True)
        ours, theirs = median_ms({"attn": run, "cudnn": cudnn}, 20).values()
        print(
            f"n {n} d {dim} x{times}: attn {ours * 1e3:.1f} us, cuDNN {theirs * 1e3:.1f}, {theirs / ours:.2f}; error {error:.1e}"
        )
