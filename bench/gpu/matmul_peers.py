"""attn::matmul beside cuBLAS on one GPU: bf16 beside torch.mm, 8-bit floats beside torch._scaled_mm (cublasLt), and the three products of a layer
whose weight has a mask of blocks beside its dense ones. Each is compared with fp64 on some rows before it is timed. Needs PyTorch.

  python3 bench/gpu/matmul_peers.py --library attn_c.so --out bench/results/h200-matmul.json 1024x2304x768 64x12288x4096
  python3 bench/gpu/matmul_peers.py --library attn_c.so --dtype e4m3 4096x4096x4096
  python3 bench/gpu/matmul_peers.py --library attn_c.so --rungs ,persistent/128x144 1024x2304x768       # "" is what a call gets
  python3 bench/gpu/matmul_peers.py --library attn_c.so --layer 1024x4096 --densities 0.5,0.0625

--library: bench/gpu/attn_c.cpp as a shared object, or several with commas, NAME=FILE, which are timed beside each other. Shapes are m x n x k. Calls
are captured in a graph each of about a millisecond; rounds in random order, a rest before each; medians count."""
import argparse, ctypes, math, random, statistics, sys, time

import torch

from calls import Results, at, pointer, stream

SHAPES = """1024x1024x1024 2048x2048x2048 3072x3072x3072 4096x4096x4096 6144x6144x6144 8192x8192x8192 12288x12288x12288 16384x16384x16384
1024x768x768 1024x2304x768 1024x3072x768 1024x768x3072 8192x768x768 8192x2304x768 8192x3072x768 8192x768x3072
64x768x768 64x3072x3072 64x12288x4096 64x14336x8192 16x28672x8192 128x4096x4096 2048x6144x4096 2048x4096x4096 2048x28672x4096 2048x4096x14336
512x10240x8192 512x28672x8192 512x8192x28672"""
SHAPES_FLOAT8 = "1024x1024x1024 2048x2048x2048 3072x3072x3072 4096x4096x4096 8192x8192x8192 2048x6144x4096 2048x4096x14336 64x12288x4096"
long = ctypes.c_longlong
MASK_BLOCK = 256

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("shapes", nargs="*")
arguments.add_argument("--library", required=True)
arguments.add_argument("--dtype", default="bf16", choices=("bf16", "f16", "e4m3"))
arguments.add_argument("--orders", default="", help="of A, B and C, r or c; default: rrr, of 8-bit floats rcr")
arguments.add_argument("--rungs", default="", help="with commas, as in attn matmul --rung; empty: what a call gets")
arguments.add_argument("--layer", default="", help="tokens x width of a block-sparse layer, in place of shapes")
arguments.add_argument("--densities", default="0.5,0.25,0.125,0.0625")
arguments.add_argument("--rounds", type=int, default=9)
arguments.add_argument("--rest", type=float, default=0.03, help="seconds before each timing")
arguments.add_argument("--seconds", type=float, default=1e9, help="after which no further product is begun")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
options = arguments.parse_args()
BEGIN = time.monotonic()
FLOAT8 = options.dtype == "e4m3"
ELEMENT = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn}[options.dtype]
RESULT = torch.bfloat16 if FLOAT8 else ELEMENT


def room(rows, columns, dtype, order="r"):
    """A matrix of row- or column-major elements."""
    if order == "c":
        return room(columns, rows, dtype).t()
    return torch.empty(rows, columns, dtype=dtype, device="cuda")


def filled(rows, columns, order):
    matrix = room(rows, columns, ELEMENT, order)
    matrix.copy_(torch.randn(*matrix.shape, device=matrix.device, dtype=torch.bfloat16))
    return matrix


class Ours:
    """C = A B by a library's plan; mask: ("b" or "c", [blocks, blocks])."""

    def __init__(self, library, orders, a, b, c, rung="", mask=("", None), scales=None):
        self.library, self.tensors = ctypes.CDLL(library), (a, b, c, scales, mask[1])
        for entry in (self.library.attn_product, self.library.attn_product_text):
            entry.restype = pointer
        size = long()
        (m, k), n = a.shape, b.shape[1]
        self.plan = self.library.attn_product(options.dtype.encode(), orders.encode(), long(m), long(n), long(k), rung.encode(), mask[0].encode(),
                                              long(MASK_BLOCK), ctypes.byref(size))
        if not self.plan:
            sys.exit(1)
        self.c = c
        self.space = room(1, max(1, size.value), torch.uint8)
        strides = mask[1].stride() if mask[0] else (0, 0)
        self.given = (pointer(self.plan), at(a), at(b), at(c), at(scales), at(mask[1]), *map(long, strides), at(self.space), size)

    def text(self):
        return ctypes.cast(self.library.attn_product_text(pointer(self.plan)), ctypes.c_char_p).value.decode()

    def __call__(self):
        if self.library.attn_multiply(*self.given, stream()):
            sys.exit(f"{self.text()} failed")


