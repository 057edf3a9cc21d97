"""attn.merge and attn.quantize on one GPU beside a copy of as many bytes, after a comparison with the CPU's results. Needs
PyTorch and attn's Python package.

  python3 bench/gpu/merge_quantize.py"""

import sys

import attn
import torch

from calls import median_ms

DIM = 128


def timed(name, call, count):
    half = torch.empty(count // 2, dtype=torch.uint8, device="cuda")
    to = torch.empty_like(half)
    ours, copy = median_ms({"ours": call, "copy": lambda: to.copy_(half)}, 20).values()
    print(
        f"{name:34} {ours * 1e3:8.1f} us {count / ours / 1e9:6.2f} TB/s, copy {copy * 1e3:8.1f} us: {copy / ours:.2f}"
    )


def merged(parts, batch, tokens, dtype, heads=32):
    name = f"merge {parts} b{batch} n{tokens} {str(dtype)[6:]}"
    pairs = [
        (
            torch.randn(batch, tokens, heads, DIM, device="cuda").to(dtype),
            torch.randn(batch, heads, tokens, device="cuda"),
        )
        for _ in range(parts)
    ]
    out, lse = attn.merge(pairs)
    want, want_lse = attn.merge([(o.cpu(), x.cpu()) for o, x in pairs])
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(out.cpu(), want, rtol=rounding, atol=1e-30)
    torch.testing.assert_close(lse.cpu(), want_lse, rtol=2e-7, atol=1e-7)
    timed(name, lambda: attn.merge(pairs), (parts + 1) * (out.nbytes + lse.nbytes))


def quantized(batch, tokens, kind, scales="row", rotate=None, heads=16):
    name = f"{kind} b{batch} n{tokens}" + (f" {scales}" if kind == "e4m3" else "")
    name += ", rotated" if rotate else ""
    x = torch.randn(batch, tokens, heads, DIM, device="cuda").bfloat16()
    out = torch.empty(
        batch, tokens, heads, DIM if kind == "e4m3" else 34 * DIM // 32, dtype=torch.uint8
    )
    shape = {"tensor": (1,), "head": (batch, heads)}.get(scales, (batch, tokens, heads))
    scale = torch.empty(shape) if kind == "e4m3" else None
    options = {"scales": scales, "rotate": rotate} if scale is not None else {"rotate": rotate}
    there, scale_there = torch.zeros_like(out).cuda(), None if scale is None else scale.cuda()
    attn.quantize(x, kind, there, scale_there, **options)
    attn.quantize(x.cpu(), kind, out, scale, **options)
    differing = (there.cpu() != out).float().mean().item()
    if differing > (1e-3 if rotate else 0):
        sys.exit(f"{name}: {differing} of the bytes are not those of the CPU")
    passes = 1 if scales == "row" else 2
    timed(
        name,
        lambda: attn.quantize(x, kind, there, scale_there, **options),
        passes * x.nbytes + there.nbytes + (0 if scale is None else scale.nbytes),
    )


for batch, tokens in ((64, 1), (4, 4096)):
    merged(2, batch, tokens, torch.bfloat16)
    merged(8, batch, tokens, torch.float32)
for batch, tokens in ((64, 1), (4, 4096)):
    for scales in ("row", "block", "head", "tensor"):
        quantized(batch, tokens, "e4m3", scales)
    quantized(batch, tokens, "e4m3", "head", rotate=1)
    quantized(batch, tokens, "q8_0")
