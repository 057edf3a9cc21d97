"""Random problems, forward and backward, against attention in fp64 NumPy."""

import os

import pytest

import oracle

SEED = int(os.environ.get("ATTN_TEST_SEED", "20261200"))
COUNT = int(os.environ.get("ATTN_TEST_PROBLEMS", "60"))


@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_numpy(seed):
    assert oracle.failures(seed, oracle.Library()) == []


class Torch(oracle.Library):
    def __init__(self, device="cpu"):
        self.device = device

    def buffer(self, x):
        import torch

        return torch.from_numpy(x).to(self.device)

    def tensor(self, x, dtype):
        import torch

        types = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
        return torch.from_numpy(x).to(device=self.device, dtype=types[dtype])

    def numpy(self, x):
        import torch

        assert isinstance(x, torch.Tensor)
        assert x.device.type == self.device
        return x.to(torch.float64).cpu().numpy()


def on_devices(first, count, on_a_gpu):
    """Seeds from `first` on for tensors of the CPU, and then for those of a GPU, which compiles a
    kernel for each.
    """
    seeds = [("cpu", seed) for seed in range(first, first + count)]
    gpu = [("cuda", seed) for seed in range(first + count, first + count + on_a_gpu)]
    return pytest.mark.parametrize(("device", "seed"), seeds + gpu)


def needs_torch(device):
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")


@on_devices(SEED + COUNT, COUNT, COUNT // 3)
def test_torch(device, seed):
    needs_torch(device)
    assert oracle.failures(seed, Torch(device)) == []


class TorchGradients(Torch):
    """attn.torch, where PyTorch asks for the gradients."""

    def results(self, q, k, v, d_out, d_lse, wanted, options):
        import torch

        import attn.torch

        score = options.get("score")
        leaves = {"q": q, "k": k, "v": v}
        if d_out is not None:
            leaves |= {n: options[n] if n == "sink" else score.buffers[n] for n in wanted[3:]}
            leaves = {n: t.detach().requires_grad_() for n, t in leaves.items()}
        given = dict(options)
        if "sink" in leaves:
            given["sink"] = leaves["sink"]
        if score is not None:
            read = {n: leaves.get(n, x) for n, x in score.buffers.items()}
            given["score"] = attn.Formula(score.text, **read)
        q, k, v = (leaves[n] for n in "qkv")
        out, lse = attn.torch.attention(q, k, v, return_lse=True, **given)
        results = {"o": out.detach(), "lse": lse.detach()}
        if d_out is not None:
            ends, starts = ([out], [d_out]) if d_lse is None else ([out, lse], [d_out, d_lse])
            found = torch.autograd.grad(ends, list(leaves.values()), starts)
            results |= {f"d{n}": x for n, x in zip(leaves, found, strict=True)}
        return results


@on_devices(SEED + 4 * COUNT, COUNT // 3, COUNT // 3)
def test_torch_gradients(device, seed):
    needs_torch(device)
    assert oracle.failures(seed, TorchGradients(device)) == []


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


class JaxGradients(Jax):
    """attn.jax, compiled, where JAX asks for the gradients."""

    def results(self, q, k, v, d_out, d_lse, wanted, options):
        import jax

        import attn.jax

        score = options.get("score")
        tensors = {"q": q, "k": k, "v": v}
        tensors |= {n: options[n] if n == "sink" else score.buffers[n] for n in wanted[3:]}

        def function(tensors):
            given = dict(options)
            if "sink" in tensors:
                given["sink"] = tensors["sink"]
            if score is not None:
                given["score"] = attn.Formula(
                    score.text, **{n: tensors.get(n, x) for n, x in score.buffers.items()}
                )
            q, k, v = (tensors[n] for n in "qkv")
            return attn.jax.attention(q, k, v, return_lse=True, **given)

        if d_out is None:
            out, lse = jax.jit(function)(tensors)
            return {"o": out, "lse": lse}
        (out, lse), transposed = jax.vjp(jax.jit(function), tensors)
        d_lse = jax.numpy.zeros_like(lse) if d_lse is None else d_lse
        (gradients,) = transposed((d_out, d_lse))
        return {"o": out, "lse": lse} | {f"d{n}": gradients[n] for n in wanted}


@pytest.mark.parametrize("seed", range(SEED + 3 * COUNT, SEED + 3 * COUNT + COUNT // 3))
def test_jax_gradients(seed):
    pytest.importorskip("jax")
    assert oracle.failures(seed, JaxGradients()) == []
