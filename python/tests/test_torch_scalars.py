"""Numbers that come with the call beside numbers of the text, on tensors of each device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import attn.torch  # noqa: E402
from attn import _attn  # noqa: E402
from torch_problems import DEVICES  # noqa: E402

# Of numbers w and f: a formula that reads them, its arrays, and a text in which they stand.
PAIRS = {
    "a window": (
        "mask", "position - key < w", lambda w, f: {"w": w}, lambda w, f: f"position - key < {w}"
    ),
    "a modulus": ("mask", "key % w != 1", lambda w, f: {"w": w}, lambda w, f: f"key % {w} != 1"),
    "a factor": ("score", "score * f", lambda w, f: {"f": f}, lambda w, f: f"score * {f!r}"),
    "both": (
        "score",
        "select(key < w, score * f, score - to_float(key) * f)",
        lambda w, f: {"w": w, "f": f},
        lambda w, f: f"select(key < {w}, score * {f!r}, score - to_float(key) * {f!r})",
    ),
    "a quotient": ("score", "score / f", lambda w, f: {"f": f}, lambda w, f: f"score / {f!r}"),
}  # fmt: skip

# Roundings of one factor of the scores; of bf16 one of the result as well.
NEAR = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2**-7, "atol": 2**-9},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_results_are_those_of_a_literal(name, dtype, device):
    """To the bit, but for scores on a GPU: a literal is multiplied by the scale in advance."""
    kind, text, numbers, literal = PAIRS[name]
    torch.manual_seed(len(name))
    leaves = [torch.randn(1, n, 2, 64, dtype=dtype, device=device) for n in (70, 90, 90)]
    d_out = torch.randn(1, 70, 2, 64, dtype=dtype, device=device)

    def results(formula):
        q, k, v = (t.detach().requires_grad_() for t in leaves)
        out = attn.torch.attention(q, k, v, deterministic=True, **{kind: formula})
        return [out, *torch.autograd.grad(out, (q, k, v), d_out)]

    seen = []
    plans = None
    for w, f in ((5, 0.75), (40, 1.0), (91, -2.5)):
        found = results(attn.Formula(text, **numbers(w, f)))
        plans = plans or _attn.plans_made()
        assert _attn.plans_made() == plans, "another value is planned anew"
        seen.append((found, literal(w, f)))
    for found, formula in seen:
        for a, b in zip(found, results(formula), strict=True):
            if device == "cuda" and kind == "score":
                torch.testing.assert_close(a, b, **NEAR[dtype])
            else:
                assert torch.equal(a, b)
    assert not torch.equal(seen[0][0][0], seen[1][0][0])
