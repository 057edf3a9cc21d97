"""The backward pass of head sizes above 256 on one GPU: backward_sm80 with the shape of the table and with two stages of
32 queries, backward_simt, and what PyTorch's SDPA has for such heads, in TFLOP/s of five products. Gradients are compared
with those of backward_simt before anything is timed. Needs PyTorch and Triton.

  python3 bench/gpu/wide_backward.py --library attn_c.so --out wide-backward.json

--library: bench/gpu/attn_c.cpp as a shared object."""
import argparse, sys

import torch
from torch.nn.attention import SDPBackend

from calls import Attention, Results, apart, median_ms, pytorch_backward, random_inputs

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--dims", default="320,512")
arguments.add_argument("--lengths", default="1024,4096,8192")
arguments.add_argument("--heads", type=int, default=16)
arguments.add_argument("--rep", type=int, default=20)
options = arguments.parse_args()
kKernels = {"ours": "", "two stages": "backward_sm80/m32_x2_q1_s2", "simt": "backward_simt"}
kPeers = {"math": SDPBackend.MATH, "efficient": SDPBackend.EFFICIENT_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
          "cudnn": SDPBackend.CUDNN_ATTENTION}
results, wrong = Results(options.out, options.commit), []


def cell(d, causal, n):
    given = random_inputs(1, n, options.heads, options.heads, d)
    ours = Attention(options.library, f"b1_n{n}_h{options.heads}_d{d}{'_causal' if causal else ''}_bf16", *given)
    calls, gradients = {}, {}
    for name, kernel in kKernels.items():
        calls[name], gradients[name] = ours.backward(kernel)
        calls[name]()
    row = dict(d=d, causal=causal, n=n, apart=0.0)
    for name in ("ours", "two stages"):
        difference = apart(gradients[name], gradients["simt"])
        row["apart"] = max(row["apart"], round(difference, 5))
        if not difference < 0.02:
            wrong.append((d, causal, n, name, difference))
    for name, backend in kPeers.items():
        try:
            calls[name] = pytorch_backward(backend, *given, causal)
            calls[name]()
        except RuntimeError:  # it takes no such heads, or their memory
            calls.pop(name, None)
    products = 5 * 2 * n * n * d * options.heads * (0.5 if causal else 1)
    for name, ms in median_ms(calls, options.rep).items():
        row[name] = round(products / ms * 1e-9, 1)
        row[name + " ms"] = round(ms, 3)
    results.add(**row)


for d in map(int, options.dims.split(",")):
    for n in map(int, options.lengths.split(",")):
        for causal in (False, True):
            cell(d, causal, n)
if wrong:
    sys.exit(f"wrong: {wrong}")
