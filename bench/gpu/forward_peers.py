"""Forward pass beside its peers on one GPU, cell by cell in one process: cuDNN and FlashAttention-2 as PyTorch
has them. Answers are checked against fp64 before they are timed. Needs PyTorch and Triton; builds attn_c.cpp.

  python3 bench/gpu/forward_peers.py --library build/libattn.a --out bench/results/h200-forward.json

--library: libattn.a built with -DCMAKE_POSITION_INDEPENDENT_CODE=ON, or attn_c as a shared object (.so)."""
import argparse, ctypes, datetime, functools, json, math, os, random, re, statistics, subprocess, sys, tempfile, time

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--lengths", default="512,1024,2048,4096,8192,16384")
arguments.add_argument("--dims", default="64,128,256")
arguments.add_argument("--rep", type=int, default=60)
arguments.add_argument("--parts", default="cells,expressions,sparse,portable")
arguments.add_argument("--shapes", default="bench/gpu/shapes.txt", help="of the part 'shapes'")
options = arguments.parse_args()
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
kTokens, kHidden = 16384, 2048


def load():
    if options.library.endswith(".so"):
        return ctypes.CDLL(options.library)
    out = os.path.join(tempfile.mkdtemp(), "attn_c.so")
    subprocess.check_call(["c++", "-O2", "-std=c++20", "-shared", "-fPIC", f"-I{root}/include",
                           f"{root}/bench/gpu/attn_c.cpp", options.library, "-lfmt", "-ldl", "-lpthread", "-o", out])
    return ctypes.CDLL(out)


torch.zeros(1, device="cuda")
library = load()
library.attn_plan.restype = ctypes.c_void_p
pointer = ctypes.c_void_p


class Attention:
    def __init__(self, descriptor, kernel=""):
        size = ctypes.c_longlong()
        self.handle = library.attn_plan(descriptor.encode(), kernel.encode(), ctypes.byref(size))
        if not self.handle:
            sys.exit(1)
        self.workspace = torch.empty(max(1, size.value), dtype=torch.uint8, device="cuda")
        self.size = size

    def __call__(self, q, k, v, o, lse, *buffers):
        at = lambda t: pointer(t.data_ptr())
        read = (pointer * max(1, len(buffers)))(*map(at, buffers))
        if library.attn_forward(pointer(self.handle), at(q), at(k), at(v), at(o), at(lse), read, at(self.workspace),
                                self.size, pointer(torch.cuda.current_stream().cuda_stream)):
            sys.exit(1)


