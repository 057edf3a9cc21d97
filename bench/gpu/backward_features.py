"""What features cost in the backward pass on one GPU: each beside plain attention of the same sizes in one run, dropout
also beside cuDNN's, and grouped queries beside FlashAttention-3. Gradients are compared with those of backward_sm80
before anything is timed. Needs PyTorch and Triton. Kernels are compiled side by side: about two minutes on 16 cores.

  python3 bench/gpu/backward_features.py --library attn_c.so --fa3 _C.so --out bench/results/h200-backward-features.json

--library, --fa3: as bench/gpu/backward_peers.py takes them."""
import argparse, concurrent.futures, math, os, sys

import torch
from torch.nn.attention import SDPBackend

from calls import Attention, FlashAttention3, Results, apart, median_ms, pytorch_backward, random_inputs

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--fa3", default="")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--dims", default="128,64")
arguments.add_argument("--parts", default="features,bias,groups,packed,sparse,long")
arguments.add_argument("--rep", type=int, default=20)
options = arguments.parse_args()
kLengths = (4096, 2048, 1024, 512, 3072, 1536, 2560, 1536)  # of packed sequences: 16384 tokens
results, wrong = Results(options.out, options.commit), []


def checked(problem):
    """run() of a problem (descriptor, inputs, then buffers and lengths as Attention takes them)."""
    ours = Attention(options.library, *problem)
    other, others = ours.backward("backward_sm80")
    other()
    run, gradients = ours.backward()
    run()
    difference = apart(gradients, others)
    if not difference < 0.02:
        wrong.append((problem[0], difference))
    return run


def all_checked(problems):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(problems, pool.map(checked, problems.values())))


def row(what, d, n, value, asked):
    """value: a ratio of times or of speeds, by `what`."""
    results.add(what=what, d=d, n=n, value=round(value, 3), asked=asked)


def features(d, h):
    given, base, n = random_inputs(4, 4096, h, h, d), f"b4_n4096_h{h}_d{d}", 4096
    slopes = torch.tensor([2.0 ** (-8 * (i + 1) / h) for i in range(h)], device="cuda")
    calls = all_checked({
        "plain": (f"{base}_bf16", *given), "causal": (f"{base}_causal_bf16", *given),
        "expression": (f"{base}_mask(key<=query)_bf16", *given),
        "softcap": (f"{base}_causal_softcap30_bf16", *given),
        "alibi": (f"{base}_causal_alibi_bf16", *given, [slopes]),
        "dropout": (f"{base}_dropout0.1_seed3_bf16", *given),
        "state": (f"{base}_dropout0.1_rngstate_bf16", *given, [torch.tensor([3, 0], device="cuda")])})
    calls["cudnn"] = pytorch_backward(SDPBackend.CUDNN_ATTENTION, *given, dropout=0.1)
    ms = median_ms(calls, options.rep)
    row("speed: causal as an expression, of causal", d, n, ms["causal"] / ms["expression"], 1.0)
    row("speed: softcap 30 under causal, of causal", d, n, ms["causal"] / ms["softcap"], 0.85)
    row("speed: ALiBi under causal, of causal", d, n, ms["causal"] / ms["alibi"], 0.85)
    row("speed: dropout 0.1, of plain", d, n, ms["plain"] / ms["dropout"], 0.65)
    row("speed: dropout with its state in memory, of dropout", d, n, ms["dropout"] / ms["state"], 1)
    row("speed: dropout 0.1, of cuDNN's", d, n, ms["cudnn"] / ms["dropout"], 1.5)


