"""What importing attn imports, in processes of their own, the names it then shows, and which file
imports which.
"""

from __future__ import annotations

import ast
import graphlib
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import attn

EAGER = """
import sys
import torch
before = set(sys.modules)
import attn.torch
q = torch.randn(1, 4, 2, 8, requires_grad=True)
attn.torch.attention(q, q, q, mask=lambda s: s.key <= s.query).sum().backward()
attn.torch.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
attn.torch.flex_attention(q, q, q, lambda s, b, h, i, j: s / 2).sum().backward()
mask = attn.torch.create_block_mask(lambda b, h, i, j: i >= j, None, None, 2, 2)
attn.torch.flex_attention(q[:, :2], q[:, :2], q[:, :2], block_mask=mask)
print(*sorted(set(sys.modules) - before))
"""


def test_torch_is_all_that_an_eager_call_needs():
    """torch._dynamo, sympy and what else torch.compile and FlexAttention need take seconds."""
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", EAGER], capture_output=True, text=True, check=True)
    new = [
        name
        for name in done.stdout.split()
        if name.partition(".")[0] not in ("attn", "nanobind_backend")
    ]
    assert len(new) < 20, new


def test_every_name_is_listed():
    assert {*attn.__all__, "dist", "torch", "jax", "hf", "flex", "flash_attn"} <= {*dir(attn)}
    for name in attn.__all__:
        assert getattr(attn, name) is not None


# What users import, and what they take from it.
PUBLIC = {
    "attn.dist": ["Plan", "attention", "plan"],
    "attn.flex": ["BlockMask", "create_block_mask", "flex_attention"],
    "attn.torch": [
        "attention", "create_block_mask", "flex_attention", "merge", "scaled_dot_product_attention",
    ],
    "attn.flash_attn": ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"],
    "attn.flash_attn.bert_padding": ["pad_input", "unpad_input"],
    "attn.flash_attn.flash_attn_3": ["flash_attn_func", "flash_attn_with_kvcache"],
    "attn.flash_attn.flash_attn_interface": ["flash_attn_func", "flash_attn_qkvpacked_func"],
    "attn.flash_attn.layers.rotary": ["apply_rotary_emb"],
    "attn.hf": ["register", "set_paged", "shard"],
    "attn.jax": ["attention", "dot_product_attention", "merge"],
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names(name):
    pytest.importorskip("jax" if name == "attn.jax" else "torch")
    for wanted in PUBLIC[name]:
        assert callable(getattr(importlib.import_module(name), wanted))


def imports() -> dict[str, set[str]]:
    """The modules of attn, and those that each names: at its top, in its functions, for types.

    `from . import _attn` names the extension module. That a module of a package runs the package's
    __init__ first is no import of its own.
    """
    root = Path(attn.__file__).parent
    files = {}
    for file in root.rglob("*.py"):
        parts = file.relative_to(root.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    result: dict[str, set[str]] = {}
    for module, file in files.items():
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        found = result[module] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                near = package.split(".")[: len(package.split(".")) - node.level + 1]
                source = ".".join([*(near if node.level else []), *filter(None, [node.module])])
                for name in node.names:
                    whole = f"{source}.{name.name}"
                    found.add(whole if whole in files or name.name == "_attn" else source)
        found &= files.keys()
    return result


def test_no_module_imports_itself_through_others():
    found = imports()
    assert len(found) > 50, found.keys()
    assert found["attn.torch.flex"] >= {"attn.errors", "attn.torch.calls", "attn.trace.tracer"}
    graphlib.TopologicalSorter(found).prepare()  # a CycleError names the modules of a circle
