"""The page that `sweep_transformers.py` writes."""

from __future__ import annotations

import textwrap

import transformers

import attention_sources

WRONG = ("differs", "crashes", "returns")


def summary(result: dict[str, str]) -> str:
    """One line: what is not equal, refused or absent weights aside."""
    absent = ("refused", "None")
    others = {
        name: text
        for name, text in result.items()
        if text != "equal" and not (name == "output_attentions" and text.startswith(absent))
    }
    return "; ".join(f"{n}: {t}" if n else t for n, t in others.items()) or "equal"


GROUPS = {
    "Equal": ("equal", 'as "eager" in all that was compared: every type not named below'),
    "Refused": ("refused", "what is refused, with the message; the rest is equal"),
    "Wrong": (WRONG, "must be empty"),
    "Without attention by attn": ("never calls attn", "the model computes attention itself"),
    "Not taken by transformers": ("not taken", "the model knows no other implementations"),
    "Alike": (
        "as ",
        "no small model was found, but each method that asks for the attention function is that of "
        "a type that was compared, in brackets (`attention_sources.py`)",
    ),
    "Without a call": (
        "calls no attention function",
        "no small model was found, and the type's own files ask for no attention function; models "
        "within it are of other types",
    ),
    "Not compared": ("not built", "no small model was found, or it takes other inputs"),
}


def group_of(result: dict[str, str]) -> str:
    """The first of these that any step is in; output_attentions may be refused everywhere."""
    texts = [t for n, t in result.items() if n != "output_attentions" or t.startswith(WRONG)]
    for name in ("Wrong", "Refused", *GROUPS):
        if any(text.startswith(GROUPS[name][0]) for text in texts or ["equal"]):
            return name
    raise ValueError(f"{result} is in none of {list(GROUPS)}")


def refusals(result: dict[str, str]) -> str:
    """Each message once, behind the steps that it ends."""
    steps: dict[str, list[str]] = {}
    for name, text in result.items():
        if text != "equal" and (name != "output_attentions" or text.startswith(WRONG)):
            steps.setdefault(text.removeprefix("refused: "), []).append(name)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in steps.items())


def table(results: dict[str, dict[str, str]], known: list[str]) -> str:
    """docs/transformers.md."""
    groups: dict[str, list[str]] = {name: [] for name in GROUPS}
    left = [kind for kind in results if group_of(results[kind]) == "Not compared"]
    compared = sorted(kind for kind in results if group_of(results[kind]) in ("Equal", "Refused"))
    likeness = {kind: attention_sources.likeness(kind, compared) for kind in left}
    results = results | {kind: {"": text} for kind, text in likeness.items() if text}
    for kind in sorted(results):
        groups[group_of(results[kind])].append(kind)
    lines = [
        "# Architectures of transformers under attn",
        "",
        "What `attn.hf` ([python.md](python.md#transformers)) does in each architecture of "
        f"transformers {transformers.__version__}, beside",
        '"eager", in a small random model in float32: outputs and gradients with and without '
        "padding on the left, eight tokens that",
        "are generated with a dynamic and with a static cache, padded and not. "
        "`output_attentions=True` is refused;",
        "bridgetower, whose attention is not told of it, returns None for weights.",
        "",
        "```",
        "PYTHONPATH=build/python/package python python/tests/sweep_transformers.py "
        "--out docs/transformers.md",
        "```",
        "",
        f"{len(results)} of {len(known)} model types that have a model were run.",
    ]
    for name, (_, meaning) in GROUPS.items():
        members = groups[name]
        lines += ["", f"## {name}: {len(members)}", f"{meaning[0].upper()}{meaning[1:]}."]
        lines += [""] if members and name != "Equal" else []
        if name in ("Refused", "Wrong"):
            if members:
                lines += ["| model type | |", "|---|---|"]
            alike: dict[str, list[str]] = {}
            for kind in members:
                alike.setdefault(refusals(results[kind]), []).append(kind)
            lines += [f"| {', '.join(kinds)} | {text} |" for text, kinds in alike.items()]
        elif name == "Alike":
            named = [f"{kind} ({results[kind][''].removeprefix('as ')})" for kind in members]
            lines += textwrap.wrap(", ".join(named), 119, break_on_hyphens=False)
        elif members and name != "Equal":
            lines += textwrap.wrap(", ".join(members), 119, break_on_hyphens=False)
    return "\n".join(lines) + "\n"
