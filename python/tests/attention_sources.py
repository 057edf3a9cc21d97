"""How model types of transformers call attention, by their sources.

A type is like others where each of its methods that ask for the attention function is, annotations
and docstrings aside, a method of a type that was compared: then what it passes is what they pass.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import transformers
from transformers.models.auto import configuration_auto

_MODELS = Path(transformers.__file__).parent / "models"
_ASKED = "ALL_ATTENTION_FUNCTIONS"


class _Plain(ast.NodeTransformer):
    """Leaves out what says nothing about what runs."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns, node.decorator_list = None, []
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.Assign(targets=[node.target], value=node.value)


@cache
def calls(kind: str) -> frozenset[str]:
    """The methods in the files of a model type that ask for the attention function, as text."""
    folder = _MODELS / configuration_auto.model_type_to_module_name(kind)
    methods = [
        method
        for file in sorted(folder.glob("modeling_*.py"))
        for of in ast.parse(file.read_text()).body
        if isinstance(of, ast.ClassDef)
        for method in of.body
        if isinstance(method, ast.FunctionDef)
    ]
    return frozenset(
        ast.dump(_Plain().visit(method))
        for method in methods
        if any(isinstance(n, ast.Name) and n.id == _ASKED for n in ast.walk(method))
    )


def likeness(kind: str, compared: list[str]) -> str | None:
    """What the sources say of a type that was not compared, beside those that were."""
    if not calls(kind):
        return "calls no attention function"
    alike = []
    for method in sorted(calls(kind)):
        found = next((other for other in compared if method in calls(other)), None)
        if found is None:
            return None
        alike.append(found)
    return f"as {', '.join(sorted(set(alike)))}"
