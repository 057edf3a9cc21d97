"""attn.append_kv on one GPU beside a copy of as many bytes: tokens of a prompt, and a token of each of many sequences, to a
cache of 8 K, V heads of 128 in pages of 16, with Q of 32 heads where it is rotated. What was written is compared with
PyTorch's own before it is timed. Needs PyTorch and attn's Python package.

  python3 bench/gpu/append_kv.py"""

import sys

import attn
import torch

from calls import median_ms

HEADS, HEADS_K, DIM, PAGE = 32, 8, 128, 16
SIZES = {"q8_0": 34 * DIM // 32, "e4m3": DIM}


def row(name, batch, tokens, kind=None, rope=False, hadamard=False):
    def drawn(heads):
        return torch.randn(batch, tokens, heads, DIM, device="cuda").bfloat16()

    width = -(-tokens // PAGE)
    table = torch.randperm(batch * width, device="cuda").int().view(batch, width)
    dtype = torch.bfloat16 if kind is None else torch.uint8
    shape = (batch * width, PAGE, HEADS_K, SIZES.get(kind, DIM))
    cache_k, cache_v = (torch.zeros(shape, dtype=dtype, device="cuda") for _ in range(2))
    arrays = {"k": drawn(HEADS_K), "v": drawn(HEADS_K), "cache_k": cache_k, "cache_v": cache_v}
    if rope:
        arrays["q"] = drawn(HEADS)
        arrays["out_q"] = torch.empty_like(arrays["q"])
        angle = torch.arange(tokens, device="cuda")[:, None] * 10000 ** (
            -torch.arange(DIM // 2, device="cuda") / (DIM // 2)
        )
        arrays["cos"], arrays["sin"] = angle.cos(), angle.sin()
    options = {"cache_seqlens": torch.zeros(batch, dtype=torch.int32, device="cuda"), "page_table": table,
               "hadamard": hadamard, "type_k": kind, "type_v": kind}  # fmt: skip

    def call():
        attn.append_kv(**arrays, **options)

    call()
    if kind is None:
        v = cache_v[table.long()].view(batch, width * PAGE, HEADS_K, DIM)[:, :tokens]
        if not torch.equal(v, arrays["v"]):
            sys.exit(f"{name}: V is not what was appended")
    read = sum(arrays[n].nbytes for n in ("q", "k", "v") if n in arrays)
    written = (
        sum(arrays[n].nbytes for n in ("out_q",) if n in arrays)
        + 2 * batch * tokens * cache_k[0, 0].nbytes
    )
    half = torch.empty((read + written) // 2, dtype=torch.uint8, device="cuda")
    to = torch.empty_like(half)
    ours, copy = median_ms({"append": call, "copy": lambda: to.copy_(half)}, 20).values()
    print(
        f"{name:34} {ours * 1e3:8.1f} us {(read + written) / ours / 1e9:6.2f} TB/s, copy {copy * 1e3:8.1f} us: {copy / ours:.2f}"
    )


for batch, tokens in ((1, 16384), (4, 16384), (64, 1), (512, 1)):
    size = f"b{batch} n{tokens} "
    row(size + "bf16", batch, tokens)
    row(size + "bf16, rope", batch, tokens, rope=True)
    row(size + "e4m3", batch, tokens, "e4m3")
    row(size + "q8_0, rope, hadamard", batch, tokens, "q8_0", rope=True, hadamard=True)
