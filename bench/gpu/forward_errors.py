"""Whether O of a forward pass is right: its error against attention in fp64 on some heads and rows, beside that of standard
attention in the same type (docs/numerics.md). NaN compares as wrong."""
import math

import numpy as np
import torch


def error_ratio(q, k, v, o, hidden, scored=None, kept=None):
    """Largest error against fp64 over that of standard attention in the type of q, on the first heads. scored(s): the scores as
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
    base = standard(q, k, v, q.dtype).double()
    return ((o.double() - exact).abs().max() / (base - exact).abs().max()).item()


def some_rows(n, count=1024):
    """Rows that are checked, the first and the last among them: all of n x n would not fit at n 16384."""
    return torch.cat([torch.tensor([0, n - 1]), torch.randperm(n)[:min(n, count) - 2]]).cuda()


def error_of_rows(q, k, v, o, causal, scored=None, kept=None, left=None):
    """error_ratio of some rows, NaN where O has one anywhere. scored(s, distance), kept(rows): as above, of those rows;
    left: keys that a window reaches back."""
    rows = some_rows(q.shape[1])
    distance = rows[:, None] - torch.arange(q.shape[1], device="cuda")[None, :]
    hidden = distance < 0 if causal else None
    if left is not None:
        hidden = (distance < 0) | (distance > left)
    ratio = error_ratio(q[:, rows], k, v, o[:, rows], hidden, scored and (lambda s: scored(s, distance)), kept and kept(rows))
    return math.nan if o.isnan().any() else ratio


def kept_by_dropout(rows, n, probability, heads=2):
    """[1, heads, rows, n] of batch entry 0: 0 or 1 / (1 - p), bit for bit as docs/numerics.md has it, of seed and offset 0."""
    low = np.uint64(0xffffffff)
    j = np.arange(n, dtype=np.uint64)[None, None, :]
    i = rows.cpu().numpy().astype(np.uint64)[None, :, None]
    head = np.arange(heads, dtype=np.uint64)[:, None, None]
    x = [np.broadcast_to(w, (heads, len(rows), n)) for w in (j // 64 * 4 + j % 8 // 2, i, head, np.uint64(0) * j)]
    key = [np.uint64(0), np.uint64(0)]
    for _ in range(7):
        a, b = np.uint64(0xd2511f53) * x[0], np.uint64(0xcd9e8d57) * x[2]
        x = [(b >> np.uint64(32)) ^ x[1] ^ key[0], b & low, (a >> np.uint64(32)) ^ x[3] ^ key[1], a & low]
        key = [(key[0] + np.uint64(0x9e3779b9)) & low, (key[1] + np.uint64(0xbb67ae85)) & low]
    def byte(word, n):
        return (np.choose(np.broadcast_to((word % 4).astype(np.int64), x[0].shape), x) >> (8 * n)) & np.uint64(0xff)

    word, upper, n = j // 8 % 4, j // 32 % 2, 2 * (j % 2)
    tie = byte(word + 1, n + upper) ^ byte(word + 2, n + upper) ^ byte(word + 3, n + upper)
    number = 256 * (byte(word, n + 1 - upper) & np.uint64(0x7f)) + tie
    threshold = min(32767, round(32768 * probability))
    kept = number >= threshold if threshold <= 0x7c00 else number < 32768 - threshold
    return torch.from_numpy(kept / (1 - threshold / 32768))[None].cuda()
