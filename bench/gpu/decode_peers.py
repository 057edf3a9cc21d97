"""Decoding and latent attention beside their peers on one GPU, row by row in one process: cuDNN as PyTorch has it, and
FlashAttention-3 where its extension is given. Each call is a node of a CUDA graph of many, with K and V of its own, so that
none finds them in L2. O is compared with fp64 before it is timed. Needs PyTorch.

  python3 bench/gpu/decode_peers.py --library attn_c.so --fa3 fa3_fwd/_C.abi3.so --out bench/results/h100-decode-peers.json

--library: bench/gpu/attn_c.cpp as a shared object. --fa3: of the wheel fa3-fwd, which plans its splits itself.
--fa3-pages: flash_attn_3/_C.so of the wheel xformers, for rows of pages, which fa3-fwd does not take. --kernels:
attn's, by name; "" is its own choice, and "invariant" that with PlanOptions::batch_invariant.

Rows of pages have sequences of random lengths, the same in each run: up to the number of keys, or to less, as where a plan
is made for sequences that will grow. O is compared for the first, the shortest and the last; FlashAttention-3 has its
scheduler's metadata made ahead."""

import argparse, math, random, sys, time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from calls import Attention, Results, captured, exact, flash_attention_3, graph_us

kRows = [  # batch, heads of Q, of K, head size, keys, queries; at head size 576 V is K's first 512 columns
    (64, 128, 1, 576, 4096, 1),
    (1, 128, 1, 576, 32768, 1),
    (128, 16, 1, 576, 4096, 1),
    (8, 16, 1, 576, 8192, 1),
    (32, 128, 1, 576, 4096, 2),
    (8, 16, 8, 512, 8192, 1),
    (1, 16, 2, 512, 32768, 1),
    (1, 8, 1, 64, 8192, 1),
    (1, 8, 1, 64, 32768, 1),
    (1, 8, 1, 64, 131072, 1),
    (1, 8, 1, 64, 32768, 4),
    (1, 8, 1, 128, 8192, 1),
    (1, 8, 1, 128, 32768, 1),
    (1, 4, 1, 256, 32768, 1),
    (1, 32, 4, 64, 32768, 1),
    (1, 64, 8, 64, 32768, 1),
    (1, 32, 8, 128, 1024, 1),
    (1, 32, 8, 128, 4096, 1),
    (1, 32, 8, 128, 8192, 1),
    (1, 32, 8, 128, 32768, 1),
    (1, 32, 8, 128, 131072, 1),
    (1, 32, 8, 128, 32768, 4),
    (1, 16, 16, 128, 8192, 1),
    (4, 32, 8, 128, 4096, 1),
    (8, 8, 1, 64, 8192, 1),
    (8, 8, 1, 128, 4096, 1),
    (8, 32, 8, 128, 2048, 1),
    (8, 16, 8, 256, 8192, 1),
    (16, 8, 1, 128, 8192, 1),
    (16, 32, 8, 128, 1024, 1),
    (32, 64, 8, 64, 8192, 1),
    (64, 8, 1, 128, 8192, 1),
    (64, 32, 8, 128, 4096, 1),
    (64, 32, 32, 128, 2048, 1),
]
kPagedRows = [  # the same, rows of a page, and the longest sequence where it is not `keys` long
    (64, 32, 8, 128, 8192, 1, 64),
    (64, 32, 8, 128, 8192, 1, 16),
    (32, 32, 8, 128, 16384, 1, 16),
    (8, 8, 1, 128, 65536, 1, 64),
    (8, 8, 1, 128, 65536, 1, 64, 4096),
    (4, 32, 8, 128, 32768, 1, 16, 2048),
    (128, 32, 8, 128, 2048, 1, 16),
    (256, 64, 8, 128, 4096, 1, 64),
]
kLatent = 512
kColdBytes = 600_000_000  # of K and V of a graph, twelve times the L2 of an H100
arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--fa3", default="")
arguments.add_argument("--fa3-pages", default="")
arguments.add_argument("--kernels", default="", help="of attn, with commas between them")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--only", default="", help="rows whose descriptor has this text")
arguments.add_argument("--limit", type=float, default=1e9, help="seconds after which no row begins")
arguments.add_argument("--rounds", type=int, default=3)
options = arguments.parse_args()
random.seed(7)
results, wrong = Results(options.out, options.commit, dtype="bf16"), []
for library in filter(None, (options.fa3, options.fa3_pages)):
    flash_attention_3(library)


