"""Random problems, forward and backward, against attention in fp64 NumPy."""

import os

import pytest

import oracle

SEED = 20261200
COUNT = int(os.environ.get("ATTN_TEST_PROBLEMS", "60"))


@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_numpy(seed):
    assert oracle.failures(seed, oracle.Library()) == []


class Torch(oracle.Library):
    def buffer(self, x):
        import torch

        return torch.from_numpy(x)

    def tensor(self, x, dtype):
        import torch

        types = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
        return torch.from_numpy(x).to(types[dtype])

    def numpy(self, x):
        import torch

        assert isinstance(x, torch.Tensor)
        return x.to(torch.float64).numpy()


@pytest.mark.parametrize("seed", range(SEED + COUNT, SEED + 2 * COUNT))
def test_torch(seed):
    pytest.importorskip("torch")
    assert oracle.failures(seed, Torch()) == []


class Jax(oracle.Library):
    def buffer(self, x):
        import jax

        return jax.numpy.asarray(x)

    def tensor(self, x, dtype):
        import jax

        types = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
        return jax.numpy.asarray(x).astype(types[dtype])

    def numpy(self, x):
        import jax

        assert isinstance(x, jax.Array)
        return super().numpy(x)


@pytest.mark.parametrize("seed", range(SEED + 2 * COUNT, SEED + 3 * COUNT))
def test_jax(seed):
    pytest.importorskip("jax")
    assert oracle.failures(seed, Jax()) == []
