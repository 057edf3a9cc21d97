"""What needs PyTorch or JAX is skipped where NumPy is alone; frameworks.sh must select its name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Words of -k, for an environment with all, and for one with JAX alone.
WORDS = {
    "torch": r"^  tests='([^']* or [^']*)'$",
    "jax": r"^  tests=(jax)$",
}


def asking(library):
    """(words of its place, its place) of each function that is skipped without the library."""
    for path in sorted(HERE.glob("test_*.py")):
        if path == Path(__file__):
            continue
        tree = ast.parse(path.read_text())
        classes = [n for n in tree.body if isinstance(n, ast.ClassDef)]
        for place, body in [("", tree.body), *[(c.name, c.body) for c in classes]]:
            for f in body:
                if isinstance(f, ast.FunctionDef) and asks(f, library):
                    yield f"{path.stem} {place} {f.name}".lower(), f"{path.name}:{f.lineno}"


def asks(function, library):
    """Whether it does so whatever its arguments are, which are in a test's name themselves."""
    always = [n for n in function.body if not isinstance(n, (ast.If, ast.FunctionDef))]
    for node in (n for statement in always for n in ast.walk(statement)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("importorskip"):
            given = node.args[0]
            if isinstance(given, ast.Constant) and given.value == library:
                return True
    return False


@pytest.mark.parametrize("library", WORDS)
def test_frameworks_runs_what_is_skipped_without(library):
    (words,) = re.findall(WORDS[library], (HERE / "frameworks.sh").read_text(), re.MULTILINE)
    found = [*asking(library)]
    assert len(found) > 3
    left_out = [at for names, at in found if not any(w in names for w in words.split(" or "))]
    assert left_out == []
