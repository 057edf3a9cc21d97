#!/usr/bin/env python3
"""A plain Triton matrix product held to mma.sync, timed with CUDA events beside torch.mm.

  python3 bench/gpu/mma_sync_peers.py [--compile-only] [--seconds 0.15] [--budget 150]

DISABLE_MMA_V3=1 makes Triton take mma.sync on Hopper; each kernel's PTX is looked at, and one that
has wgmma, or no mma.sync, is not counted. Where no configuration passes that (a Triton that knows
the variable no more), the kernel is compiled for sm_80 and its PTX is given to the driver, which
makes code of it for the card.
"""
import argparse, ctypes, os, re, sys, tempfile, time

os.environ["DISABLE_MMA_V3"] = "1"
os.environ["DISABLE_MMA_V5"] = "1"
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="mma_sync_peers_")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget


@triton.jit
def product(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    # Row-major A (m x k), B (k x n), C; tiles in groups of GROUP rows; m, n, k are whole tiles.
    tile = tl.program_id(0)
    across = n // BN
    in_group = GROUP * across
    first = tile // in_group * GROUP
    high = min(m // BM - first, GROUP)
    row = first + tile % in_group % high
    column = tile % in_group // high
    rows = row * BM + tl.arange(0, BM)
    columns = column * BN + tl.arange(0, BN)
    steps = tl.arange(0, BK)
    pa = a + rows[:, None] * k + steps[None, :]
    pb = b + steps[:, None] * n + columns[None, :]
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, k, BK):
        sums = tl.dot(tl.load(pa), tl.load(pb), sums)
        pa += BK
        pb += BK * n
    tl.store(c + rows[:, None] * n + columns[None, :], sums.to(tl.bfloat16))


# BM, BN, BK, GROUP, warps, stages: what autotuning has for sm_80.
CONFIGS = [
    (128, 256, 32, 8, 8, 3), (128, 256, 32, 8, 8, 4), (128, 256, 64, 8, 8, 3), (256, 128, 32, 8, 8, 3),
    (256, 128, 64, 8, 8, 3), (128, 128, 32, 8, 4, 4), (128, 128, 32, 8, 4, 5), (128, 128, 64, 8, 4, 3),
    (128, 128, 32, 8, 8, 4), (128, 128, 64, 8, 8, 3), (128, 64, 32, 8, 4, 4), (64, 128, 32, 8, 4, 4),
]
SHAPES = [(4096, 4096, 4096), (8192, 8192, 8192), (2048, 4096, 4096), (1024, 3072, 768)]
SIGNATURE = {"a": "*bf16", "b": "*bf16", "c": "*bf16", "m": "i32", "n": "i32", "k": "i32"}


def compile_for(config, arch):
    from triton.compiler import ASTSource
    bm, bn, bk, group, warps, stages = config
    names = ["a", "b", "c", "m", "n", "k", "BM", "BN", "BK", "GROUP"]
    values = {"BM": bm, "BN": bn, "BK": bk, "GROUP": group}
    signature = {name: SIGNATURE.get(name, "constexpr") for name in names}
    constants = {(names.index(name),): value for name, value in values.items()}
    attributes = {(i,): [["tt.divisibility", 16]] for i in range(6)}
    source = ASTSource(fn=product, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32),
                          options={"num_warps": warps, "num_stages": stages})


def kind_of(ptx):
    return len(re.findall(r"\bmma\.sync", ptx)), len(re.findall(r"\bwgmma\.mma_async", ptx))


def held(compiled):
    sync, wgmma = kind_of(compiled.asm["ptx"])
    return sync > 0 and wgmma == 0


