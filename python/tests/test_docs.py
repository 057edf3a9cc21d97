"""The code that documentation shows runs."""

import doctest
import importlib
import pkgutil
import re
import runpy
import sys
from pathlib import Path

import pytest

import attn

ROOT = Path(__file__).parents[2]
NEED_A_FRAMEWORK = ("flash_attn", "flex", "hf", "jax", "sdpa", "torch", "torch_ops", "torch_trace")


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_page(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert blocks
    names = {}
    for block in blocks:
        exec(block, names)
    assert "flash_attention_2" in capsys.readouterr().out


def test_example(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mask.py", "256"])
    runpy.run_path(str(ROOT / "examples/mask.py"))
    assert "17.3% of the tiles are computed" in capsys.readouterr().out


def test_docstrings():
    examples = 0
    for module in pkgutil.iter_modules(attn.__path__):
        if module.name in ("_attn", "__main__", *NEED_A_FRAMEWORK):
            continue
        result = doctest.testmod(importlib.import_module(f"attn.{module.name}"))
        assert result.failed == 0
        examples += result.attempted
    result = doctest.testmod(attn)
    assert result.failed == 0
    assert examples + result.attempted >= 6
