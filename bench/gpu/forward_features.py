"""What features cost in the forward pass on one GPU: masks, scores, dropout and sparse blocks beside plain attention of the
same sizes in one run; and tile shapes beside those of the tables. O is checked against fp64 before it is timed. Needs
PyTorch and Triton.

  python3 bench/gpu/forward_features.py --library attn_c.so --out bench/results/h200-forward-features.json
  python3 bench/gpu/forward_features.py --library attn_c.so --parts shapes        # those of bench/gpu/shapes.txt

--library: bench/gpu/attn_c.cpp as a shared object."""
import argparse, math, re, sys
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend

from calls import Attention, Results, median_ms, pytorch_forward, random_inputs
from forward_errors import error_of_rows, error_ratio, kept_by_dropout

arguments = argparse.ArgumentParser()
arguments.add_argument("--library", required=True)
arguments.add_argument("--out", default="")
arguments.add_argument("--commit", default="")
arguments.add_argument("--dims", default="128,64")
arguments.add_argument("--parts", default="features,bias,sparse", help="some of features, bias, sparse and shapes")
arguments.add_argument("--shapes", default=Path(__file__).parent / "shapes.txt", help="of the part 'shapes'")
arguments.add_argument("--rep", type=int, default=30)
options = arguments.parse_args()
results, wrong = Results(options.out, options.commit), []


def accept(what, ratio):
    """Notes a result that is wrong: more than twice the error of standard attention, or not a number."""
    if not ratio <= 2:
        wrong.append((what, ratio))


def features(d, h):
    b, n = 4, 4096
    q, k, v, _ = random_inputs(b, n, h, h, d)
    slopes = torch.tensor([2.0 ** (-8 * (i + 1) / h) for i in range(h)], device="cuda")
    alibi = lambda s, distance: s - slopes[:2, None, None].to(s.dtype) * distance.abs().to(s.dtype)
    softcap = lambda s, distance: 30 * (s / 30).tanh()
    dropped = lambda rows: kept_by_dropout(rows, n, 0.1)
    # Words, what they do to the scores, and the share of plain speed that is asked.
    problems = {"": ({}, 1), "_causal": ({}, 1), "_softcap30": (dict(scored=softcap), 0.85),
                "_causal_softcap30": (dict(scored=softcap), 0.85), "_causal_alibi": (dict(scored=alibi), 0.85),
                "_window1024x0": (dict(left=1024), 0), "_dropout0.1": (dict(kept=dropped), 0.72),
                "_causal_dropout0.1": (dict(kept=dropped), 0.72)}
    calls = {}
    for words, (changes, _) in problems.items():
        buffers = [slopes] if "alibi" in words else []
        calls[words], (o, _) = Attention(options.library, f"b{b}_n{n}_h{h}_d{d}{words}_bf16", q, k, v, None, buffers).forward()
        calls[words]()
        accept((d, words), error_of_rows(q, k, v, o, "causal" in words, **changes))
    ms = median_ms(calls, options.rep)
    for words, (_, asked) in problems.items():
        plain = "_causal" if words.startswith("_causal") else ""
        results.add(what=f"speed: {words[1:] or 'full'}, of {plain[1:] or 'full'}", d=d, n=n, ms=round(ms[words], 4),
                    value=round(ms[plain] / ms[words], 3), asked=asked)


def bias(d, h):
    """A bias of all batch entries."""
    b, n = 4, 4096
    q, k, v, _ = random_inputs(b, n, h, h, d)
    added = torch.randn(1, h, n, n, device="cuda", dtype=torch.bfloat16)
    calls = {"": Attention(options.library, f"b{b}_n{n}_h{h}_d{d}_bf16", q, k, v).forward()[0]}
    calls["bias"], (o, _) = Attention(options.library, f"b{b}_n{n}_h{h}_d{d}_bias1x{h}x{n}x{n}bf16_bf16", q, k, v, None,
                                      [added]).forward()
    calls["bias"]()
    of_rows = lambda s, distance: s + added[:, :2, distance[:, 0]].to(s.dtype)
    accept((d, "bias"), error_of_rows(q, k, v, o, False, scored=of_rows))
    ms = median_ms(calls, options.rep)
    results.add(what="speed: bf16 bias, of full", d=d, n=n, ms=round(ms["bias"], 4), value=round(ms[""] / ms["bias"], 3), asked=0)


def sparse(d, h):
    """Random blocks of 128 x 128 at n 16384, as many in each row of blocks."""
    n, block = 16384, 128
    count = n // block
    q, k, v, _ = random_inputs(1, n, h, h, d)
    words = f"mask(blocks[query/{block},key/{block}]!=0)_buffer(blocks:u8:{count}x{count})"
    calls = {1: Attention(options.library, f"b1_n{n}_h{h}_d{d}_bf16", q, k, v).forward()[0]}
    for share in (0.5, 0.25, 0.125):
        blocks = (torch.rand(count, count, device="cuda").argsort(1) < int(share * count)).to(torch.uint8)
        calls[share], (o, _) = Attention(options.library, f"b1_n{n}_h{h}_d{d}_{words}_bf16", q, k, v, None, [blocks]).forward()
        calls[share]()
        rows = slice(7 * block, 8 * block)
        ratio = error_ratio(q[:, rows], k, v, o[:, rows], ~blocks.bool()[7].repeat_interleave(block))
        accept((d, share), math.nan if o.isnan().any() else ratio)
    ms = median_ms(calls, options.rep)
    for share in list(calls)[1:]:
        results.add(what=f"time: {share:.1%} of blocks, of that share of full", d=d, n=n, ms=round(ms[share], 4),
                    value=round(ms[share] / ms[1] / share, 3), asked=1.15)


def shapes():
    """Tile shapes beside that of the table and cuDNN: lines "descriptor shape shape ...", causal or full."""
    for line in Path(options.shapes).read_text().splitlines():
        descriptor, *named = line.split("#")[0].split() or [""]
        if not descriptor:
            continue
        b, n, h, d = (int(re.search(rf"(?:^|_){x}(\d+)(?:_|$)", descriptor).group(1)) for x in "bnhd")
        causal, (q, k, v, _) = "causal" in descriptor, random_inputs(b, n, h, h, d)
        problem = Attention(options.library, descriptor, q, k, v)
        calls = {"cudnn": pytorch_forward(SDPBackend.CUDNN_ATTENTION, q, k, v, causal)}
        for shape in ["", *named]:
            name = shape or "table"
            calls[name], (o, _) = problem.forward(f"forward_sm90/{shape}" if shape else "")
            calls[name]()
            accept((descriptor, name), error_of_rows(q, k, v, o, causal))
        ms = median_ms(calls, options.rep)
        results.add(what=f"speed of shapes, of cuDNN: {descriptor}",
                    **{name: round(ms["cudnn"] / ms[name], 3) for name in list(calls)[1:]})


parts = options.parts.split(",")
for d in map(int, options.dims.split(",")):
    if "features" in parts:
        features(d, 2048 // d)
    if "bias" in parts:
        bias(d, 2048 // d)
    if "sparse" in parts:
        sparse(d, 2048 // d)
if "shapes" in parts:
    shapes()
if wrong:
    print("WRONG:", *wrong, sep="\n")
    sys.exit(1)
