"""A mask as a picture, what of it attn computes, and what that saves. Runs as a script, or cell by cell in an editor.

python examples/mask.py [LENGTH]
"""

# %% A mask is a function: this one sees 4 keys at the start and a causal window
import sys
import timeit
from types import SimpleNamespace

import numpy as np

import attn

n = int(sys.argv[1]) if len(sys.argv) > 1 else 2048
width = n // 8


def mask(s):
    return (s.key < 4) | ((s.key <= s.position) & (s.position - s.key < width))


# %% Of attn's symbols it becomes a formula; of arrays of NumPy it says what each query sees
place = np.arange(n)
seen = mask(SimpleNamespace(position=place[:, None], key=place[None, :]))
print(f"{seen.mean():.1%} of {n} x {n} scores are seen")

# %% attn's own answer: tiles that the mask leaves out (blank) cost nothing, full ones (#) ask it nothing
q, k, v = (np.random.default_rng(0).standard_normal((1, n, 4, 64), np.float32) for _ in range(3))
tile = n // 32
tiles = attn.tiles(q, k, v, mask=mask, block_q=tile, block_k=tile)
print("\n".join(tiles))
print(f"{sum(len(row) - row.count(' ') for row in tiles) / 32**2:.1%} of the tiles are computed")

# %% What it says and how it runs; `attn explain` shows the same, step by step, in a page
plan = attn.plan(q, k, v, mask=mask)
print(plan.problem)
print(plan)

# %% Its speed beside full attention, and that it is right
times = {
    name: min(timeit.repeat(lambda o=options: attn.attention(q, k, v, **o), number=1, repeat=5))
    for name, options in (("full", {}), ("causal", {"causal": True}), ("this mask", {"mask": mask}))
}
for name, seconds in times.items():
    print(f"{name:10} {seconds * 1e3:7.2f} ms  {seconds / times['full']:5.1%} of full")

row = n - 1
scores = np.where(seen[row], k[0, :, 0].astype(float) @ q[0, row, 0] / 8, -np.inf)
weights = np.exp(scores - scores.max())
expected = weights @ v[0, :, 0] / weights.sum()
np.testing.assert_allclose(attn.attention(q, k, v, mask=mask)[0, row, 0], expected, rtol=1e-4, atol=1e-5)
