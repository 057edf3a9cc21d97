"""What features cost in the backward pass on one GPU: each beside plain attention of the same sizes in one run, and
grouped queries beside FlashAttention-3. Gradients are compared with those of backward_sm80 before anything is timed.
Needs PyTorch and Triton.

  python3 bench/gpu/backward_features.py --library attn_c.so --fa3 libfa3.so --out bench/results/h200-backward-features.json

--library, --fa3: as bench/gpu/backward_peers.py takes them."""
import argparse, ctypes, datetime, json, math, random, statistics, sys, time

import torch
from triton.testing import do_bench

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--fa3", default="")
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--dims", default="128,64")
arguments.add_argument("--rep", type=int, default=20)
options = arguments.parse_args()
pointer, integer = ctypes.c_void_p, ctypes.c_int
library = ctypes.CDLL(options.library)
library.attn_plan.restype = library.attn_plan_backward.restype = pointer
wrong = []


def at(tensor):
    return pointer(tensor.data_ptr())


def planned(plan, descriptor, kernel=""):
    size = ctypes.c_longlong()
    handle = plan(descriptor.encode(), kernel.encode(), ctypes.byref(size))
    if not handle:
        sys.exit(1)
    return pointer(handle), torch.empty(max(1, size.value), dtype=torch.uint8, device="cuda"), size


def make(b, n, hq, hk, d):
    q, d_o = (torch.randn(b, n, hq, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(b, n, hk, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return q, k, v, d_o


def ours(descriptor, q, k, v, d_o, buffer=None):
    """Puts the backward pass into the stream. O and LSE come from our forward pass."""
    o, dq, dk, dv = (torch.full_like(t, math.nan) for t in (q, q, k, v))
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), math.nan, device="cuda")
    buffers = (pointer * 1)(at(buffer) if buffer is not None else None)
    stream = pointer(torch.cuda.current_stream().cuda_stream)
    forward, space, size = planned(library.attn_plan, descriptor)
    if library.attn_forward(forward, at(q), at(k), at(v), at(o), at(lse), buffers, at(space), size, stream):
        sys.exit(1)

    def bind(kernel):
        backward, workspace, bytes_ = planned(library.attn_plan_backward, descriptor, kernel)

        def run(keep=(q, k, v, d_o, o, lse, dq, dk, dv, workspace, buffer)):
            if library.attn_backward(backward, *map(at, keep[:3]), at(o), at(lse), at(d_o), at(dq), at(dk), at(dv),
                                     buffers, at(workspace), bytes_, stream):
                sys.exit(1)
        return run
    bind("backward_sm80")()
    other = [t.float() for t in (dq, dk, dv)]
    for t in (dq, dk, dv):
        t.fill_(math.nan)
    run = bind("")
    run()
    apart = max(((t.float() - x).norm() / x.norm()).item() for t, x in zip((dq, dk, dv), other))
    if not apart < 0.02:
        wrong.append((descriptor, apart))
    return run


def flash_attention_3(q, k, v, d_o, causal):
    library3 = ctypes.CDLL(options.fa3)
    library3.fa3_fwd.argtypes = [pointer] * 5 + [integer] * 7 + [ctypes.c_float, pointer, pointer]
    library3.fa3_bwd.argtypes = [pointer] * 17 + [integer] * 7 + [ctypes.c_float, integer, pointer]
    library3.fa3_bwd_sizes.argtypes = [integer] * 8 + [ctypes.POINTER(ctypes.c_longlong)]
    o, dq, dk, dv = (torch.full_like(t, math.nan) for t in (q, q, k, v))
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), math.nan, device="cuda")
    stream = pointer(torch.cuda.current_stream().cuda_stream)
    (b, n, hq, d), hk = q.shape, k.shape[2]
    sizes, semaphore = (b, n, n, hq, hk, d, int(causal)), torch.zeros(1, dtype=torch.int32, device="cuda")
    count = (ctypes.c_longlong * 8)()
    if library3.fa3_fwd(*map(at, (q, k, v, o, lse)), *sizes, d ** -0.5, at(semaphore), stream):
        sys.exit("fa3_fwd failed")
    if library3.fa3_bwd_sizes(*sizes, 0, count):
        sys.exit("fa3_bwd_sizes failed")
    spaces = [torch.empty(size, dtype=torch.uint8, device="cuda") if size else None for size in count]

    def run(keep=(q, k, v, o, lse, d_o, dq, dk, dv)):
        if library3.fa3_bwd(*map(at, keep), *(at(s) if s is not None else None for s in spaces), *sizes, d ** -0.5, 0,
                            stream):
            sys.exit("fa3_bwd failed")
    run()
    return run


