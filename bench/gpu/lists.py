"""Attention over what lists name, on one GPU. Blocks: random lists of blocks of keys, one for each head and block of queries,
forward and backward, beside dense attention of the same sizes in one run. Keys: random lists of single keys in decoding,
beside as many keys in a row and a copy of as many bytes. O is checked before it is timed. Needs PyTorch and Triton.

  python3 bench/gpu/lists.py --library attn_c.so --out bench/results/h200-lists.json

--library: bench/gpu/attn_c.cpp as a shared object. --kernels: of the backward pass over blocks, by name, beside the one that is
chosen, as backward_sm90/c2_n64_q4_o2_w128_g2_r24_x160; their gradients are compared with those of the chosen one. A table comes last."""
import argparse, math, sys

import torch

from calls import Attention, Results, apart, median_ms, random_inputs
from forward_errors import error_ratio

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--parts", default="blocks,keys", help="some of blocks and keys")
arguments.add_argument("--kernels", default="", help="with commas between them")
arguments.add_argument("--shapes", default="", help="of blocks, NxHxDxBLOCK_QxBLOCK_K with commas between them; default: four")
arguments.add_argument("--rep", type=int, default=10)
options = arguments.parse_args()
results, wrong = Results(options.out, options.commit), []


def accept(what, good):
    if not good:
        wrong.append(what)


def blocks(n, h, d, block_q, block_k, share=0.125):
    """TFLOP/s of the products that lists name, and of dense attention."""
    rows, columns = n // block_q, n // block_k
    q, k, v, d_o = random_inputs(1, n, h, h, d)
    words = f"mask(blocks[head,query/{block_q},key/{block_k}]!=0)_buffer(blocks:u8:{h}x{rows}x{columns})"
    named = (torch.rand(h, rows, columns, device="cuda").argsort(2) < int(share * columns)).to(torch.uint8)
    dense = Attention(options.library, f"b1_n{n}_h{h}_d{d}_bf16", q, k, v, d_o)
    lists = Attention(options.library, f"b1_n{n}_h{h}_d{d}_{words}_bf16", q, k, v, d_o, [named])
    forward, (o, _) = lists.forward()
    forward()
    some = slice(7 * block_q, 8 * block_q)
    hidden = ~named.bool()[0, 7].repeat_interleave(block_k)
    ratio = error_ratio(q[:, some, :1], k[:, :, :1], v[:, :, :1], o[:, some, :1], hidden)
    accept((n, d, block_q, block_k, ratio), ratio <= 2 and not o.isnan().any())
    backward, gradients = lists.backward()
    calls = {"forward": forward, "dense forward": dense.forward()[0], "backward": backward, "dense backward": dense.backward()[0]}
    calls["backward"]()
    accept((n, d, block_q, block_k, "gradients"), not any(g.isnan().any() for g in gradients))
    for kernel in filter(None, options.kernels.split(",")):
        named, found = lists.backward(kernel)
        named()
        difference = apart(found, gradients)
        accept((n, d, block_q, block_k, kernel, difference), difference < 0.01)
        if difference < 0.01:
            calls[f"backward {kernel}"] = named
    ms = median_ms(calls, options.rep)
    for pass_ in [name for name in calls if "dense" not in name]:
        factor = 4 if pass_ == "forward" else 10
        flops = factor * d * h * n * n
        useful, full = flops * share / ms[pass_] / 1e9, flops / ms[f"dense {pass_.split()[0]}"] / 1e9
        results.add(what=f"blocks: {pass_}, useful TFLOP/s, of dense", n=n, h=h, d=d, block_q=block_q, block_k=block_k,
                    share=share, ms=round(ms[pass_], 4), tflops=round(useful), dense=round(full), value=round(useful / full, 3))


def keys(b, hq, hk, d, d_v, n, entries=2048):
    """Bytes a second of the keys that lists name; V is the first columns of K where d_v is not d."""
    latent = d_v != d
    q = torch.randn(b, 1, hq, d, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(b, n, hk, d, device="cuda", dtype=torch.bfloat16)
    v = k[..., :d_v] if latent else torch.randn_like(k)
    lists = torch.rand(b, hk, 1, n, device="cuda").argsort(3)[..., :entries].to(torch.int32).contiguous()
    text = f"b{b}_sq1_sk%d_hq{hq}_hk{hk}_d{d}_dv{d_v}%s_bf16"
    call, (o, _) = Attention(options.library, text % (n, f"_list{entries}"), q, k, v, key_list=lists).forward()
    call()
    taken = lists[0, 0, 0].long()
    s = q[0, 0, : hq // hk].double() @ k[0, taken, 0].double().T / math.sqrt(d)
    expected = s.softmax(1) @ v[0, taken, 0].double()
    error = ((o[0, 0, : hq // hk].double() - expected).abs().max() / expected.abs().max()).item()
    accept((b, hq, hk, d, error), error < 0.01)
    size = b * hk * entries * 2 * (d if latent else d + d_v)
    source = torch.empty(size // 2, device="cuda", dtype=torch.uint8)
    first = k[:, :entries].contiguous()
    in_a_row = first[..., :d_v] if latent else v[:, :entries].contiguous()
    calls = {"lists": call, "copy": lambda to=torch.empty_like(source): to.copy_(source),
             "keys in a row": Attention(options.library, text % (entries, ""), q, first, in_a_row).forward()[0]}
    ms = median_ms(calls, options.rep)
    results.add(what="keys: GB/s of what lists name, of a copy", b=b, hq=hq, hk=hk, d=d, d_v=d_v, n=n, entries=entries,
                us=round(1e3 * ms["lists"], 1), us_in_a_row=round(1e3 * ms["keys in a row"], 1),
                gigabytes=round(size / ms["lists"] / 1e6), copy=round(size / ms["copy"] / 1e6),
                value=round(ms["copy"] / ms["lists"], 3))


parts = options.parts.split(",")
if "blocks" in parts:
    shapes = options.shapes or "32768x16x128x128x64,32768x16x128x128x128,32768x16x128x64x64,16384x16x64x128x64"
    for shape in shapes.split(","):
        blocks(*map(int, shape.split("x")))
if "keys" in parts:
    keys(128, 16, 1, 576, 512, 4096)
    keys(64, 128, 1, 576, 512, 4096)
    keys(32, 32, 8, 128, 128, 8192)
for row in results.rows:
    print(f"{row['value']:6.3f} {row['what']} " + " ".join(f"{key} {row[key]}" for key in ("n", "d", "block_q", "block_k", "ms", "tflops", "dense", "b", "us")
                                                          if key in row))
if wrong:
    print("WRONG:", *wrong, sep="\n")
    sys.exit(1)