def wrong(c, a, b, scale=1.0, there=None):
    """What is wrong with some rows of C, or nothing: by the bound of docs/matmul.md, of 8-bit floats by the 13 bits that tensor cores keep of a sum.
    there: which elements are to be compared."""
    rows = torch.randperm(a.shape[0], device=a.device)[:48]
    of_a, of_b = a[rows].double(), b.double()
    exact, size = of_a @ of_b * scale, of_a.abs() @ of_b.abs() * scale
    allowed = size * (2.0 ** -12 if FLOAT8 else 1.13 * 4 * math.sqrt(a.shape[1] + 2) * 2.0 ** -24) + exact.abs() * torch.finfo(RESULT).eps / 2 + 1e-30
    share = ((c[rows].double() - exact).abs() / allowed)
    if there is not None:
        share = share[there[rows]]
    worst = share.max().item() if share.numel() else 0.0
    return "" if worst <= 1 else f"{worst:.3g} of the allowed error"


def seconds_of(work):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


def microseconds(calls, m, n, k, densities={}):
    """Medians of {name: call}, of products of this shape: as many in a graph as take about a millisecond. densities: of calls that multiply less."""
    graphs, counts = {}, {}
    for name, call in calls.items():
        flops = 2.0 * m * n * k * densities.get(name, 1.0)
        guess = max(flops / 6e14, (m * k + k * n + m * n) / 2e12, 3e-6)
        counts[name] = max(1, min(300, round(1e-3 / guess)))
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for _ in range(counts[name]):
                call()
        graphs[name].replay()
    times = {name: [] for name in calls}
    for _ in range(options.rounds):
        for name in random.sample(list(calls), len(calls)):
            torch.cuda.synchronize()
            time.sleep(options.rest)
            times[name].append(seconds_of(graphs[name].replay) / counts[name] * 1e6)
    return {name: statistics.median(t) for name, t in times.items()}


def libraries():
    """{name: file}; of one without a name the name is "ours"."""
    return dict(part.split("=", 1) if "=" in part else ("ours", part) for part in options.library.split(","))


def time_shape(results, shape):
    m, n, k = map(int, shape.split("x"))
    orders = options.orders or ("rcr" if FLOAT8 else "rrr")
    a, b = filled(m, k, orders[0]), filled(k, n, orders[1])
    scales = room(1, 2, torch.float32)[0]
    scales.copy_(torch.tensor([0.5, 2.0]))
    ours, peers, texts = {}, {}, {}
    for name, file in libraries().items():
        for rung in options.rungs.split(","):
            c = room(m, n, RESULT, orders[2]).fill_(math.nan)
            call = Ours(file, orders, a, b, c, rung, scales=scales if FLOAT8 else None)
            call()
            torch.cuda.synchronize()
            why = wrong(c, a, b)
            if why:
                sys.exit(f"{shape} by {call.text()} ({name}) is wrong, so not timed: {why}")
            ours[f"{name}:{rung}" if rung else name] = call
            texts[f"{name}:{rung}" if rung else name] = call.text().split(" by ", 1)[1]
    c = room(m, n, RESULT, "r")
    if FLOAT8:
        one, two = (room(1, 1, torch.float32).fill_(value) for value in scales.tolist())
        for name, fast in (("cublasLt", False), ("cublasLt, fast sums", True)):
            peers[name] = lambda fast=fast: torch._scaled_mm(a, b, one, two, out_dtype=RESULT, use_fast_accum=fast, out=c)
    else:
        peers["cublas"] = lambda: torch.mm(a, b, out=c)
    us = microseconds({**ours, **peers}, m, n, k)
    first = next(iter(peers))
    row = dict(shape=shape, dtype=options.dtype, orders=orders, us={name: round(t, 2) for name, t in us.items()}, texts=texts,
               tflops=round(2e-6 * m * n * k / us[next(iter(ours))], 1), ratio={name: round(us[first] / us[name], 3) for name in us if name != first})
    results.rows.append(row)
    peer = "  ".join(f"{name} {us[name]:.2f}" for name in peers)
    for name in ours:
        print(f"{shape:20} {name:28} {us[name]:9.2f} us  {row['ratio'][name]:.3f} of {first} ({peer})  {texts[name][:60]}", flush=True)