def median_ms(calls):
    times = {name: [] for name in calls}
    for _ in range(3):
        for name in random.sample(list(calls), len(calls)):
            torch.cuda.synchronize()
            time.sleep(0.1)
            times[name].append(do_bench(calls[name], warmup=20, rep=options.rep, return_mode="median"))
    return {name: statistics.median(t) for name, t in times.items()}


result = dict(device=torch.cuda.get_device_name(), date=str(datetime.date.today()), commit=options.commit,
              command=" ".join(sys.argv), rows=[])


def row(name, d, n, value, asked):
    """value: a ratio of times or of speeds, by `name`."""
    result["rows"].append(dict(what=name, d=d, n=n, value=round(value, 3), asked=asked))
    print(result["rows"][-1], flush=True)
    if options.out:
        json.dump(result, open(options.out, "w"), indent=1)


for d in map(int, options.dims.split(",")):
    h = 2048 // d
    given = make(4, 4096, h, h, d)
    base = f"b4_n4096_h{h}_d{d}"
    slopes = torch.tensor([2.0 ** (-8 * (i + 1) / h) for i in range(h)], device="cuda")
    ms = median_ms({
        "plain": ours(f"{base}_bf16", *given), "causal": ours(f"{base}_causal_bf16", *given),
        "expression": ours(f"{base}_mask(key<=query)_bf16", *given),
        "softcap": ours(f"{base}_causal_softcap30_bf16", *given),
        "alibi": ours(f"{base}_causal_alibi_bf16", *given, slopes),
        "dropout": ours(f"{base}_dropout0.1_seed3_bf16", *given)})
    row("speed: causal as an expression, of causal", d, 4096, ms["causal"] / ms["expression"], 1.0)
    row("speed: softcap 30 under causal, of causal", d, 4096, ms["causal"] / ms["softcap"], 0.85)
    row("speed: ALiBi under causal, of causal", d, 4096, ms["causal"] / ms["alibi"], 0.85)
    row("speed: dropout 0.1, of plain", d, 4096, ms["plain"] / ms["dropout"], 0.65)
    given = make(1, 16384, h, h, d)
    base, n, w = f"b1_n16384_h{h}_d{d}", 16384, 1024
    masks = {"window 1024": ("window1024x0", ((w + 1) * n - (w + 1) * w / 2) / n ** 2)}
    for name, every in (("50 %", 2), ("25 %", 4), ("12.5 %", 8)):
        masks[f"blocks of 128, {name}"] = (f"mask((query/128+key/128)%{every}==0)", 1 / every)
    calls = {name: ours(f"{base}_{text}_bf16", *given) for name, (text, _) in masks.items()}
    ms = median_ms({"plain": ours(f"{base}_bf16", *given), **calls})
    for name, (_, share) in masks.items():
        row(f"time: {name}, of its share of plain", d, n, ms[name] / ms["plain"] / share, 1.2)
    if d == 128 and options.fa3:
        for n in (4096, 8192):
            given = make(16384 // n, n, 32, 8, d)
            for causal in (False, True):
                mask = "_causal" if causal else ""
                ms = median_ms({"ours": ours(f"b{16384 // n}_n{n}_hq32_hk8_d{d}{mask}_bf16", *given),
                                "fa3": flash_attention_3(*given, causal)})
                row(f"speed: 32 query and 8 key heads{mask.replace('_', ', ')}, of FlashAttention-3", d, n,
                    ms["fa3"] / ms["ours"], 1.0)
if wrong:
    print("WRONG:", *wrong, sep="\n")
    sys.exit(1)
