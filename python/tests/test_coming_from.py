"""The code of docs/coming-from runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "coming-from").glob("*.md"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, tmp_path):
    if page.stem == "jax":
        pytest.importorskip("jax")
    else:
        pytest.importorskip("torch", minversion="2.11" if page.stem == "sdpa" else None)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    code = tmp_path / f"{page.stem}.py"
    code.write_text("\n".join(blocks))
    exec(compile(code.read_text(), str(code), "exec"), {"__name__": page.stem})
