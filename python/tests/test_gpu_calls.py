"""attn.compile, attn.merge, attn.quantize and CuPy on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import attn  # noqa: E402
import attn.torch  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

# Kernels of a GPU are compiled by attn.compile alone: the folder of the cache does not grow after
# it, and the first call may be part of a graph.
AFTER_COMPILE = """
import os, sys, torch, attn
def kernels():
    return sum(len(files) for _, _, files in os.walk(sys.argv[1]))
def normal(n):
    return torch.randn(2, n, 4, 64, device="cuda", dtype=torch.bfloat16)
found = []
for n_q, options in ((300, dict(causal=True)), (1, {}), (300, dict(mask="key % 3 != 1"))):
    q, k, v = normal(n_q), normal(300), normal(300)
    d_out, before = normal(n_q), kernels()
    call = attn.compile(q, k, v, backward=True, **options)
    compiled = kernels()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = call(q, k, v, return_lse=True)
        gradients = call.backward(d_out, q, k, v, out, lse)
    graph.replay()
    wanted, wanted_lse = attn.attention(q, k, v, return_lse=True, **options)
    assert torch.equal(out, wanted)
    again = attn.attention_backward(d_out, q, k, v, wanted, wanted_lse, **options)
    for name, gradient in gradients.items():  # dQ may be summed in another order
        torch.testing.assert_close(gradient, again[name], atol=2e-2, rtol=2e-2)
    found.append((before < compiled, compiled == kernels()))
assert all(map(all, found)), found
"""


def test_nothing_is_compiled_after_attn_compile(tmp_path):
    command = [sys.executable, "-c", AFTER_COMPILE, str(tmp_path)]
    environment = {**os.environ, "ATTN_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_merge(dtype):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 70, 3, 64, device="cuda").to(dtype) for _ in range(3))
    parts = [
        attn.attention(q, k, v, mask=mask, return_lse=True)
        for mask in ("key % 3 == 0", "key < 0", "key % 3 != 0")
    ]
    out, lse = attn.merge(parts)
    assert out.is_cuda
    assert out.dtype == dtype
    wanted, wanted_lse = attn.merge([(o.cpu(), x.cpu()) for o, x in parts])
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(out.cpu(), wanted, rtol=2 * rounding, atol=1e-5)
    torch.testing.assert_close(lse.cpu(), wanted_lse, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scales", ["row", "block", "head", "tensor"])
def test_quantize(scales):
    torch.manual_seed(0)
    x = torch.randn(2, 70, 3, 64, device="cuda")
    shape = {"head": (2, 3), "tensor": (1,)}.get(scales, (2, 70, 3))
    made = []
    for device in ("cuda", "cpu"):
        out, scale = torch.zeros(x.shape, dtype=torch.uint8, device=device), torch.zeros(shape)
        scale = scale.to(device)
        assert attn.quantize(x.to(device), "e4m3", out, scale, scales=scales, block=16) is out
        made.append((out.cpu(), scale.cpu()))
    assert all(map(torch.equal, *made))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cupy(dtype):
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 70, 4, 64)).astype(dtype) for _ in range(3))
    ids = (np.arange(2 * 70, dtype=np.int32) // 9).reshape(2, 70)
    on_gpu = [cupy.asarray(x) for x in (q, k, v)]

    def options(ids):
        formula = attn.Formula("ids[batch, query] >= ids[batch, key] - reach", ids=ids, reach=2)
        return {"mask": formula, "softcap": 5.0}

    with cupy.cuda.Stream() as stream:
        out, lse = attn.attention(*on_gpu, return_lse=True, **options(cupy.asarray(ids)))
        gradients = attn.attention_backward(out, *on_gpu, out, lse, **options(cupy.asarray(ids)))
        merged, _ = attn.merge([(out, lse), (out, lse)])
        stream.synchronize()
    assert isinstance(out, cupy.ndarray)
    double = [x.astype(np.float64) for x in (q, k, v)]
    exact, exact_lse = attn.attention(*double, return_lse=True, **options(ids))
    wanted = attn.attention_backward(exact, *double, exact, exact_lse, **options(ids))
    tolerance = {"float32": 2e-5, "float16": 5e-3}[dtype]
    pairs = [(out, exact), (lse, exact_lse), (merged, exact)]
    pairs += [(gradients[name], wanted[name]) for name in "qkv"]
    for found, truth in pairs:
        error = np.abs(cupy.asnumpy(found).astype(np.float64) - truth).max()
        assert error <= tolerance * max(1, np.abs(truth).max())