def layer_products(tokens, width):
    """Of Y = X W, dX = dZ W^T and dW = X^T dZ: name, orders of A, B, C, and the matrix that the mask of W is of, seen as it lies or transposed."""
    x, dz, w = (filled(rows, width, "r") for rows in (tokens, tokens, width))
    return (("Y = X W", "rrr", x, w, "b", False), ("dX = dZ W^T", "rcr", dz, w.t(), "b", True), ("dW = X^T dZ", "crr", x.t(), dz, "c", False))


def time_layer(results):
    """Times of products with a mask, as multiples of the density's share of dense: by all libraries and rungs with the same masks."""
    tokens, width = map(int, options.layer.split("x"))
    blocks = -(-width // MASK_BLOCK)
    densities = [*map(float, options.densities.split(","))]
    for what, orders, a, b, masked, transposed in layer_products(tokens, width):
        calls, density_of = {}, {}

        def add(name, file, rung, density, mask):
            given = (masked, mask.t() if transposed else mask) if density < 1 else ("", None)
            c = room(a.shape[0], b.shape[1], RESULT).fill_(math.nan)
            call = Ours(file, orders, a, b, c, rung, given)
            there = (mask.t() if transposed else mask).repeat_interleave(MASK_BLOCK, 0).repeat_interleave(MASK_BLOCK, 1).bool()
            there = there[:b.shape[0] if masked == "b" else a.shape[0], :b.shape[1]]
            call()
            torch.cuda.synchronize()
            why = wrong(c, a, b * there if masked == "b" else b, 1.0, there if masked == "c" else None)
            if why:
                sys.exit(f"{what} at density {density} by {call.text()} ({name}) is wrong, so not timed: {why}")
            calls[name, density], density_of[name, density] = call, density

        for density in (1.0, *densities):
            mask = room(blocks, blocks, torch.uint8)
            mask.copy_((torch.randperm(blocks * blocks) < round(density * blocks * blocks)).reshape(blocks, blocks))
            for name, file in libraries().items():
                for rung in options.rungs.split(",") if density < 1 else ("",):
                    add(f"{name}:{rung}" if rung else name, file, rung, density, mask)
        c = room(a.shape[0], b.shape[1], RESULT)
        us = microseconds({**calls, ("cublas", 1.0): lambda: torch.mm(a, b, out=c)}, a.shape[0], b.shape[1], a.shape[1], density_of)
        dense = us[next(iter(libraries())), 1.0]
        for name in dict.fromkeys(name for name, density in calls if density < 1):
            shares = {density: round(us[name, density] / (dense * density), 3) for density in densities}
            results.rows.append(dict(layer=options.layer, product=what, name=name, us={str(d): round(us[name, d], 2) for d in densities},
                                     dense_us=round(dense, 2), of_its_share=shares))
            print(f"{options.layer} {what:12} {name:24} dense {dense:.1f} us (cublas {us['cublas', 1.0]:.1f}); of its share: "
                  + ", ".join(f"{d:g}: {share:.3f} ({us[name, d]:.1f} us)" for d, share in shares.items()), flush=True)


def main():
    results = Results(options.out, options.commit)
    if options.layer:
        time_layer(results)
    else:
        for shape in options.shapes or (SHAPES_FLOAT8 if FLOAT8 else SHAPES).split():
            if time.monotonic() - BEGIN > options.seconds:
                print(f"{shape} and what follows: not begun after {options.seconds:g} s")
                break
            time_shape(results, shape)
        for name in results.rows[0]["ratio"]:
            ratios = [row["ratio"][name] for row in results.rows]
            print(f"geometric mean of {name}: {statistics.geometric_mean(ratios):.3f} of {len(ratios)} products; at 1.00 or more: {sum(r >= 1 for r in ratios)}")
    results.save()


main()
