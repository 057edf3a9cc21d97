"""docs/transformers.md on types without a small model says what their sources say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import attention_sources  # noqa: E402
import toy_models  # noqa: E402
import toy_special  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs/transformers.md").read_text()


def named(group):
    """The types of a group, each with what stands in brackets behind it."""
    section = re.search(rf"\n## {group}: (\d+)\n(.*?)(?=\n## |\Z)", PAGE, re.DOTALL)
    text = section[2].partition("\n\n")[2].replace("\n", " ")
    found = dict(re.findall(r"([\w.-]+)(?: \(([^)]*)\))?(?:,|\s*$)", text))
    assert len(found) == int(section[1])
    return found


def test_what_calls_attention_and_what_is_left_out():
    """Annotations and names of classes are; what is passed is not."""
    calls = attention_sources.calls
    assert calls("mistral") & calls("mixtral")
    assert not calls("llama") & calls("gpt2")
    assert attention_sources.likeness("bit", ["llama"]) == "calls no attention function"
    assert attention_sources.likeness("mixtral", ["mistral"]) == "as mistral"
    assert attention_sources.likeness("mixtral", ["gpt2"]) is None


def test_special_models_are_of_types_that_there_are():
    if f"transformers {transformers.__version__}," not in PAGE:
        pytest.skip("the names are those of another transformers")
    named_here = {*toy_special.CONFIGURATIONS, *toy_special.CLASSES, *toy_special.INPUTS}
    assert named_here <= set(toy_models.kinds())


def test_the_page_says_what_the_sources_say():
    if f"transformers {transformers.__version__}," not in PAGE:
        pytest.skip(f"transformers is {transformers.__version__}, of which the page says nothing")
    alike, without, left = map(named, ("Alike", "Without a call", "Not compared"))
    assert not left
    others = named("Without attention by attn") | named("Not taken by transformers")
    apart = {**alike, **without, **others}
    compared = sorted(set(toy_models.kinds()) - set(apart))
    for kind in (*alike, *without):
        said = "calls no attention function" if kind in without else None
        said = f"as {alike[kind]}" if kind in alike else said
        assert attention_sources.likeness(kind, compared) == said, kind
