"""Approximate attention of appendix E.6, in PyTorch, as references for time and memory: what each computes is what its paper says, not how accurate a trained
model with it is. Every function takes q, k, v [batch, heads, n, d] and gives [batch, heads, n, d]; n is a multiple of its block.

  python3 bench/papers/approximations.py        compares each with dense attention under its own mask, in fp64

local: blocks of w queries see their own block and its two neighbours. longformer (Beltagy and others 2020): the same, and g global positions that all see and
that see all. bigbird (Zaheer and others 2020): blocks see themselves, their neighbours, the first blocks and random ones. linformer (Wang and others 2020):
K and V projected to r rows. reformer (Kitaev and others 2020): queries are keys, sorted by a hash; chunks of the order see themselves and the one before."""
import math

import torch

WINDOW, GLOBAL, BLOCK, RANDOM, RANK, CHUNK = 128, 16, 64, 3, 256, 64


def attend(q, k, v, hidden=None):
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if hidden is not None:
        s = s.masked_fill(hidden, -math.inf)
    return torch.softmax(s, -1) @ v


def chunks(x, size):
    b, h, n, d = x.shape
    return x.view(b, h, n // size, size, d)


def neighbours(x):
    """[..., blocks, w, d] -> [..., blocks, 3 w, d]: the block before, itself, the one after; zeros beyond the ends."""
    none = torch.zeros_like(x[:, :, :1])
    return torch.cat([torch.cat([none, x[:, :, :-1]], 2), x, torch.cat([x[:, :, 1:], none], 2)], 3)


def beyond_ends(blocks, w, device):
    """[blocks, 1, 3 w]: which neighbours are not there."""
    hidden = torch.zeros(blocks, 1, 3 * w, dtype=torch.bool, device=device)
    hidden[0, :, :w] = True
    hidden[-1, :, 2 * w:] = True
    return hidden


def local(q, k, v, w=WINDOW):
    w = min(w, q.shape[2])
    hidden = beyond_ends(q.shape[2] // w, w, q.device)
    return attend(chunks(q, w), neighbours(chunks(k, w)), neighbours(chunks(v, w)), hidden).view(q.shape)


def longformer(q, k, v, w=WINDOW, g=GLOBAL):
    w = min(w, q.shape[2])
    blocks = q.shape[2] // w
    spread = lambda x: x[:, :, None, :g].expand(-1, -1, blocks, -1, -1)
    hidden = beyond_ends(blocks, w, q.device)
    # A window's own global positions are among the global keys already.
    position = torch.arange(blocks, device=q.device)[:, None] * w + torch.arange(-w, 2 * w, device=q.device)
    hidden = hidden | (position < g)[:, None]
    hidden = torch.cat([hidden.new_zeros(blocks, 1, g), hidden], -1)
    o = attend(chunks(q, w), torch.cat([spread(k), neighbours(chunks(k, w))], 3), torch.cat([spread(v), neighbours(chunks(v, w))], 3), hidden)
    return torch.cat([attend(q[:, :, :g], k, v), o.view(q.shape)[:, :, g:]], 2)


def bigbird_blocks(blocks, device, seed=1):
    """[blocks, 3 + 1 + RANDOM] numbers of blocks of keys, of each block of queries, and which of them come twice or are not there."""
    numbers = torch.arange(blocks, device=device)[:, None]
    random = torch.randint(blocks, (blocks, RANDOM), generator=torch.Generator().manual_seed(seed)).to(device)
    seen = torch.cat([numbers - 1, numbers, numbers + 1, torch.zeros_like(numbers), random], 1)
    twice = torch.stack([(seen[:, :i] == seen[:, i:i + 1]).any(1) for i in range(seen.shape[1])], 1)
    return seen.clamp(0, blocks - 1), twice | (seen < 0) | (seen >= blocks)


def bigbird(q, k, v, block=BLOCK):
    blocks = q.shape[2] // block
    seen, hidden = bigbird_blocks(blocks, q.device)
    gather = lambda x: chunks(x, block)[:, :, seen].flatten(3, 4)
    o = attend(chunks(q, block), gather(k), gather(v), hidden[:, None, :].repeat_interleave(block, 2)).view(q.shape)
    return torch.cat([attend(q[:, :, :block], k, v), o[:, :, block:]], 2)  # the first block sees all


def linformer_projection(n, like, rank=RANK):
    """Fixed random numbers in the place of learnt ones."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(min(rank, n), n, generator=generator) / math.sqrt(n)).to(like)


def linformer(q, k, v, projection=None):
    projection = linformer_projection(k.shape[2], k) if projection is None else projection
    return attend(q, projection @ k, projection @ v)


def reformer_order(q, chunk=CHUNK):
    """The order by hash: the largest of the projections on n / chunk random directions and their opposites, then the position."""
    n = q.shape[2]
    directions = torch.randn(q.shape[-1], max(1, n // chunk // 2), generator=torch.Generator().manual_seed(1)).to(q)
    projected = q @ directions
    bucket = torch.cat([projected, -projected], -1).argmax(-1)
    return (bucket * n + torch.arange(n, device=q.device)).argsort(-1)


def reformer(q, k, v, chunk=CHUNK, order=None):
    """k is not used: Reformer's keys are its queries, of length 1."""
    chunk = min(chunk, q.shape[2])
    order = reformer_order(q.detach(), chunk) if order is None else order
    index = order[..., None].expand_as(q)
    sorted_q, sorted_v = q.gather(2, index), v.gather(2, index)
    keys = torch.nn.functional.normalize(sorted_q, dim=-1)
    before = lambda x: torch.cat([torch.roll(chunks(x, chunk), 1, 2), chunks(x, chunk)], 3)
    if q.shape[2] == chunk:
        before = lambda x: chunks(x, chunk)
    o = attend(chunks(sorted_q, chunk), before(keys), before(sorted_v)).reshape(q.shape)
    return torch.empty_like(o).scatter(2, index, o)


ALL = {"Local": local, "Longformer": longformer, "BigBird": bigbird, "Linformer": linformer, "Reformer-like": reformer}


def dense(name, q, k, v):
    """The same by dense attention with a mask, or by the formula."""
    n = q.shape[2]
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    near = lambda size: (i // size - j // size).abs() <= 1
    if name == "Local":
        seen = near(min(WINDOW, n))
    elif name == "Longformer":
        seen = near(min(WINDOW, n)) | (j < GLOBAL) | (i < GLOBAL)
    elif name == "BigBird":
        blocks, missing = bigbird_blocks(n // BLOCK, q.device)
        of_blocks = torch.zeros(n // BLOCK, n // BLOCK, dtype=torch.bool)
        for row in range(n // BLOCK):
            of_blocks[row, blocks[row][~missing[row]]] = True
        of_blocks[0] = True
        seen = of_blocks.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    elif name == "Linformer":
        projection = linformer_projection(n, k)
        projected = [torch.einsum("rm,bhmd->bhrd", projection, x) for x in (k, v)]
        return torch.softmax(torch.einsum("bhnd,bhrd->bhnr", q, projected[0]) / math.sqrt(q.shape[-1]), -1) @ projected[1]
    else:
        chunk, place = min(CHUNK, n), reformer_order(q).argsort(-1)
        behind = (place[..., :, None] // chunk - place[..., None, :] // chunk) % (n // chunk)
        return attend(q, torch.nn.functional.normalize(q, dim=-1), v, behind > 1)
    return attend(q, k, v, ~seen)


def main():
    torch.manual_seed(2)
    for n in (128, 512, 1024):
        q, k, v = (torch.randn(2, 3, n, 16, dtype=torch.double) for _ in range(3))
        for name, function in ALL.items():
            error = (function(q, k, v) - dense(name, q, k, v)).abs().max().item()
            print(f"n {n:5d}  {name:14s} error {error:.1e}")
            assert error < 1e-12, name


if __name__ == "__main__":
    main()
