"""Caches of K and V in types of their own beside bf16 on one GPU: decoding, and prompts over such a cache. Each call is a
node of a CUDA graph of many, with K and V of its own, so that none finds them in L2. O is compared with fp64 of what the
cache holds before it is timed. Needs PyTorch.

  python3 bench/gpu/cache_types.py --library attn_c.so --fa3 fa3_fwd/_C.abi3.so --out bench/results/h200-cache-types.json

--library, --fa3: as of decode_peers.py; FlashAttention-3 is timed with an e4m3 cache and an e4m3 Q beside its own bf16."""

import argparse, math, sys

import torch

from calls import Attention, Results, captured, exact, graph_us

kTypes = ("bf16", "e4m3", "i8", "q8_0", "q4_0")
kRows = [  # batch, heads of Q, of K, keys, queries; heads of 128
    (64, 32, 8, 4096, 1),
    (16, 32, 8, 8192, 1),
    (1, 32, 8, 1024, 1),
    (1, 32, 8, 8192, 1),
    (1, 32, 8, 32768, 1),
    (1, 8, 1, 32768, 1),
    (64, 8, 1, 8192, 1),
    (4, 32, 8, 4096, 4096),
    (1, 32, 8, 32768, 512),
]
kDim = 128
kColdBytes = 600_000_000  # of K and V of a graph, twelve times the L2 of an H100
arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--fa3", default="")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--only", default="", help="rows whose descriptor has this text")
arguments.add_argument("--rounds", type=int, default=3)
options = arguments.parse_args()
results, wrong = Results(options.out, options.commit, dtype="bf16"), []
if options.fa3:
    torch.ops.load_library(options.fa3)


def cached(x, kind):
    """x as a cache of that type, the numbers that it holds, and its scale where it has one."""
    if kind == "bf16":
        return x, x, None
    if kind == "e4m3":
        scale = x.abs().max().float() / 448
        stored = (x.float() / scale).to(torch.float8_e4m3fn)
        return stored, stored.float() * scale, scale.view(1)
    if kind == "i8":
        scale = x.abs().max().float() / 127
        stored = (x.float() / scale).round().to(torch.int8)
        return stored, stored.float() * scale, scale.view(1)
    blocks = x.float().unflatten(-1, (-1, 32))
    if kind == "q8_0":
        scale = (blocks.abs().amax(-1, keepdim=True) / 127).half()
        codes = (blocks / scale.float()).round().clamp(-128, 127)
        stored = codes.to(torch.int8).view(torch.uint8)
    else:
        largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
        scale = (largest / -8).half()
        codes = (blocks / scale.float()).round().clamp(-8, 7)
        bits = (codes + 8).to(torch.uint8)
        stored = bits[..., :16] | bits[..., 16:] << 4
    bytes_of_blocks = torch.cat((scale.view(torch.uint8), stored), -1).flatten(-2)
    return bytes_of_blocks, (codes * scale.float()).flatten(-2), None


def fa3(q, k, v, scale):
    of_e4m3 = [None] * 3 if scale is None else [scale] * 3
    lengths = torch.full((q.shape[0],), k.shape[1], dtype=torch.int32, device="cuda")
    return lambda: torch.ops.fa3_fwd.fwd(
        *(q, k, v), *[None] * 8, lengths, *[None] * 7, *of_e4m3, q.shape[-1] ** -0.5, False, -1, -1, 0, 0.0, True,
        None, 0, None, 0
    )[0]


def ours(kind, descriptor, x):
    """A call with a cache of its own, its O, and what O is compared with, of the last sequence."""
    q, k, v = x
    (k, numbers_k, scale_k), (v, numbers_v, scale_v) = cached(k, kind), cached(v, kind)
    scales = () if scale_k is None else (scale_k, scale_v)
    run, (o, _) = Attention(options.library, descriptor, q, k, v, scales=scales).forward()
    return run, o, (q[-1, -16:], numbers_k[-1], numbers_v[-1])


def row(b, heads_q, heads_k, keys, queries):
    shape = f"b{b}_sq{queries}_sk{keys}_hq{heads_q}_hk{heads_k}_d{kDim}"
    if options.only not in shape:
        return
    copies = max(2, min(48, -(-kColdBytes // (2 * b * heads_k * keys * kDim)))) if queries == 1 else 4
    side, graphs = torch.cuda.Stream(), {}
    kept = []
    found = {"problem": shape}
    for kind in kTypes:
        descriptor = f"{shape}_bf16" if kind == "bf16" else f"{shape}_kv({kind})_bf16"
        calls = []
        with torch.cuda.stream(side):  # which our calls are bound to
            for i in range(copies):
                x = [torch.randn(s, device="cuda", dtype=torch.bfloat16)
                     for s in ((b, queries, heads_q, kDim), *[(b, keys, heads_k, kDim)] * 2)]
                calls.append(ours(kind, descriptor, x)[:2] if i else ours(kind, descriptor, x))
            run, o, of_o = calls[0]
            run()
            expected = exact(*of_o, causal=False)
            error = ((o[-1, -16:].double() - expected).abs().max() / expected.abs().max()).item()
            del expected, of_o
            side.synchronize()
            calls[0] = (run, o)
        if not error < 0.02:
            wrong.append((descriptor, error))
            continue
        found[f"{kind} error"] = float(f"{error:.2g}")
        graphs[kind] = captured(lambda i, calls=calls: calls[i][0](), copies, side)
        kept.append(calls)
    if options.fa3 and queries == 1:
        one = torch.ones(b, heads_k, device="cuda")
        for kind, dtype in (("fa3 bf16", torch.bfloat16), ("fa3 e4m3", torch.float8_e4m3fn)):
            with torch.cuda.stream(side):
                calls = [fa3(*[torch.randn(s, device="cuda", dtype=torch.bfloat16).to(dtype)
                               for s in ((b, 1, heads_q, kDim), *[(b, keys, heads_k, kDim)] * 2)],
                             one if "e4m3" in kind else None) for _ in range(copies)]
                calls[0]()
                side.synchronize()
            graphs[kind] = captured(lambda i, calls=calls: calls[i](), copies, side)
            kept.append(calls)
    times = graph_us(graphs, options.rounds, 6)
    found.update({f"{name} us": round(t / copies, 2) for name, t in times.items()})
    results.add(**found)


for problem in kRows:
    row(*problem)
    torch.cuda.empty_cache()
print("us, and bf16's time over it")
for found in results.rows:
    columns = [f"{found['problem']:36}"]
    for name in (*kTypes, "fa3 bf16", "fa3 e4m3"):
        if f"{name} us" in found:
            base = found.get("fa3 bf16 us" if name.startswith("fa3") else "bf16 us", math.nan)
            columns.append(f"{name} {found[f'{name} us']:8.2f} {base / found[f'{name} us']:5.2f}")
    print("  ".join(columns))
if wrong:
    print("WRONG:", *wrong, sep="\n")
    sys.exit(1)
