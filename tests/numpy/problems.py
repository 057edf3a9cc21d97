"""Random problems for fuzz.py: what `attn run` is asked for, its tensors, and the same for NumPy."""
from dataclasses import dataclass, field

import numpy as np

from attention import round_to
from expression import parse


ALGORITHMS = ["standard", "flash_attention", "flash_attention_2", "flash_decoding",
              "memory_efficient", "block_sparse"]


@dataclass
class Problem:
    """What attention.py reads: expressions as trees, buffers as arrays."""
    scale: float | None = None
    mask: tuple | None = None
    score: tuple | None = None
    sink: np.ndarray | None = None
    dropout: tuple | None = None
    buffers: dict = field(default_factory=dict)


@dataclass
class Case:
    seed: int
    dtype: str
    backward: bool
    tensors: dict        # as they go into the file
    arguments: list      # of attn run: what is computed
    how: list            # and how; left out where no kernel takes the problem so
    problem: Problem
    rows_q: list         # of each sequence: where its rows of Q lie, as indices into the outer axes
    rows_k: list
    packed_q: bool
    heads_k: int


def pick(random, *choices):
    return choices[random.integers(len(choices))]


def boolean(random, depth, buffers):
    """Text of a random mask; buffers: {name: shape} of integer buffers."""
    if depth > 0 and random.random() < 0.6:
        a, b = (boolean(random, depth - 1, buffers) for _ in range(2))
        return pick(random, f"({a}&&{b})", f"({a}||{b})", f"!({a})", f"select({a},{b},query>=key)",
                    f"(({a})==({b}))")
    a, b = integer(random, 2, buffers), integer(random, 1, buffers)
    if random.random() < 0.15:
        if random.random() < 0.4:
            return f"floor({a}*0.7){pick(random, '<', '==')}to_int({b}/1.7)"
        return f"to_float({a})*0.375{pick(random, '<', '>=')}sqrt(abs(to_float({b}))+0.5)"
    return f"{a}{pick(random, '<', '<=', '>', '>=', '!=', '==')}{b}"


def integer(random, depth, buffers):
    if depth > 0 and random.random() < 0.7:
        a, b = integer(random, depth - 1, buffers), integer(random, depth - 1, buffers)
        return pick(random, f"({a}+{b})", f"({a}-{b})", f"({a}*{b})", f"({a}/{b})", f"({a}%{b})",
                    f"min({a},{b})", f"max({a},{b})", f"abs({a})", f"-({a})", f"({a}&{b})",
                    f"({a}|{b})", f"({a}^{b})", f"to_int({a}*0.7)", f"to_int({a}/({b}*1.7))", f"({a}<<({b})%34-1)", f"({a}>>({b})%34-1)")
    if buffers and random.random() < 0.3:
        name = pick(random, *buffers)
        indices = ",".join(pick(random, "query", "key", "head", "batch", "key/4", "query-key")
                           for _ in buffers[name])
        return f"{name}[{indices}]"
    return pick(random, "query", "key", "query", "key", "head", "batch", "seqlen_q", "seqlen_k",
                "position", "3", "7", str(random.integers(0, 40)))


def score(random, floats):
    """Text of a random change of the score, smooth enough to be compared: no large exponents."""
    text = "score"
    for _ in range(random.integers(1, 4)):
        c = f"{random.uniform(0.3, 3):.3g}"
        c = c if "." in c else c + ".0"
        text = pick(random, f"({text}*{c})", f"({text}+0.01*to_float(query-key))",
                    f"{c}*tanh(({text})/{c})", f"min({text},{c})", f"max({text},-{c})",
                    f"select((query+key)%3==0,{text},({text})*0.5)", f"abs({text})",
                    f"log(exp({text})+1.0)", f"({text}-{c}*sqrt(to_float(abs(query-key))))",
                    f"({text})/(1.0+exp(-({text})))", f"-({text})",
                    f"({text}-0.25*floor(abs(query-key)/1.7))",
                    f"({text}+floor(0.7*key)-0.7*key)",
                    f"0.5*({text})*(1.0+erf(({text})*0.70710678))",
                    f"({text}+sin({c}*to_float(query-key)))", f"{c}*sin(({text})/{c})",
                    f"({text})*cos(0.7*({text}))",
                    f"({text}-exp2(-0.5*to_float(head+3))*to_float(abs(query-key)))")
        if floats and random.random() < 0.5:
            name = pick(random, *floats)
            indices = ",".join(pick(random, "query", "key", "head", "batch", "key/2", "query-key+3")
                               for _ in floats[name])
            text = pick(random, f"({text}+{name}[{indices}])", f"({text})*{name}[{indices}]")
    return text


