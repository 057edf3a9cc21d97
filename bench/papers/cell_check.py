"""Whether a cell of a table computed what it should, before it is timed: O, dQ, dK and dV of whole heads.

  python3 bench/papers/cell_check.py      feeds the checks right and wrong results, on the CPU; fails where one is taken for the other

exact: beside attention in fp64, by the error rule of docs/numerics.md, with the bits of the dropout where they are known. dropped: of a peer
whose bits are its own, by their mean and their variance. approximate: beside the same function of approximations.py in fp64. Needs PyTorch."""
import math

import torch

import approximations

NAMES = ("O", "dQ", "dK", "dV")


class Wrong(Exception):
    """A result that is not what its inputs give."""


def chunks_of(rows, most=1 << 25):
    """Slices of the rows of an n x n matrix that have at most so many elements."""
    step = max(1, most // rows)
    return [slice(i, min(i + step, rows)) for i in range(0, rows, step)]


def probabilities(q, k, hidden, rows, stored=lambda x: x):
    s = stored(q[rows] @ k.T * q.shape[-1] ** -0.5)
    if hidden is not None:
        s = s.masked_fill(hidden(torch.arange(rows.start, rows.stop, device=q.device)), -math.inf)
    return stored(s.softmax(-1))


def attention(head, hidden=None, z=None, low=None):
    """O, dQ, dK and dV of one head, from (q, k, v, dO) [n, d], in fp64; low: in float, with S, P, O, dP, dS and the gradients rounded to that type.
    hidden(rows): [rows, n], what the mask hides of these queries; z(rows): what dropout multiplies P by."""
    kind = torch.double if low is None else torch.float
    stored = (lambda x: x) if low is None else (lambda x: x.to(low).to(kind))
    q, k, v, d_o = (t.to(kind) for t in head)
    o, dq, dk, dv = (torch.zeros_like(t) for t in (q, q, k, v))
    scale = q.shape[-1] ** -0.5
    for rows in chunks_of(len(q)):
        p = probabilities(q, k, hidden, rows, stored)
        dp = stored(d_o[rows] @ v.T)
        factor = 1 if z is None else z(rows).to(kind)
        o[rows] = stored((p * factor) @ v)
        dv += (p * factor).T @ d_o[rows]
        ds = stored(p * (dp * factor - (d_o[rows] * o[rows]).sum(-1, keepdim=True)))
        dq[rows] = ds @ k * scale
        dk += ds.T @ q[rows] * scale
    return [stored(t).double() for t in (o, dq, dk, dv)]


def exact(what, results, head, hidden=None, z=None, times=2):
    """results: O, dQ, dK and dV of the head, None where there is none. times: what is allowed of the error of standard attention; a peer gets
    twice the library's 2, as PyTorch's formula rounds S before and after it is scaled, and again what dropout and a mask leave."""
    low = head[0].dtype
    for name, got, right, standard in zip(NAMES, results, attention(head, hidden, z), attention(head, hidden, z, low)):
        if got is None:
            continue
        # As many errors of standard attention in the same type, and half a unit in the last place of the largest element.
        allowed = (times * (standard - right).abs().max() + torch.finfo(low).eps / 2 * right.abs().max()).item()
        error = (got.double() - right).abs().max().item()
        if not error <= allowed:
            raise Wrong(f"{what}: {name} errs by {error:.2e}, allowed {allowed:.2e}")


def spread(head, right, hidden):
    """Each result is linear in the elements Z of the dropout: X = sum_t Z_t C_t, right = sum_t C_t. Of O, dQ, dK and dV: sum_t |C_t|^2 and
    sum_t (C_t . right)^2. With g_ij = dO_i . v_j the coefficients of Z_ij are, of O_i, P_ij v_j; of dV_j, P_ij dO_i; of dQ_i,
    P_ij g_ij (k_j - sum_l P_il k_l) / sqrt(d), as D_i has Z too; of dK_l, P_ij g_ij ((j == l) - P_il) q_i / sqrt(d)."""
    q, k, v, d_o = (t.double() for t in head)
    o, dq, dk, dv = right
    square, along = torch.zeros(4, dtype=torch.double, device=q.device), torch.zeros(4, dtype=torch.double, device=q.device)
    length = lambda t: t.square().sum(-1)
    for rows in chunks_of(len(q)):
        p = probabilities(q, k, hidden, rows)
        b = p * (d_o[rows] @ v.T) * q.shape[-1] ** -0.5
        pp, bb, mean = p.square(), b.square(), p @ k
        square += torch.stack([(pp @ length(v)).sum(), (bb * (length(k) - 2 * mean @ k.T + length(mean)[:, None])).sum(),
                               length(q[rows]) @ ((bb * (1 - 2 * p)).sum(-1) + bb.sum(-1) * pp.sum(-1)), pp.sum(-1) @ length(d_o[rows])])
        of_dq, of_dk = dq[rows] @ k.T, q[rows] @ dk.T
        along += torch.stack([(p * (o[rows] @ v.T)).square().sum(), (b * (of_dq - (dq[rows] * mean).sum(-1, keepdim=True))).square().sum(),
                              (b * (of_dk - (p * of_dk).sum(-1, keepdim=True))).square().sum(), (p * (d_o[rows] @ dv.T)).square().sum()])
    return square.cpu(), along.cpu()


def dropped(what, runs, probability, hidden=None):
    """runs: (O, dQ, dK and dV of one pass, inputs) of some heads, whose dropout has bits that nobody else knows. The elements Z of the dropout are
    1 in the mean and have the variance s = p / (1 - p), independently. So of X, whose value without dropout is E,
    - the slope X . E / |E|^2 is 1 in the mean, of variance s sum_t (C_t . E)^2 / |E|^4. Six standard deviations are allowed, and 1 / 256 / (1 - p):
      FlashAttention-2 rounds the probability to a multiple of 1/256 (docs/numerics.md, "Dropout");
    - |X - E|^2 is s sum_t |C_t|^2 in the mean: nothing without dropout, 1.6 times as much for p = 0.15 in the place of 0.1. Between 2/3 and 3/2
      of it are allowed. Few weights are large, so a head of 128 to 256 rows of 64 varies by 0.14 (dQ, dK, 400 draws), and 4096 rows by 0.03 to 0.04;
    - sum_i dO_i . O_i = sum_ij Z_ij P_ij g_ij = sum_j dV_j . v_j, and sum_i dQ_i . q_i = sum_j dK_j . k_j, to a rounding: the bits of all four are
      the same. With other bits the first would differ by sqrt(2 s) |P g| in the standard deviation, a hundred times what is allowed in fp16."""
    variance = probability / (1 - probability)
    norms, products, rests, squares, alongs = (torch.zeros(4, dtype=torch.double) for _ in range(5))
    for results, head in runs:
        right = attention(head, hidden)
        of_square, of_along = spread(head, right, hidden)
        rest = [got.double() - e for got, e in zip(results, right)]
        norms += torch.tensor([e.square().sum() for e in right])
        products += torch.tensor([(r * e).sum() for r, e in zip(rest, right)])
        rests += torch.tensor([r.square().sum() for r in rest])
        squares, alongs = squares + of_square, alongs + of_along
        same_bits(what, results, head)
    for name, norm, product, rest, square, along in zip(NAMES, *(t.tolist() for t in (norms, products, rests, squares, alongs))):
        slope, allowed = product / norm, 6 * math.sqrt(variance * along) / norm + 1 / 256 / (1 - probability)
        if not abs(slope) <= allowed:
            raise Wrong(f"{what}: {name} is {1 + slope:.3f} times that without dropout, allowed 1 +- {allowed:.3f}")
        share = rest / (variance * square)
        if not 2 / 3 <= share <= 3 / 2:
            raise Wrong(f"{what}: the variance of {name} is {share:.2f} times that of a dropout of {probability}")


def same_bits(what, results, head):
    q, k, v, d_o = (t.double() for t in head)
    o, dq, dk, dv = (t.double() for t in results)
    for names, left, other in (("dO . O and dV . V", d_o * o, dv * v), ("dQ . Q and dK . K", dq * q, dk * k)):
        # Each result is rounded, as are P and dS before it, and errors are independent: 0.4 of this are the most in 400 draws of fp16. In float32 sums
        # err by more than a rounding.
        allowed = 2 * max(torch.finfo(head[0].dtype).eps, 2 ** -17) * (left.square().sum() + other.square().sum()).sqrt().item()
        apart = abs((left.sum() - other.sum()).item())
        if not apart <= allowed:
            raise Wrong(f"{what}: {names} are {apart:.2e} apart, allowed {allowed:.2e}: not all of the same bits")


def approximate(what, name, results, inputs, at=(-1, -1)):
    """results: O, dQ, dK, dV [b, h, n, d], of the function of approximations.py of this name on inputs q, k, v, dO of this shape; of one head."""
    q, k, v, d_o = inputs
    fixed = {}
    if name == "Linformer":  # the same numbers, rounded once
        fixed["projection"] = approximations.linformer_projection(k.shape[2], k).double()
    one = lambda t: t[at[0], at[1]][None, None]
    if name == "Reformer-like":  # the order of the run's own hashes: two that are nearly equal may be so in fp64 alone
        fixed["order"] = one(approximations.reformer_order(q.detach(), min(approximations.CHUNK, q.shape[2])))
    leaves = [one(t).detach().double().requires_grad_() for t in (q, k, v)]
    o = approximations.ALL[name](*leaves, **fixed)
    right = [o, *torch.autograd.grad(o, leaves, one(d_o).double(), allow_unused=True)]
    for of, got, e in zip(NAMES, results, right):
        if (got is None) != (e is None):
            raise Wrong(f"{what}: {of} is missing")
        if got is None:
            continue
        # Up to eight roundings one after the other, of half a unit in the last place each, in the root of the mean square.
        error = ((one(got).double() - e).norm() / e.norm()).item()
        allowed = 4 * torch.finfo(q.dtype).eps
        if not error <= allowed or not bool(got.isfinite().all()):
            raise Wrong(f"{what}: {of} errs by {error:.2e} of its norm, allowed {allowed:.2e}, or is not finite")


def some_heads(b, h, n):
    """Places (b, h) of heads of 4096 rows together, the first and the last among them; the last one where one has as many."""
    count = max(1, min(b * h, 4096 // n))
    return [divmod(b * h - 1 - i * (b * h - 1) // max(1, count - 1), h) for i in range(count)]


# --- The checks, checked ---
def refused(what, check):
    """Ends the program where the check takes what is wrong."""
    try:
        check()
    except Wrong as error:
        print(f"refused   {error}")
        return
    raise SystemExit(f"a check takes a wrong result: {what}")


def changed(results, at, value):
    return [value if i == at else t for i, t in enumerate(results)]


def try_exact(n, d, low, probability):
    head = [torch.randn(n, d).to(low) for _ in range(4)]
    hidden = lambda rows: (torch.arange(n) >= n - 10)[None, :].expand(len(rows), n)
    draw = lambda: (torch.rand(n, n) >= probability) / (1 - probability)
    bits, others = draw(), draw()
    z = (lambda rows: bits[rows]) if probability else None
    rounded = lambda *words: [t.to(low) for t in attention(head, *words, low)]
    right, what = rounded(hidden, z), f"n {n}, d {d}, {low}, dropout {probability}"
    exact(what, right, head, hidden, z)
    print(f"accepted  {what}")
    wrong = {"without the mask": rounded(None, z), "rows in another order": [t.flip(0) for t in right], "scaled by 1.04": [t * 1.04 for t in right],
             "nothing written": [torch.full_like(t, math.nan) for t in right], "zeros": [torch.zeros_like(t) for t in right]}
    if probability:
        wrong |= {"no dropout": rounded(hidden, None), "other bits": rounded(hidden, lambda rows: others[rows]),
                  "not scaled after dropout": rounded(hidden, lambda rows: bits[rows] * (1 - probability))}
    for why, results in wrong.items():
        for at, name in enumerate(NAMES):  # each tensor alone
            if why == "not scaled after dropout" or not torch.equal(results[at], right[at]):
                refused(f"{why}, {name}", lambda: exact(f"{why}", changed(right, at, results[at]), head, hidden, z))


def try_dropped(n, d, low, probability, seeds):
    for seed in range(seeds):
        torch.manual_seed(seed)
        heads = [[torch.randn(n, d).to(low) for _ in range(4)] for _ in some_heads(16, 8, n)]

        def runs(p, scale=None, of_backward=None):
            """With dropout p, kept elements times scale; of_backward: dQ, dK, dV (1), or dK and dV (2), of other bits."""
            made = []
            for head in heads:
                draw = lambda: (torch.rand(n, n) >= p) * (1 / (1 - p) if scale is None else scale)
                results = []
                for at, bits in enumerate((draw(), draw())):
                    results.append([t.to(low) for t in attention(head, None, lambda rows: bits[rows], low)])
                first = 4 if of_backward is None else of_backward
                made.append((results[0][:first] + results[1][first:], head))
            return made
        what = f"n {n}, d {d}, {low}, dropout {probability}, seed {seed}"
        dropped(what, runs(probability), probability)
        print(f"accepted  {what}")
        # Bits of the backward pass alone: of dQ, dK and dV, or of dK and dV.
        for why, made in {"no dropout": runs(0), "half of it": runs(probability / 2), "1.6 times": runs(1.6 * probability), "not scaled": runs(probability, 1.0),
                          "other bits backward": runs(probability, None, 1), "other bits of dK and dV": runs(probability, None, 2)}.items():
            refused(why, lambda: dropped(why, made, probability))
        for at, name in enumerate(NAMES):  # each tensor alone without dropout
            mixed = [(changed(results, at, attention(head, None, None, low)[at].to(low)), head) for results, head in runs(probability)]
            refused(name, lambda: dropped(f"no dropout in {name}", mixed, probability))


def try_approximate(n, low):
    inputs = [torch.randn(2, 2, n, 32).to(low) for _ in range(4)]
    for name, function in approximations.ALL.items():
        def run(q, k, v):
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            o = function(*leaves)
            return [o.detach(), *torch.autograd.grad(o, leaves, inputs[3], allow_unused=True)]
        right = run(*inputs[:3])
        approximate(name, name, right, inputs)
        print(f"accepted  {name}, n {n}, {low}")
        other = run(inputs[0], inputs[1].roll(1, 2), inputs[2].roll(1, 2))
        for at, of in enumerate(NAMES):
            if right[at] is not None and not torch.equal(right[at], other[at]):
                refused(f"{name}, {of} of other keys", lambda: approximate(f"{name}, {of} of other keys", name, changed(right, at, other[at]), inputs))
                refused(f"{name}, no {of}", lambda: approximate(f"{name}, no {of}", name, changed(right, at, torch.zeros_like(right[at])), inputs))


def main():
    torch.manual_seed(1)
    for low in (torch.half, torch.bfloat16, torch.float):
        for probability in (0.0, 0.1):
            try_exact(150, 32, low, probability)
    for low in (torch.half, torch.float):
        try_dropped(128, 32, low, 0.1, 2)
    try_approximate(512, torch.half)  # 128 would be within Local's window


if __name__ == "__main__":
    main()
