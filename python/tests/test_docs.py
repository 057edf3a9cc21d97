"""The code that documentation shows runs."""

import doctest
import importlib
import pkgutil
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import attn

ROOT = Path(__file__).parents[2]
# What names of modules that import a framework begin with.
NEED_A_FRAMEWORK = ("dist", "flash_attn", "flex", "hf", "jax", "sdpa", "torch")


def expected(q, k, v, seen, score=lambda x: x, rows=slice(None)):
    """(P, out, lse) of rows of the last head of the last sequence, in double precision.

    seen: of (query, key), which are grids of places.
    """
    q, k, v = (x[-1, :, -1].astype(np.float64) for x in (q, k, v))
    place = np.arange(len(q))
    s = score(q[rows] @ k.T / q.shape[-1] ** 0.5)
    e = np.where(seen(place[rows, None], place[None, :]), np.exp(s), 0)
    sums = e.sum(-1, keepdims=True)
    p = e / sums
    return p, p @ v, np.log(sums[:, 0])


def assert_out(names, seen, score=lambda x: x, rows=slice(None)):
    _, want, _ = expected(*(names[n] for n in "qkv"), seen, score, rows)
    np.testing.assert_allclose(names["out"][-1, rows, -1], want, rtol=0, atol=1e-5)


def causal(i, j):
    return j <= i


def readme_attention(names, printed):
    rows = [0, 3, 1000, 1500, 4095]

    def last_call(i, j):
        return causal(i, j) & ((j < 4) | (i - j < 1024))

    assert_out(names, last_call, rows=rows)
    q, k, v = (names[n] for n in "qkv")
    _, _, lse = expected(q, k, v, last_call, rows=rows)
    np.testing.assert_allclose(names["lse"][-1, -1, rows], lse, rtol=0, atol=1e-5)
    # The call before, whose result the block does not keep.
    call = next(x for x in names["block"].splitlines() if "tanh" in x)
    again = dict(names)
    exec(call, again)
    assert_out(
        again,
        lambda i, j: causal(i, j) & (i - j <= 1024),
        lambda x: 30 * np.tanh(x / 30),
        rows,
    )
    assert "flash_attention_2" in printed


def page_gradients(names, printed):
    q, k, v, out = (names[n] for n in ("q", "k", "v", "out"))
    p, want, lse = expected(q, k, v, causal, lambda x: 30 * np.tanh(x / 30))
    np.testing.assert_allclose(out[-1, :, -1], want, rtol=0, atol=1e-5)
    np.testing.assert_allclose(names["lse"][-1, -1], lse, rtol=0, atol=1e-5)
    d_out = want  # the gradient that the page gives to the call
    q, k, v = (x[-1, :, -1].astype(np.float64) for x in (q, k, v))
    d_p = d_out @ v.T
    d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True))
    d_s *= (1 - np.tanh(q @ k.T / 8 / 30) ** 2) / 8
    for name, gradient in {"q": d_s @ k, "k": d_s.T @ q, "v": p.T @ d_out}.items():
        found = names["gradients"][name][-1, :, -1]
        np.testing.assert_allclose(found, gradient, rtol=0, atol=1e-5)
    assert "flash_attention_2" in printed


def page_tree(names, _):
    # The keys before each draft, and which draft tokens each of its tokens sees.
    sequences = [(100, [[0], [0, 1], [0, 2]]), (50, [[0], [0, 1]])]
    row = 0
    for b, (before, trees) in enumerate(sequences):
        for seen in trees:
            keys = [*range(before), *(before + t for t in seen)]
            k, v = (names[n][b, keys, -1].astype(np.float64) for n in "kv")
            e = np.exp(k @ names["drafts"][row, -1] / 8)
            np.testing.assert_allclose(names["out"][row, -1], e @ v / e.sum(), rtol=0, atol=1e-5)
            row += 1
    assert row == len(names["out"])


def page_cache(names, _):
    # 34 bytes a block: an f16 scale and 32 integers.
    blocks = names["cache"].reshape(*names["cache"].shape[:-1], -1, 34)
    scales = blocks[..., :2].copy().view(np.float16).astype(np.float64)
    k = (blocks[..., 2:].view(np.int8) * scales).reshape(names["k"].shape)
    assert np.abs(k - names["k"]).max() < 0.05
    assert_out({**names, "k": k}, causal)


# What each block of Python on a page must have computed, in their order.
CHECKS = {
    "README.md": [readme_attention],
    "docs/python.md": [
        page_gradients,
        lambda names, _: assert_out(names, lambda i, j: i // 256 == j // 256),
        lambda names, _: assert_out(names, lambda i, j: causal(i, j) & (i - j < 66)),
        page_cache,
        page_tree,
        lambda names, _: assert_out(names, causal),
    ],
}


@pytest.mark.parametrize("page", CHECKS)
def test_page(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    np.random.seed(len(page))
    names = {}
    for block, check in zip(blocks, CHECKS[page], strict=True):
        names.pop("out", None)
        names["block"] = block
        exec(block, names)
        check(names, capsys.readouterr().out)


def test_example(monkeypatch, capsys):
    """The tiles that attn names are those of the mask that NumPy sees, score by score."""
    n, tile = 256, 8
    monkeypatch.setattr(sys, "argv", ["mask.py", str(n)])
    names = runpy.run_path(str(ROOT / "examples/mask.py"))
    printed = capsys.readouterr().out
    i, j = np.indices((n, n))
    seen = (j < 4) | ((j <= i) & (i - j < n // 8))
    shares = seen.reshape(n // tile, tile, n // tile, tile).mean(axis=(1, 3))
    wanted = ["".join(" " if x == 0 else "#" if x == 1 else "." for x in row) for row in shares]
    assert names["tiles"] == wanted
    assert "\n".join(wanted) in printed
    assert f"{seen.mean():.1%} of {n} x {n} scores are seen" in printed
    assert f"{(shares > 0).mean():.1%} of the tiles are computed" in printed


def test_docstrings():
    examples = 0
    for module in pkgutil.iter_modules(attn.__path__):
        if module.name in ("_attn", "__main__") or module.name.startswith(NEED_A_FRAMEWORK):
            continue
        result = doctest.testmod(importlib.import_module(f"attn.{module.name}"))
        assert result.failed == 0
        examples += result.attempted
    result = doctest.testmod(attn)
    assert result.failed == 0
    assert examples + result.attempted >= 6
