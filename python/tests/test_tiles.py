"""attn.tiles against the masks themselves, score by score."""

import numpy as np
import pytest

import attn

HEADS = 3
IDS = np.repeat(np.arange(4), 40).astype(np.int32)
BLOCKS = np.random.default_rng(1).random((1, HEADS, 10, 10)) < 0.5
# (options, what is seen: a function of batch, head, position and key); the last 150 of 160 queries.
MASKS = {
    "none": ({}, lambda b, h, i, j: True),
    "causal": ({"causal": True}, lambda b, h, i, j: j <= i),
    "window": ({"window": (30, 5)}, lambda b, h, i, j: (i - j <= 30) & (j - i <= 5)),
    "both, and a text": (
        {"causal": True, "window": (40, 0), "mask": "key >= 20 || key < 4"},
        lambda b, h, i, j: (j <= i) & (i - j <= 40) & ((j >= 20) | (j < 4)),
    ),
    "nothing": ({"mask": "key < 0"}, lambda b, h, i, j: False),
    "head and batch": (
        {"mask": "key < 50 * head + 20 * batch"},
        lambda b, h, i, j: j < 50 * h + 20 * b,
    ),
    "documents": (
        {"mask": attn.Formula("ids[position] == ids[key]", ids=IDS)},
        lambda b, h, i, j: IDS[i] == IDS[j],
    ),
    "blocks": (
        {"mask": attn.block_mask(BLOCKS, 16, 16)},
        lambda b, h, i, j: BLOCKS[0, h, i // 16, j // 16],
    ),
    "a number": (
        {"mask": attn.Formula("position - key < width && key <= position", width=33)},
        lambda b, h, i, j: (i - j < 33) & (j <= i),
    ),
}


@pytest.mark.parametrize("sizes", [(64, 64), (16, 16), (16, 40), (7, 1000)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_tiles(name, sizes):
    options, seen = MASKS[name]
    q = np.ones((2, 150, HEADS, 8), np.float32)
    k = np.ones((2, 160, HEADS, 8), np.float32)
    block_q, block_k = sizes
    place, key = np.arange(10, 160)[:, None], np.arange(160)[None, :]
    for batch, head in np.ndindex(2, HEADS):
        whole = np.broadcast_to(seen(batch, head, place, key), (150, 160))
        wanted = [
            "".join(
                "#" if (part := whole[i : i + block_q, j : j + block_k]).all()
                else "." if part.any() else " "
                for j in range(0, 160, block_k)
            )
            for i in range(0, 150, block_q)
        ]  # fmt: skip
        found = attn.tiles(
            q, k, k, block_q=block_q, block_k=block_k, batch=batch, head=head, **options
        )
        assert found == wanted


def test_refusals():
    q = np.ones((1, 9, 2, 8), np.float32)
    for name, value in (("block_q", 0), ("block_k", 2**31), ("batch", 1), ("head", -1)):
        with pytest.raises(attn.InvalidArgument, match=f"{name} is {value}; accepted are"):
            attn.tiles(q, q, q, **{name: value})
    with pytest.raises(attn.Unsupported, match="accepted are dense"):
        attn.tiles(q, q, q, seqused_k=np.array([3], np.int32))
    with pytest.raises(TypeError, match="windows"):
        attn.tiles(q, q, q, windows=3)
