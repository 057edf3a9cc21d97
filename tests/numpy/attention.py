"""Attention as docs/numerics.md defines it, in NumPy: forward, backward, dropout.

One sequence at a time, `Sequence` holds its rows: q [heads_q, n, d], k and v [heads_k, m, d].
The same code computes the exact result (float64) and the yardstick of the error rule: standard
attention in float32 with S, P, O, dP and dS rounded to the dtype of the problem.
"""
import numpy as np

from expression import Evaluation


def round_to(x, dtype):
    """x rounded to nearest even in bf16, f16 or f32, held in float32."""
    x = np.asarray(x, np.float32)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    if dtype != "bf16":
        return x
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    return np.where(np.isnan(x), x, rounded.view(np.float32))


class Exact:
    real, ulp = np.float64, 0

    @staticmethod
    def round(x):
        return x

    @staticmethod
    def dot(a, b):
        return np.einsum("hqe,hke->hqk", a, b)

    @staticmethod
    def sum(x, axis):
        return x.sum(axis)

    @staticmethod
    def perturb(lse):
        return lse


class Standard:
    """float32, sums in order of the index, begun at the share `start` of the terms and then round;
    S, P, ... rounded to `dtype`; exp, log and tanh of the score expression `ulp` off."""
    real = np.float32

    def __init__(self, dtype, start, ulp):
        self.dtype, self.start, self.ulp = dtype, start, ulp

    def round(self, x):
        return round_to(x, self.dtype)

    def sum(self, x, axis):
        n = x.shape[axis]
        if n == 0:
            return x.sum(axis)
        x = np.roll(x, -int(self.start * n), axis)
        return np.take(np.add.accumulate(x.astype(np.float32), axis, np.float32), -1, axis)

    def dot(self, a, b):
        return self.sum(a[:, :, None, :] * b[:, None, :, :], 3)

    def perturb(self, lse):
        """Of another pass: one unit in the last place off."""
        return np.nextafter(lse, np.float32(self.ulp * np.inf))