class Driver:
    """Launches without Triton's host code; PTX of sm_80 becomes code for the card here."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")

    def check(self, result, what):
        if result != 0:
            raise RuntimeError(f"{what}: CUDA error {result}")

    def load(self, compiled, from_ptx):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        text = compiled.asm["ptx"].encode() + b"\0" if from_ptx else compiled.asm["cubin"]
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), text), "cuModuleLoadData")
        name = compiled.metadata.name.encode()
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), module, name), "cuModuleGetFunction")
        shared = compiled.metadata.shared
        if shared > 48 << 10:
            self.check(self.cuda.cuFuncSetAttribute(function, 8, shared), "cuFuncSetAttribute")
        entry = re.search(r"\.entry\s+\w+\s*\((.*?)\)", compiled.asm["ptx"], re.S).group(1)
        return function, shared, entry.count(".param")

    def call(self, loaded, grid, threads, pointers, numbers, stream):
        function, shared, count = loaded
        values = [ctypes.c_void_p(p) for p in pointers] + [ctypes.c_int32(x) for x in numbers]
        values += [ctypes.c_void_p(0)] * (count - len(values))  # scratch that is not used
        arguments = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        self.check(self.cuda.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, shared,
                                            ctypes.c_void_p(stream), arguments, None), "cuLaunchKernel")


def median_us(torch, call, seconds):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call(); torch.cuda.synchronize()
    start.record(); call(); end.record(); torch.cuda.synchronize()
    each = max(start.elapsed_time(end), 1e-3)
    calls = max(1, min(200, int(5 / each)))
    # A graph of calls, so that the host's time between launches does not count.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    taken, begin = [], time.time()
    while len(taken) < 5 or time.time() - begin < seconds:
        time.sleep(0.01)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / calls)
        if len(taken) >= 40:
            break
    return sorted(taken)[len(taken) // 2] * 1e3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile-only", action="store_true", help="for sm_90 and sm_80, without a GPU")
    parser.add_argument("--seconds", type=float, default=0.15)
    parser.add_argument("--budget", type=float, default=150, help="seconds after which no shape is begun")
    options = parser.parse_args()
    begin = time.time()
    print(f"Triton {triton.__version__}, DISABLE_MMA_V3=1")
    if options.compile_only:
        for arch in (90, 80):
            for config in CONFIGS[:2] + CONFIGS[5:6]:
                compiled = compile_for(config, arch)
                print(arch, config, "mma.sync %d, wgmma %d" % kind_of(compiled.asm["ptx"]),
                      "shared", compiled.metadata.shared,
                      re.search(r"\.target\s+(\S+)", compiled.asm["ptx"]).group(1))
        return 0
    import torch
    capability = torch.cuda.get_device_capability()
    print(torch.cuda.get_device_name(), capability, "torch", torch.__version__)
    kernels, refused = {}, []
    arch = capability[0] * 10 + capability[1]
    for config in CONFIGS:
        try:
            compiled = compile_for(config, arch)
        except Exception as error:  # too much shared memory, say
            refused.append((config, str(error).splitlines()[0][:100]))
            continue
        if held(compiled):
            kernels[config] = compiled
        else:
            refused.append((config, "PTX has mma.sync %d, wgmma %d" % kind_of(compiled.asm["ptx"])))
    way = "DISABLE_MMA_V3"
    if not kernels:
        way = "PTX of sm_80 by the driver"
        for config in CONFIGS:
            try:
                compiled = compile_for(config, 80)
                if held(compiled):
                    kernels[config] = compiled
            except Exception as error:
                refused.append((config, str(error).splitlines()[0][:100]))
    for config, why in refused:
        print("not counted:", config, why)
    if not kernels:
        print("mma.sync could not be forced; no number")
        return 1
    print("way:", way, "-", len(kernels), "configurations, every PTX has mma.sync and no wgmma")
    driver, loaded = Driver(), {}
    torch.zeros(1, device="cuda")
    for config, compiled in kernels.items():
        try:
            loaded[config] = driver.load(compiled, way != "DISABLE_MMA_V3")
        except RuntimeError as error:
            print("not counted:", config, error)
    for m, n, k in SHAPES:
        if time.time() - begin > options.budget:
            print("time is up")
            break
        torch.manual_seed(1)
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        expected = a[:256].float() @ b.float()
        results = []
        for config, function in loaded.items():
            bm, bn, bk, _, warps, _ = config
            if m % bm or n % bn or k % bk:
                continue
            pointers, numbers = [x.data_ptr() for x in (a, b, c)], [m, n, k]
            call = lambda: driver.call(function, m // bm * (n // bn), 32 * warps, pointers, numbers,
                                       torch.cuda.current_stream().cuda_stream)
            c.fill_(float("nan"))
            try:
                call()
                torch.cuda.synchronize()
            except Exception as error:
                print("failed:", config, error)
                continue
            error = ((c[:256].float() - expected).norm() / expected.norm()).item()
            if not error < 1e-2 or c.isnan().any().item():
                print("WRONG:", config, error)
                continue
            results.append((median_us(torch, call, options.seconds), config))
        results.sort()
        cublas = median_us(torch, lambda: torch.mm(a, b, out=c), options.seconds)
        flops = 2e-6 * m * n * k
        print(f"{m}x{n}x{k}: cuBLAS {flops / cublas:.0f} TFLOP/s ({cublas:.1f} us)")
        for us, config in results[:4]:
            print(f"    triton mma.sync {flops / us:6.0f} TFLOP/s ({us:.1f} us) BM, BN, BK, GROUP, warps, stages = {config}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
