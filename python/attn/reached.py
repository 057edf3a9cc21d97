"""Which buffers a gradient reaches: those that the score reads. A mask compares what it reads, and
a comparison has no gradient.
"""

from __future__ import annotations


def reads(formula: str, name: str) -> bool:
    """Whether the text of a formula reads the buffer, as `name[key]`."""
    text = "".join(formula.split())
    at = text.find(name + "[")
    while at > 0 and (text[at - 1].isalnum() or text[at - 1] == "_"):  # of a longer name
        at = text.find(name + "[", at + 1)
    return at >= 0


def by_scores(problem: str, name: str) -> bool:
    """Whether a score of the descriptor (docs/descriptors.md) reads the buffer. The tokens `bias`
    and `alibi` are scores too.
    """
    start = 0 if problem.startswith("mask(") else problem.find("_mask(") + 1
    if start == 0 and not problem.startswith("mask("):
        return True  # all buffers are those of scores
    end = problem.find(")_", start)  # no formula has these two
    rest = problem[:start] + (problem[end + 2 :] if end >= 0 else "")
    tokens = rest.split("_")
    if name == "slopes" and "alibi" in tokens:
        return True
    if name == "bias" and any(t.startswith("bias") and t[4:5].isdigit() for t in tokens):
        return True
    return reads(rest, name)