def philox(key, counter):
    """Philox4x32-7 (Salmon et al. 2011): four words for each counter, arrays of uint64."""
    mask = np.uint64(0xFFFFFFFF)
    c = [np.asarray(x, np.uint64) & mask for x in counter]
    k = [int(x) & 0xFFFFFFFF for x in key]
    for _ in range(7):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), b & mask,
             (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), a & mask]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def dropout(probability, seed, offset, batch, heads, n, m):
    """Kept elements [heads, n, m] of sequence `batch`, and the factor of those that are kept."""
    threshold = min(32767, int(np.floor(32768 * probability + 0.5)))
    h, i, j = np.ogrid[:heads, :n, :m]
    words = philox((seed & 0xFFFFFFFF, (seed >> 32) ^ (offset >> 32)),
                   np.broadcast_arrays((j // 64) * 4 + (j % 8) // 2, i, batch * heads + h,
                                       offset & 0xFFFFFFFF))
    def byte(word, n):
        chosen = np.choose(np.broadcast_to(word % 4, words[0].shape), words)
        return (chosen >> (8 * n).astype(np.uint64)) & np.uint64(0xFF)

    word, upper, n = j // 8 % 4, j // 32 % 2, 2 * (j % 2)
    tie = byte(word + 1, n + upper) ^ byte(word + 2, n + upper) ^ byte(word + 3, n + upper)
    number = np.uint64(256) * (byte(word, n + 1 - upper) & np.uint64(0x7F)) + tie
    kept = number >= threshold if threshold <= 0x7C00 else number < 32768 - threshold
    return kept, 1 / (1 - threshold / 32768)


def forward(a, q, k, v, problem, batch):
    """Results of one sequence with arithmetic `a`: a dict with what backward needs as well."""
    heads, n, d = q.shape
    m = k.shape[1]
    group = heads // k.shape[0]
    q, k, v = (np.asarray(x, a.real) for x in (q, k, v))
    keys, values = np.repeat(k, group, 0), np.repeat(v, group, 0)
    scale = a.real(problem.scale if problem.scale is not None else 1 / np.sqrt(d))
    s = a.round(scale * a.dot(q, keys))
    h, i, j = np.ogrid[:heads, :n, :m]
    symbols = {"query": i, "key": j, "head": h, "batch": batch, "seqlen_q": n, "seqlen_k": m,
               "position": i + m - n, "score": s}
    scores = Evaluation(a.real, symbols, problem.buffers, a.ulp)
    changed = scores(problem.score) if problem.score else None
    t = np.broadcast_to(changed.x, s.shape) if changed else s
    seen = np.ones(s.shape, bool)
    if problem.mask:
        seen = seen & Evaluation(np.float32, symbols, problem.buffers)(problem.mask).x
    t = np.where(seen, t, -np.inf).astype(a.real)
    sink = None if problem.sink is None else problem.sink.astype(a.real)[:, None]
    top = t.max(2, initial=-np.inf)
    if sink is not None:
        top = np.maximum(top, sink)
    top = np.where(np.isfinite(top), top, 0).astype(a.real)
    weights = np.exp(t - top[:, :, None])
    total = a.sum(weights, 2)
    if sink is not None:
        total = total + np.exp(sink - top)
    with np.errstate(divide="ignore"):
        lse = top + np.log(total)
    p = a.round(weights / np.where(total > 0, total, 1)[:, :, None])
    z = a.real(1)
    if problem.dropout is not None:
        kept, factor = dropout(*problem.dropout, batch, heads, n, m)
        z = np.where(kept, a.real(factor), a.real(0))
    o = a.round(a.dot(z * p, values.transpose(0, 2, 1)))
    return {"o": o, "lse": lse, "q": q, "keys": keys, "values": values, "t": t, "seen": seen, "z": z,
            "changed": changed, "loads": scores.loads, "scale": scale, "sink": sink}


def gradients(a, other, f, again, d_o, d_lse, problem, heads_k):
    """Gradients of one sequence; d_lse [heads, rows] or None. O and LSE come from the forward pass `f`; a backward pass adds in
    another order, so scores come from a second one, `again`, computed with `other`."""
    heads, n, _ = f["q"].shape
    d_o = np.asarray(d_o, a.real)
    lse = np.where(np.isfinite(f["lse"]), other.perturb(f["lse"]), np.inf).astype(a.real)
    p = a.round(np.exp(again["t"] - lse[:, :, None]))
    dp = f["z"] * a.round(a.dot(d_o, f["values"]))
    row = other.sum((d_o * f["o"])[:, :, ::-1], 2)
    if d_lse is not None:
        row = row - np.where(np.isfinite(f["lse"]), d_lse, 0).astype(a.real)
    dt = np.where(f["seen"], p * (dp - row[:, :, None]), 0).astype(a.real)
    slope = again["changed"].d.get("score", a.real(0)) if again["changed"] else a.real(1)
    ds = a.round(np.where(f["seen"], dt * slope, 0))
    dt = a.round(dt)
    group = heads // heads_k

    def to_keys(x, rows):
        """sum over queries and heads of a group of x[h, i, j] * rows[h, i, :]"""
        m = x.shape[2]
        x = x.reshape(heads_k, group * n, m).transpose(0, 2, 1)
        return a.dot(x, rows.reshape(heads_k, group * n, rows.shape[2]).transpose(0, 2, 1))

    result = {"dq": a.round(f["scale"] * a.dot(ds, f["keys"].transpose(0, 2, 1))),
              "dk": a.round(f["scale"] * to_keys(ds, f["q"])),
              "dv": a.round(to_keys(f["z"] * p, d_o))}
    if f["sink"] is not None:
        result["dsink"] = a.sum(-np.exp(f["sink"] - lse) * row, 1)
    if again["changed"]:
        for what, (name, indices, inside) in again["loads"].items():
            derivative = again["changed"].d.get(what)
            if derivative is None:
                continue
            terms = np.where(inside & f["seen"], dt * derivative, 0).astype(a.real)
            gradient = result.setdefault("d" + name,
                                         np.zeros(problem.buffers[name].shape, a.real))
            indices = [np.broadcast_to(i, terms.shape).ravel() for i in indices]
            np.add.at(gradient, tuple(indices), terms.ravel())
    return result