def sequences(random, batch, n, packed, used):
    """(index of the rows of each sequence, tensors cu_seqlens and seqused or None, outer shape)"""
    lengths = random.integers(0, n + 1, batch)
    if not packed:
        used_lengths = lengths if used else np.full(batch, n)
        index = [(b, np.arange(used_lengths[b])) for b in range(batch)]
        return index, None, used_lengths.astype(np.int32) if used else None, (batch, n)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    used_lengths = np.array([random.integers(0, x + 1) for x in lengths]) if used else lengths
    index = [(starts[b] + np.arange(used_lengths[b]),) for b in range(batch)]
    return index, starts, used_lengths.astype(np.int32) if used else None, (int(starts[-1]),)


def make(seed, draw=0):
    """Problem `seed`; another `draw` has other numbers in Q, K, V and dO."""
    random = np.random.default_rng(seed)
    values = np.random.default_rng((seed, draw))
    dtype = pick(random, "f32", "f32", "f32", "bf16", "f16")
    batch, heads_k = int(random.integers(1, 4)), int(random.integers(1, 4))
    heads_q = heads_k * int(random.integers(1, 4))
    n = int(pick(random, random.integers(1, 6), random.integers(1, 70)))
    m = n if random.random() < 0.4 else int(pick(random, random.integers(1, 8), random.integers(1, 90)))
    d = int(pick(random, 1, 3, 8, 16, 20, 32, 40, 64))
    d_v = d if random.random() < 0.7 else int(pick(random, 1, 5, 16, 24, 48))
    backward = bool(random.random() < 0.5)
    packed_q, packed_k = random.random() < 0.3, random.random() < 0.3
    used_q, used_k = random.random() < 0.25, random.random() < 0.25
    paged = not backward and random.random() < 0.2
    problem, arguments, tokens = Problem(), [], []
    tensors = {}

    def normal(shape, factor=1.0):
        return round_to(values.standard_normal(shape) * factor, dtype)

    rows_q, cu, lengths, outer_q = sequences(random, batch, n, packed_q, used_q)
    if cu is not None:
        tensors["cu_seqlens_q"] = cu
    if lengths is not None:
        tensors["seqused_q"] = lengths
    if paged:
        size = int(pick(random, 1, 4, 16))
        pages = -(-m // size)
        lengths = random.integers(0, pages * size + 1, batch)
        table = random.permutation(batch * pages + 2)[:batch * pages].reshape(batch, pages)
        rows_k = [(table[b, np.arange(lengths[b]) // size], np.arange(lengths[b]) % size)
                  for b in range(batch)]
        tensors["seqused_k"] = lengths.astype(np.int32)
        tensors["page_table"] = table.astype(np.int32)
        outer_k, packed_k = (batch * pages + 2, size), False
    else:
        rows_k, cu, lengths, outer_k = sequences(random, batch, m, packed_k, used_k)
        if cu is not None:
            tensors["cu_seqlens_k"] = cu
        if lengths is not None:
            tensors["seqused_k"] = lengths

    def place(rows, outer, heads, width, factor):
        """Random rows where sequences are, NaN where nothing may be read."""
        x = np.full((*outer, heads, width), np.nan, np.float32)
        for index in rows:
            x[index] = normal((len(index[-1]), heads, width), factor)
        return x

    factor = pick(random, 1.0, 1.0, 1.0, 3.0, 0.1)
    floats = {"q": place(rows_q, outer_q, heads_q, d, factor),
              "k": place(rows_k, outer_k, heads_k, d, 1.0),
              "v": place(rows_k, outer_k, heads_k, d_v, 1.0)}
    if backward:
        floats["d_o"] = place(rows_q, outer_q, heads_q, d_v, 1.0)

    def declare(name, array):
        problem.buffers[name] = array
        tensors[name] = array
        arguments.extend(["--buffer", f"{name}={name}"])

    masks, changes = [], []
    if random.random() < 0.5:
        shapes = {}
        if random.random() < 0.4:
            shapes = {"table": (batch, m + 2), "flags": (heads_q, 5)}
        text = boolean(random, 2, shapes)
        used = {name: shape for name, shape in shapes.items() if name + "[" in text}
        for name, shape in used.items():
            kind = np.int32 if name == "table" else np.uint8
            declare(name, random.integers(0, 3, shape).astype(kind))
        arguments.extend(["--mask", text])
        masks.append(text)
    if random.random() < 0.4:
        shapes = {"w": (heads_q,), "grid": (1, n, 7)} if random.random() < 0.6 else {}
        text = score(random, shapes)
        for name, shape in shapes.items():
            if name + "[" in text:
                declare(name, (random.standard_normal(shape) * 0.5).astype(np.float32))
        arguments.extend(["--score", text])
        changes.append(text)
    # Shorthands; with `tl` they are aligned to the top left. `extent`: seqlen_k of the problem.
    extent = outer_k[1] * tensors["page_table"].shape[1] if paged else m
    top_left = pick(random, "", "", "tl")
    row = "query" if top_left else "position"
    if random.random() < 0.3:
        tokens.append("causal" + top_left)
        masks.append(f"key<={row}")
    if random.random() < 0.15:
        left, right = int(random.integers(-1, 20)), int(random.integers(-1, 10))
        tokens.append(f"window{top_left}{left}x{right}")
        masks += [f"{row}-key<={left}"] * (left >= 0) + [f"key-{row}<={right}"] * (right >= 0)
    if random.random() < 0.1:
        first = int(random.integers(0, 9))
        tokens.append(f"prefix{top_left}{first}")
        masks.append(f"(key<{first}||key<={row})")
    if random.random() < 0.15:
        if random.random() < 0.3:
            shapes = {"ids_q": (batch, n), "ids_k": (extent,)}
            tokens.append(f"documents{batch}x{n},{extent}")
            masks.append("ids_q[batch,query]==ids_k[key]")
        else:
            shapes = {"ids": (batch, max(n, extent) if top_left else extent)}
            tokens.append("documents" + top_left)
            masks.append(f"{row}>=0&&ids[batch,{row}]==ids[batch,key]")
        for name, shape in shapes.items():
            problem.buffers[name] = tensors[name] = random.integers(0, 3, shape).astype(np.int32)
    if np.random.default_rng((seed, 3)).random() < 0.1:  # as of rng_state: no number is drawn
        shape = (batch, n, -(-n // 32))
        bits = np.random.default_rng((seed, 4)).integers(-(2**31), 2**31, shape)
        problem.buffers["tree"] = tensors["tree"] = bits.astype(np.int32)
        tokens.append("tree")
        draft = "(key-(seqlen_k-seqlen_q))"
        masks.append(f"({draft}<0||((tree[batch,query,{draft}/32]>>{draft}%32)&1)!=0)")
    if random.random() < 0.1:
        size = int(pick(random, 2, 5, 16))
        rows = -(-(n if top_left else extent) // size)
        i, j = np.ogrid[:rows, :-(-extent // size)]
        # The block diagonal, and blocks whose numbers differ in one bit.
        problem.buffers["blocks"] = ((i ^ j) & ((i ^ j) - 1) == 0).astype(np.uint8)
        tokens.append(f"butterfly{top_left}{size}")
        masks.append(f"{row}>=0&&blocks[{row}/{size},key/{size}]!=0")
    if random.random() < 0.15:
        cap = pick(random, 1.5, 5.0, 30.0)
        arguments.append(f"--softcap={cap}")
        changes.append(f"{cap}*tanh(score/{cap})")
    if random.random() < 0.2:
        problem.buffers["slopes"] = np.array(
            [2.0 ** (-8 * (h + 1) / heads_q) for h in range(heads_q)], np.float32)
        tokens.append("alibi" + top_left)
        if random.random() < 0.5:
            problem.buffers["slopes"] = random.random(heads_q, np.float32)
            tensors["slopes"] = problem.buffers["slopes"]
        changes.append(f"score-slopes[head]*abs(to_float({row}-key))")
    if random.random() < 0.2:
        sizes = [pick(random, 1, batch), pick(random, 1, heads_q), extent if row == "position" else n,
                 extent]
        problem.buffers["bias"] = tensors["bias"] = random.standard_normal(sizes).astype(np.float32)
        tokens.append(("biasbr" if row == "position" else "bias") + "x".join(map(str, sizes)))
        changes.append(f"score+bias[batch,head,{row},key]")
    if random.random() < 0.2:
        problem.buffers["reach"] = np.array(random.integers(-3, 20), np.int32)
        tokens.append(f"mask(key<=position+reach)_scalar(reach={problem.buffers['reach']})")
        masks.append("key<=position+reach")
    if random.random() < 0.2:
        problem.buffers["gain"] = np.array(pick(random, 0.5, 1.25, -0.75), np.float32)
        tokens.append(f"score(gain*score)_scalar(gain={problem.buffers['gain']})")
        changes.append("gain*score")
    if random.random() < 0.2:
        problem.sink = tensors["sink"] = random.standard_normal(heads_q).astype(np.float32)
    if random.random() < 0.2:
        p, key, offset = (pick(random, 0.1, 0.5, 0.9, 1 / 3, 0.98), int(random.integers(2**63)),
                          int(random.integers(2**40)))
        problem.dropout = (p, key, offset)
        if np.random.default_rng((seed, 2)).random() < 0.5:  # in a tensor; then no number is read
            tensors["rng_state"] = np.array((key, offset), np.int64)
            key += 1
        tokens.append(f"dropout{p}_seed{key}_offset{offset}")
    if random.random() < 0.2:
        problem.scale = float(pick(random, 1.0, 0.25, -0.5, 0.1))
        arguments.append(f"--scale={problem.scale}")
    # A query length that packed tensors do not show.
    if packed_q:
        tokens.append(f"sq{n}")
    if packed_k:
        tokens.append(f"sk{m}")

    for text in masks:
        tree = parse(text)
        problem.mask = ("&&", problem.mask, tree) if problem.mask else tree
    for text in changes:
        problem.score = replace(parse(text), problem.score) if problem.score else parse(text)
    if tokens:
        arguments += ["--problem", "_".join(tokens)]
    for name, x in floats.items():
        tensors[name] = ("bf16", x) if dtype == "bf16" else x.astype(
            np.float16 if dtype == "f16" else np.float32)
    if backward and np.random.default_rng((seed, 1)).random() < 0.3:  # the loss uses LSE
        x = np.full((heads_q, *outer_q) if packed_q else (batch, heads_q, n), np.nan, np.float32)
        for i in rows_q:
            of_rows = (slice(None), i[0]) if packed_q else (i[0], slice(None), i[1])
            x[of_rows] = values.standard_normal(x[of_rows].shape)
        tensors["d_lse"] = x
    order = [str(name) for name in random.permutation(list(tensors))]
    arguments += ["--lse"] + ["--backward"] * backward
    how = ["--threads", str(random.integers(1, 4))]
    if random.random() < 0.4:
        how += ["--isa", pick(random, "portable", "avx2", "avx512")]
    if random.random() < 0.6:
        how += ["--algorithm", pick(random, *(["standard", "flash_attention_2"] if backward else ALGORITHMS))]
    return Case(seed, dtype, backward, {name: tensors[name] for name in order}, arguments, how,
                problem, rows_q, rows_k, packed_q, heads_k)


def replace(tree, score_tree):
    """The tree with every `score` replaced: changes apply one after the other."""
    if tree == ("symbol", "score"):
        return score_tree
    return tuple(replace(x, score_tree) if isinstance(x, tuple) else x for x in tree)
