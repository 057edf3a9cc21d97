"""Random problems of tests/numpy through the Python package, judged by its error rule."""

from __future__ import annotations

import re

import numpy as np

import attn
import fuzz
import problems

TENSORS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "page_table", "sink")


def text(tree):
    """A tree of tests/numpy/expression.py as text."""
    op, *operands = tree
    if op == "symbol":
        return operands[0]
    if op in ("int", "boolean", "inf"):
        return {"int": str, "boolean": lambda x: str(x).lower(), "inf": str}[op](
            *operands or ["inf"]
        )
    if op == "float":
        return f"{float(operands[0])!r}"
    if op == "load":
        return f"{operands[0]}[{', '.join(map(text, operands[1:]))}]"
    if op in ("-x", "!x"):
        return f"({op[0]}({text(operands[0])}))"
    if op.isidentifier():
        return f"{op}({', '.join(map(text, operands))})"
    return f"({text(operands[0])} {op} {text(operands[1])})"


def options(case):
    """The keywords of attn.attention for a case."""
    problem = case.problem
    found = {name: case.tensors[name] for name in TENSORS if name in case.tensors}
    for name, tree in (("mask", problem.mask), ("score", problem.score)):
        if tree is not None:
            # A buffer belongs to one of the two; names that neither reads are refused.
            formula = text(tree)
            read = {
                name: x.item() if x.ndim == 0 else x
                for name, x in problem.buffers.items()
                if re.search(rf"\b{name}\b", formula)
            }
            found[name] = attn.Formula(formula, **read)
    if problem.scale is not None:
        found["scale"] = problem.scale
    if problem.dropout is not None:
        found["dropout"], seed, offset = problem.dropout
        found["rng"] = (seed, offset)
    if "--problem" in case.arguments:  # lengths that packed tensors do not show
        for token in case.arguments[case.arguments.index("--problem") + 1].split("_"):
            if re.fullmatch(r"s[qk]\d+", token):
                found[f"max_seqlen_{token[1]}"] = int(token[2:])
    return found


class Library:
    """How a case's arrays become those of a library, and its results NumPy's."""

    def buffer(self, x):
        return x

    def tensor(self, x, dtype):
        """Q, K, V or dO: float32 numbers of "f32", "bf16" or "f16"."""
        if dtype == "bf16":
            import ml_dtypes

            return x.astype(ml_dtypes.bfloat16)
        return x.astype({"f32": np.float32, "f16": np.float16}[dtype])

    def numpy(self, x):
        return np.asarray(x, np.float64)

    def results(self, q, k, v, d_out, d_lse, wanted, options):
        """{name: result} of a problem; d_out is None where no gradients are asked for."""
        out, lse = attn.attention(q, k, v, return_lse=True, **options)
        results = {"o": out, "lse": lse}
        if d_out is not None:
            gradients = attn.attention_backward(
                d_out, q, k, v, out, lse, d_lse=d_lse, gradients=wanted, **options
            )
            results |= {f"d{name}": x for name, x in gradients.items()}
        return results


def run(case, library):
    """{name: result} of a case, as tests/numpy/fuzz.py judges it."""
    found = {}
    for name, x in options(case).items():
        if isinstance(x, attn.Formula):
            buffers = {
                n: library.buffer(a) if isinstance(a, np.ndarray) else a
                for n, a in x.buffers.items()
            }
            x = attn.Formula(x.text, **buffers)
        found[name] = library.buffer(x) if isinstance(x, np.ndarray) else x
    q, k, v, *d_out = (
        library.tensor(np.asarray(x[1] if isinstance(x, tuple) else x, np.float32), case.dtype)
        for x in (case.tensors[n] for n in ("q", "k", "v", "d_o") if n in case.tensors)
    )
    wanted = ["q", "k", "v"] + (["sink"] if "sink" in found else [])
    if "score" in found:  # numbers have no gradient
        wanted += [n for n, x in found["score"].buffers.items() if not isinstance(x, (int, float))]
    d_lse = case.tensors.get("d_lse") if case.backward else None
    d_lse = None if d_lse is None else library.buffer(d_lse)
    results = library.results(q, k, v, d_out[0] if case.backward else None, d_lse, wanted, found)
    return {name: library.numpy(x) for name, x in results.items()}


def failures(seed, library):
    """What is wrong with problem `seed`."""
    case = problems.make(seed)
    found, wrong = fuzz.measure(case, run(case, library))
    failed, _ = fuzz.judge(case, found)
    # As in fuzz.py: the rule compares maxima, which are a matter of luck over few numbers.
    for draw in range(1, fuzz.REDRAWS):
        if wrong or not failed:
            break
        again = problems.make(seed, draw)
        more, wrong = fuzz.measure(again, run(again, library))
        found = {n: tuple(map(max, found[n], more[n])) for n in found}
        failed, _ = fuzz.judge(case, found)
    return wrong + failed