def bias(d, h):
    """A bias of all batch entries, without and with its gradient."""
    n, b = 4096, 4
    given, words = random_inputs(b, n, h, h, d), f"b{b}_n{n}_h{h}_d{d}"
    of_bias = f"{words}_bias1x{h}x{n}x{n}bf16_bf16"
    buffers = [torch.randn(1, h, n, n, device="cuda", dtype=torch.bfloat16)]
    calls = all_checked({"": (f"{words}_bf16", *given), "read": (of_bias, *given, buffers)})
    gradient = torch.full((1, h, n, n), math.nan, device="cuda")
    calls["trained"], gradients = Attention(options.library, of_bias, *given, buffers).backward(of_buffers=[gradient])
    calls["trained"]()
    expected = torch.zeros_like(gradient[:, :, :128])  # of some rows, in float32
    for i in range(b):
        q, k, v, d_o = (x[i].transpose(0, 1).float() for x in given)
        p = torch.softmax(q[:, :128] @ k.mT / d ** 0.5 + buffers[0][0, :, :128].float(), -1)
        d_p = d_o[:, :128] @ v.mT
        expected[0] += p * (d_p - (p * d_p).sum(-1, keepdim=True))
    difference = apart([gradient[:, :, :128]], [expected])
    if gradient.isnan().any() or not difference < 0.02:
        wrong.append((of_bias, difference))
    ms = median_ms(calls, options.rep)
    row("speed: bf16 bias, of plain", d, n, ms[""] / ms["read"], 0)
    row("speed: bf16 bias with its gradient, of plain", d, n, ms[""] / ms["trained"], 0)


def groups(d):
    for n in (4096, 8192):
        given, base = random_inputs(16384 // n, n, 32, 8, d), f"b{16384 // n}_n{n}_hq32_hk8_d{d}"
        ours = all_checked({mask: (f"{base}{mask}_bf16", *given) for mask in ("", "_causal")})
        for mask, run in ours.items():
            theirs, _ = FlashAttention3(options.fa3, *given[:3], mask != "", given[3]).backward()
            ms = median_ms({"ours": run, "fa3": theirs}, options.rep)
            row(f"speed: 32 query and 8 key heads{mask.replace('_', ', ')}, of FlashAttention-3", d, n,
                ms["fa3"] / ms["ours"], 1.0)


def packed(d, h):
    total, longest, count = sum(kLengths), max(kLengths), len(kLengths)
    pairs = sum(n * n for n in kLengths)
    dense = round((pairs / count) ** 0.5 / 64) * 64  # as many sequences of one length
    one, many = random_inputs(1, total, h, h, d), random_inputs(count, dense, h, h, d)
    for mask in ("", "_causal"):
        ms = median_ms(all_checked({
            "packed": (f"b{count}_n{longest}_h{h}_d{d}{mask}_packed_bf16", *one, [], kLengths),
            "dense": (f"b{count}_n{dense}_h{h}_d{d}{mask}_bf16", *many)}), options.rep)
        row(f"speed: packed, {count} lengths of {min(kLengths)} to {longest}{mask.replace('_', ', ')}, of dense", d,
            dense, pairs / ms["packed"] / (count * dense ** 2 / ms["dense"]), 0.92)


def sparse(d, h):
    n, window = 16384, 1024
    given, base = random_inputs(1, n, h, h, d), f"b1_n{n}_h{h}_d{d}"
    shares = {f"window{window}x0": ((window + 1) * n - (window + 1) * window / 2) / n ** 2}
    for every in (2, 4, 8):
        shares[f"mask((query/128+key/128)%{every}==0)"] = 1 / every
    ms = median_ms(all_checked({"": (f"{base}_bf16", *given),
                                **{mask: (f"{base}_{mask}_bf16", *given) for mask in shares}}), options.rep)
    for mask, share in shares.items():
        row(f"time: {mask}, of its share of plain", d, n, ms[mask] / ms[""] / share, 1.2)


def long(d):
    n, calls = 65536, all_checked({"": (f"b1_n65536_h1_d{d}_bf16", *random_inputs(1, 65536, 1, 1, d))})
    row("TFLOP/s: one head", d, n, 10 * n * n * d * 1e-9 / median_ms(calls, options.rep)[""], 0)


parts = options.parts.split(",")
for d in map(int, options.dims.split(",")):
    if "features" in parts:
        features(d, 2048 // d)
    if "bias" in parts:
        bias(d, 2048 // d)
    if "groups" in parts and d == 128 and options.fa3:
        groups(d)
    if "packed" in parts:
        packed(d, 2048 // d)
    if "sparse" in parts:
        sparse(d, 2048 // d)
    if "long" in parts and d == 64:
        long(d)
if wrong:
    print("WRONG:", *wrong, sep="\n")
    sys.exit(1)
