"""Prompts, verified drafts and decoding in one call over a paged cache, beside the same sequences in a call for each kind:
one GPU, bf16, causal, CUDA graphs with K and V cold in L2. The sum of the parts is what one call is held to. O is compared
with fp64 before it is timed. Needs PyTorch.

  python3 bench/gpu/one_call.py --library attn_c.so --fa3-pages _C.so --out bench/results/h200-one-call.json

--library, --fa3-pages: as of decode_peers.py; FlashAttention-3 is given all sequences in one call."""

import argparse, math, sys

import torch

from calls import Attention, Results, captured, exact, flash_attention_3, graph_us

kPage = 64
kRows = [  # heads of Q, of K, head size, then kinds of sequences: how many, queries, keys
    (32, 8, 128, ((1, 2048, 8192), (63, 1, 4096))),
    (32, 8, 128, ((1, 512, 32768), (8, 1, 8192))),
    (32, 8, 128, ((2, 1024, 1024), (128, 1, 2048))),
    (32, 8, 128, ((1, 512, 4096), (16, 5, 8192), (32, 1, 4096))),
    (8, 1, 128, ((1, 2048, 8192), (32, 1, 16384))),
    (64, 8, 64, ((1, 1024, 4096), (32, 1, 8192))),
]
kColdBytes = 600_000_000  # as of decode_peers.py
arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--fa3-pages", default="")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--rounds", type=int, default=3)
options = arguments.parse_args()
results, wrong = Results(options.out, options.commit, dtype="bf16"), []
if options.fa3_pages:
    flash_attention_3(options.fa3_pages)


class Batch:
    """Sequences of `kinds` with Q, K and V of their own in each copy."""

    def __init__(self, heads_q, heads_k, d, kinds, copies):
        self.sizes = (heads_q, heads_k, d)
        self.queries = [n for count, n, _ in kinds for _ in range(count)]
        self.keys = [n for count, _, n in kinds for _ in range(count)]
        width = max(self.keys) // kPage
        used = [n // kPage for n in self.keys]
        order = torch.randperm(sum(used), device="cuda").to(torch.int32)
        self.table = torch.zeros(len(used), width, dtype=torch.int32, device="cuda")
        for row, pages in zip(self.table, order.split(used)):
            row[: len(pages)] = pages
        self.used = torch.tensor(self.keys, dtype=torch.int32, device="cuda")

        def rand(*shape):
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

        pool = (sum(used), kPage, heads_k, d)
        self.inputs = [
            (rand(1, sum(self.queries), heads_q, d), rand(*pool), rand(*pool)) for _ in range(copies)
        ]

    def ours(self):
        (heads_q, heads_k, d), most = self.sizes, max(self.queries)
        packed = "_packedq" if len(set(self.queries)) > 1 else ""
        self.descriptor = (
            f"b{len(self.queries)}_sq{most}_sk{max(self.keys)}_hq{heads_q}_hk{heads_k}_d{d}"
            f"{packed}_paged{kPage}_causal_bf16"
        )
        lengths = self.queries if packed else ()
        shape = (1 if packed else len(self.queries), -1, heads_q, d)
        runs = [
            Attention(
                *(options.library, self.descriptor, q.view(shape), k, v),
                lengths=lengths,
                pages=(self.table, self.used),
            ).forward()
            for q, k, v in self.inputs
        ]
        return lambda i: (runs[i][0](), runs[i][1][0].view(-1, heads_q, d))[1]

    def fa3(self):
        starts = torch.tensor([0, *self.queries], dtype=torch.int32, device="cuda").cumsum(0).to(torch.int32)
        (heads_q, heads_k, d), most = self.sizes, (max(self.queries), max(self.keys))
        sizes = (len(self.queries), *most, heads_q, heads_k, d, d, torch.bfloat16, self.used, starts)
        metadata = torch.ops.flash_attn_3.get_scheduler_metadata(
            *sizes, *[None] * 4, kPage, 0, True, -1, -1, 0, False, 0, None, 0
        )

        def call(i):
            q, k, v = self.inputs[i]
            given = (q[0], k, v, *[None] * 4, starts, *[None] * 3, self.used, *most, self.table)
            last = (d**-0.5, True, -1, -1, 0, 0.0, True, metadata, 0, None, 0)
            return torch.ops.flash_attn_3.fwd(*given, *[None] * 8, *last)[0]

        return call

    def error(self, o):
        """The largest of the first, the last and some other sequence, of the largest element."""
        q, k, v = self.inputs[0]
        found = 0.0
        for b in {0, len(self.keys) - 1, len(self.keys) // 2}:
            first, pages = sum(self.queries[:b]), self.table[b, : self.keys[b] // kPage].long()
            rows = slice(first, first + self.queries[b])
            x = exact(q[0, rows], *(t[pages].flatten(0, 1) for t in (k, v)))
            error = ((o[rows].double() - x).abs().max() / x.abs().max()).item()
            found = math.inf if math.isnan(error) else max(found, error)
        return found


def row(heads_q, heads_k, d, kinds):
    bytes_of_call = 4 * heads_k * d * sum(count * keys for count, _, keys in kinds)
    copies = max(2, min(16, -(-kColdBytes // bytes_of_call)))
    side = torch.cuda.Stream()
    calls, graphs = {}, {}
    with torch.cuda.stream(side):
        every = Batch(heads_q, heads_k, d, kinds, copies)
        calls["one"] = (every, every.ours())
        for kind in kinds:
            part = Batch(heads_q, heads_k, d, (kind,), copies)
            calls["x".join(map(str, kind))] = (part, part.ours())
        if options.fa3_pages:
            calls["fa3"] = (every, every.fa3())
        for name, (batch, call) in calls.items():
            error = batch.error(call(0))
            if not error < 0.02:
                wrong.append((batch.descriptor, name, error))
                continue
            graphs[name] = captured(call, copies, side)
    us = {name: t / copies for name, t in graph_us(graphs, options.rounds, 8).items()}
    parts = sum(t for name, t in us.items() if name not in ("one", "fa3"))
    ratio = round(parts / us["one"], 3) if "one" in us else None
    results.add(problem=every.descriptor, **{f"{k} us": round(t, 1) for k, t in us.items()}, parts_over_one=ratio)


for problem in kRows:
    row(*problem)
    torch.cuda.empty_cache()
if wrong:
    print("WRONG:", *wrong, sep="\n")
    sys.exit(1)