def fa3(q, k, v, causal, used=None, table=None, metadata=None):
    scale, of_v = q.shape[-1] ** -0.5, None
    if k.data_ptr() == v.data_ptr():
        of_v, q, k = q[..., :kLatent], q[..., kLatent:], k[..., kLatent:]
    fwd = torch.ops.fa3_fwd.fwd if table is None else torch.ops.flash_attn_3.fwd
    return fwd(
        *(q, k, v, None, None, of_v),
        *[None] * 5,
        used,
        *[None] * 2,
        table,
        *[None] * 8,
        scale,
        causal,
        -1,
        -1,
        0,
        0.0,
        True,
        metadata,
        0,
        None,
        0,
    )[0]


def cudnn(q, k, v, _):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        o = F.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=q.shape[2] != k.shape[2]
        )
    return o.transpose(1, 2)


def row(b, heads_q, heads_k, d, keys, queries, page=0, longest=0):
    latent, causal = d == 576, queries > 1
    lengths = [random.randint(queries, longest or keys) for _ in range(b)] if page else [keys] * b
    bytes_of_call = (2 if latent else 4) * heads_k * sum(lengths) * d
    copies = max(2, min(48, -(-kColdBytes // bytes_of_call)))
    of_k = (b * (keys // page), page, heads_k, d) if page else (b, keys, heads_k, d)
    shapes = [(b, queries, heads_q, d), of_k, of_k]
    inputs = [
        [torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes] for _ in range(copies)
    ]
    if latent:
        inputs = [(q, k, k[..., :kLatent]) for q, k, _ in inputs]
    descriptor = (
        f"b{b}_sq{queries}_sk{keys}_hq{heads_q}_hk{heads_k}_d{d}"
        f"{f'_dv{kLatent}' if latent else ''}{f'_paged{page}' if page else ''}{'_causal' if causal else ''}_bf16"
    )
    if options.only not in descriptor:
        return
    pages, rest = (), {}
    if page:
        used = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        table = torch.randperm(of_k[0], device="cuda").to(torch.int32).view(b, -1)
        pages, rest = (table, used), dict(used=used, table=table)
    side = torch.cuda.Stream()
    calls, graphs = {}, {}
    with torch.cuda.stream(side):  # which our calls are bound to
        for kernel in options.kernels.split(","):
            invariant = kernel == "invariant"
            ours = [
                Attention(options.library, descriptor, *x, pages=pages).forward(
                    "" if invariant else kernel, invariant
                )
                for x in inputs
            ]
            calls[kernel or "ours"] = lambda i, ours=ours: (ours[i][0](), ours[i][1][0])[1]
    if options.fa3_pages if page else options.fa3:
        if page:
            sizes = (b, queries, keys, heads_q, heads_k, d, d, torch.bfloat16, used)
            rest["metadata"] = torch.ops.flash_attn_3.get_scheduler_metadata(
                *sizes, *[None] * 5, page, 0, causal, -1, -1, 0, False, 0, None, 0
            )
        calls["fa3"] = lambda i: fa3(*inputs[i], causal, **rest)
    if not causal and not page:
        calls["cudnn"] = lambda i: cudnn(*inputs[i], causal)
    q, k, v = inputs[0]
    if page:
        k, v = ([x[table[i].long()].flatten(0, 1)[: lengths[i]] for i in range(b)] for x in (k, v))
    compared = {0, b - 1, lengths.index(min(lengths))}
    expected = {i: exact(q[i], k[i], v[i], causal) for i in compared}
    torch.cuda.synchronize()
    found = {"problem": descriptor}
    if page:
        found["longest"] = max(lengths)
        found["GB"] = round(bytes_of_call * 1e-9, 3)
    for name, call in calls.items():
        with torch.cuda.stream(side):
            try:
                o = call(0).double()
            except RuntimeError as refusal:
                print(f"{descriptor}: {name} refuses: {str(refusal).splitlines()[0][:120]}")
                continue
            side.synchronize()
            errors = [((o[i] - x).abs().max() / x.abs().max()).item() for i, x in expected.items()]
            error = max(errors, key=lambda x: math.inf if math.isnan(x) else x)
            if not error < 0.02:
                wrong.append((descriptor, name, error))
                continue
            graphs[name] = captured(call, copies, side)
    times = graph_us(graphs, options.rounds, 12)
    found.update({f"{name} us": round(t / copies, 2) for name, t in times.items()})
    results.add(**found)


begin = time.time()
for problem in kPagedRows + kRows:
    if time.time() - begin > options.limit:
        print("left out:", problem)
        continue
    row(*problem)
    torch.cuda.empty_cache()
if wrong:
    print("WRONG:", *wrong, sep="\n")
    sys.exit(1)