def make(b, n, h, d):
    q, k, v = (torch.randn(b, n, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    o = torch.full((b, n, h, d), math.nan, device="cuda", dtype=torch.bfloat16)
    return q, k, v, o, torch.full((b, h, n), math.nan, device="cuda")


def error_ratio(q, k, v, o, hidden, scored=None, kept=None):
    """Largest error against fp64 over that of standard attention in bf16, on the first heads. scored(s): the scores as
    the problem changes them; kept: what P is multiplied by after the softmax."""
    q, k, v, o = (t[:1, :, :2].transpose(1, 2) for t in (q, k, v, o))
    def standard(q, k, v, low):
        s = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        if scored is not None:
            s = scored(s)
        if hidden is not None:
            s = s.masked_fill(hidden, -math.inf)
        p = s.softmax(-1)
        if kept is not None:
            p = p * kept.to(p.dtype)
        return (p.to(low) if low else p) @ v
    exact = standard(q.double(), k.double(), v.double(), None)
    base = standard(q, k, v, torch.bfloat16).double()
    return ((o.double() - exact).abs().max() / (base - exact).abs().max()).item()


def some_rows(n, count=1024):
    """Rows that are checked, the first and the last among them: all of n x n would not fit at n 16384."""
    return torch.cat([torch.tensor([0, n - 1]), torch.randperm(n)[:min(n, count) - 2]]).cuda()


def check(what, q, k, v, o, causal, scored=None, kept=None, left=None):
    """Ends the run unless O of some rows is right: NaN compares as wrong. scored(s, rows), kept(rows): as above."""
    n = q.shape[1]
    rows = some_rows(n)
    distance = rows[:, None] - torch.arange(n, device="cuda")[None, :]
    hidden = distance < 0 if causal else None
    if left is not None:
        hidden = (distance < 0) | (distance > left)
    ratio = error_ratio(q[:, rows], k, v, o[:, rows], hidden, scored and (lambda s: scored(s, distance)), kept and kept(rows))
    assert not o.isnan().any() and ratio <= 2, (what, n, ratio)
    return ratio


def kept_by_dropout(rows, n, probability, heads=2):
    """[1, heads, rows, n] of batch entry 0: 0 or 1 / (1 - p), bit for bit as docs/numerics.md has it, of seed and offset 0."""
    low = np.uint64(0xffffffff)
    j = np.arange(n, dtype=np.uint64)[None, None, :]
    i = rows.cpu().numpy().astype(np.uint64)[None, :, None]
    head = np.arange(heads, dtype=np.uint64)[:, None, None]
    x = [np.broadcast_to(w, (heads, len(rows), n)) for w in (j // 32 * 4 + j % 8 // 2, i, head, np.uint64(0) * j)]
    key = [np.uint64(0), np.uint64(0)]
    for _ in range(10):
        a, b = np.uint64(0xd2511f53) * x[0], np.uint64(0xcd9e8d57) * x[2]
        x = [(b >> np.uint64(32)) ^ x[1] ^ key[0], b & low, (a >> np.uint64(32)) ^ x[3] ^ key[1], a & low]
        key = [(key[0] + np.uint64(0x9e3779b9)) & low, (key[1] + np.uint64(0xbb67ae85)) & low]
    word = np.choose(np.broadcast_to((j // 8 % 4).astype(np.int64), x[0].shape), x)
    number = (word >> (np.uint64(16) * (j % 2))) & np.uint64(0xffff)
    threshold = round(65536 * probability)
    return torch.from_numpy((number >= threshold) / (1 - threshold / 65536))[None].cuda()


def median_ms(*functions):
    """Of each function, the median of three rounds. A card under load soon slows down to keep its power limit, so each is
    timed after a rest, and in another order in each round."""
    times = {f: [] for f in functions}
    for _ in range(3):
        for f in random.sample(functions, len(functions)):
            torch.cuda.synchronize()
            time.sleep(0.12)
            times[f].append(do_bench(f, warmup=25, rep=options.rep, return_mode="median"))
    return [statistics.median(times[f]) for f in functions]


def flops(b, n, h, d, causal):
    return 4 * b * h * n * n * d * (0.5 if causal else 1)


def of_peer(peer, q, k, v, causal):
    with sdpa_kernel(peer):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def cells(kernel, peer, name, dims, lengths):
    rows = []
    for d in dims:
        for causal in (False, True):
            for n in lengths:
                b, h = kTokens // n, kHidden // d
                attention = Attention(f"b{b}_n{n}_h{h}_d{d}{'_causal' if causal else ''}_bf16", kernel)
                q, k, v, o, lse = make(b, n, h, d)
                attention(q, k, v, o, lse)
                ratio = check((d, causal), q, k, v, o, causal)
                qt, kt, vt = (t.transpose(1, 2) for t in (q, k, v))
                count = flops(b, n, h, d, causal) * 1e-9
                ours, theirs = (count / ms for ms in median_ms(lambda: attention(q, k, v, o, lse),
                                                               lambda: of_peer(peer, qt, kt, vt, causal)))
                rows.append(dict(d=d, causal=causal, n=n, attn=round(ours), peer=round(theirs), ratio=round(ours / theirs, 3),
                                 error_ratio=round(ratio, 2)))
                print(f"d {d:3d} {'causal' if causal else 'full  '} n {n:5d}  attn {ours:4.0f}  {name} {theirs:4.0f}  "
                      f"{ours / theirs:.2f}  error {ratio:.2f}", flush=True)
    mean = statistics.geometric_mean(r["ratio"] for r in rows)
    print(f"geometric mean over {name}: {mean:.3f}; cells at 1.00 or more: {sum(r['ratio'] >= 1 for r in rows)} of {len(rows)}")
    return dict(peer=name, kernel=kernel or "automatic", geometric_mean=round(mean, 3), rows=rows)


def expressions():
    """The cost of masks and scores beside plain attention, b 4, n 4096, hidden 2048."""
    rows = []
    b, n = 4, 4096
    words = ("", "_causal", "_softcap30", "_causal_softcap30", "_causal_alibi", "_window1024x0", "_dropout0.1", "_causal_dropout0.1")
    for d in (64, 128):
        h = kHidden // d
        slopes = torch.tensor([2.0 ** (-8 * (i + 1) / h) for i in range(h)], device="cuda")
        q, k, v, o, lse = make(b, n, h, d)
        kernels = [Attention(f"b{b}_n{n}_h{h}_d{d}{word}_bf16") for word in words]
        calls = [functools.partial(kernel, q, k, v, o, lse, *([slopes] if "alibi" in word else []))
                 for word, kernel in zip(words, kernels)]
        for word, call in zip(words, calls):
            o.fill_(math.nan)
            call()
            alibi = lambda s, distance: s - slopes[:2, None, None].to(s.dtype) * distance.abs().to(s.dtype)
            softcap = lambda s, distance: 30 * (s / 30).tanh()
            check((d, word), q, k, v, o, "causal" in word,
                  scored=softcap if "softcap" in word else alibi if "alibi" in word else None,
                  kept=(lambda rows: kept_by_dropout(rows, n, 0.1)) if "dropout" in word else None,
                  left=1024 if "window" in word else None)
        times = dict(zip(words, median_ms(*calls)))
        for word, ms in times.items():
            share = times["_causal" if word.startswith("_causal") else ""] / ms
            rows.append(dict(d=d, problem=word[1:] or "full", ms=round(ms, 4), share_of_plain=round(share, 3)))
            print(f"d {d:3d} {word[1:] or 'full':20s} {ms * 1000:7.0f} us  {share:.2f} of plain speed", flush=True)
    return rows


def sparse():
    """Block-sparse attention at n 16384: random 128 x 128 blocks, the same number in each row of blocks."""
    rows = []
    b, n, block = 1, 16384, 128
    count = n // block
    for d in (64, 128):
        h = kHidden // d
        q, k, v, o, lse = make(b, n, h, d)
        dense = Attention(f"b{b}_n{n}_h{h}_d{d}_bf16")
        words = f"mask(blocks[query/{block},key/{block}]!=0)_buffer(blocks:u8:{count}x{count})"
        attention = Attention(f"b{b}_n{n}_h{h}_d{d}_{words}_bf16")
        for share in (0.5, 0.25, 0.125):
            blocks = (torch.rand(count, count, device="cuda").argsort(1) < int(share * count)).to(torch.uint8)
            attention(q, k, v, o, lse, blocks)
            rows_of_block = slice(7 * block, 8 * block)  # of head 0
            hidden = ~blocks.bool()[7].repeat_interleave(block)
            ratio = error_ratio(q[:, rows_of_block], k, v, o[:, rows_of_block], hidden)
            assert not o.isnan().any() and ratio <= 2, (d, share, ratio)
            whole, part = median_ms(lambda: dense(q, k, v, o, lse), lambda: attention(q, k, v, o, lse, blocks))
            rows.append(dict(d=d, share=share, ms=round(part, 4), dense_ms=round(whole, 4), of_share=round(part / whole / share, 3),
                             error_ratio=round(ratio, 2)))
            print(f"d {d:3d} {share:5.1%} of blocks {part * 1000:7.0f} us  {part / whole / share:.2f} of that share of dense", flush=True)
    return rows


def shapes():
    """Tile shapes beside that of the table (empty) and cuDNN: lines "descriptor shape shape ...", causal or full."""
    rows = []
    for line in open(options.shapes):
        words = line.split("#")[0].split()
        if not words:
            continue
        descriptor, named = words[0], ["", *words[1:]]
        b, n, h, d = (int(re.search(rf"(?:^|_){x}(\d+)(?:_|$)", descriptor).group(1)) for x in "bnhd")
        causal = "causal" in descriptor
        q, k, v, o, lse = make(b, n, h, d)
        kernels = {}
        for shape in named:
            kernels[shape] = Attention(descriptor, f"forward_sm90/{shape}" if shape else "")
            o.fill_(math.nan)
            kernels[shape](q, k, v, o, lse)
            check((descriptor, shape), q, k, v, o, causal)
        qt, kt, vt = (t.transpose(1, 2) for t in (q, k, v))
        calls = [functools.partial(kernels[shape], q, k, v, o, lse) for shape in named]
        theirs, *ours = median_ms(lambda: of_peer(SDPBackend.CUDNN_ATTENTION, qt, kt, vt, causal), *calls)
        ratios = {shape or "table": round(theirs / ms, 3) for shape, ms in zip(named, ours)}
        rows.append(dict(problem=descriptor, cudnn_ms=round(theirs, 4), ratios=ratios))
        print(f"{descriptor:32s} " + "  ".join(f"{shape} {ratio:.2f}" for shape, ratio in ratios.items()), flush=True)
    return rows


lengths = [int(x) for x in options.lengths.split(",")]
dims = [int(x) for x in options.dims.split(",")]
result = dict(date=str(datetime.date.today()), gpu=torch.cuda.get_device_name(), torch=torch.__version__, commit=options.commit,
              cudnn=torch.backends.cudnn.version(), command="python3 bench/gpu/forward_peers.py " + " ".join(
                  f"--{k} {getattr(options, k)}" for k in ("lengths", "dims", "rep", "parts")), unit="TFLOP/s")
parts = options.parts.split(",")
if "cells" in parts:
    result["cudnn_cells"] = cells("", SDPBackend.CUDNN_ATTENTION, "cuDNN", dims, lengths)
if "portable" in parts:
    result["portable_cells"] = cells("forward_sm80", SDPBackend.FLASH_ATTENTION, "FA2", dims, [n for n in lengths if n in (512, 2048, 8192)])
if "expressions" in parts:
    result["expressions"] = expressions()
if "shapes" in parts:
    result["shapes"] = shapes()
if "sparse" in parts:
    result["block_sparse"] = sparse()
if options.out:
    with open(options.out, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
