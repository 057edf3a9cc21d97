"""Multi-head latent attention (DeepSeek-V2): two dot products in one, head_dim unlike head_dim_v.

The expected values keep the two apart: score = scale (q_nope . k_nope + q_rope . k_rope), one head
at a time in double precision, with rotary positions as products of complex numbers.
"""

from __future__ import annotations

import numpy as np
import pytest

import attn

BATCH, LENGTH, HEADS = 2, 37, 4
# Latent, without position, rotary, of V. Heads end at 512: absorbed, DeepSeek-V2 would need
# 512 + 64, and has a smaller latent here.
SIZES = {"small": (20, 12, 8, 16), "DeepSeek-V2": (448, 128, 64, 128)}


def rotated(x):
    """Rotary positions: pairs (x[2i], x[2i + 1]) of row n turn by n / 10000^(2i / dim)."""
    rows, dim = x.shape[1], x.shape[-1]
    angles = np.arange(rows)[:, None] / 10000.0 ** (np.arange(0, dim, 2) / dim)
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[None, :, None]
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


class Layer:
    """Random activations and weights of a layer, as attention meets them."""

    def __init__(self, sizes, seed):
        self.latent, self.nope, self.rope, self.dim_v = sizes
        random = np.random.default_rng(seed)
        latent = random.standard_normal((BATCH, LENGTH, self.latent))
        self.up_k, self.up_v = (
            random.standard_normal((HEADS, self.latent, dim)) / self.latent**0.5
            for dim in (self.nope, self.dim_v)
        )
        self.q_nope = random.standard_normal((BATCH, LENGTH, HEADS, self.nope))
        self.q_rope = rotated(random.standard_normal((BATCH, LENGTH, HEADS, self.rope)))
        self.k_rope = rotated(random.standard_normal((BATCH, LENGTH, 1, self.rope)))
        self.latents = latent[:, :, None]
        self.k_nope = np.einsum("bnol,hld->bnhd", self.latents, self.up_k)
        self.v = np.einsum("bnol,hld->bnhd", self.latents, self.up_v)
        self.d_out = random.standard_normal((BATCH, LENGTH, HEADS, self.dim_v))
        self.scale = (self.nope + self.rope) ** -0.5

    def queries(self):
        return np.concatenate([self.q_nope, self.q_rope], -1)

    def keys(self):
        """The rotary part is one for all heads."""
        shared = np.broadcast_to(self.k_rope, (BATCH, LENGTH, HEADS, self.rope))
        return np.concatenate([self.k_nope, shared], -1)

    def expected(self):
        """out, and {name: gradient} of the parts, each head and sequence by itself."""
        out = np.zeros((BATCH, LENGTH, HEADS, self.dim_v))
        parts = ("q_nope", "q_rope", "k_nope", "k_rope", "v")
        gradients = {name: np.zeros_like(getattr(self, name)) for name in parts}
        seen = np.tri(LENGTH, dtype=bool)
        for b, h in np.ndindex(BATCH, HEADS):
            q_nope, q_rope, k_nope, v = (
                getattr(self, name)[b, :, h] for name in ("q_nope", "q_rope", "k_nope", "v")
            )
            k_rope = self.k_rope[b, :, 0]
            scores = self.scale * (q_nope @ k_nope.T + q_rope @ k_rope.T)
            p = np.exp(np.where(seen, scores - scores.max(-1, keepdims=True), -np.inf))
            p /= p.sum(-1, keepdims=True)
            out[b, :, h] = p @ v
            d_out = self.d_out[b, :, h]
            d_p = d_out @ v.T
            d_s = self.scale * p * (d_p - (p * d_p).sum(-1, keepdims=True))
            gradients["q_nope"][b, :, h] = d_s @ k_nope
            gradients["q_rope"][b, :, h] = d_s @ k_rope
            gradients["k_nope"][b, :, h] = d_s.T @ q_nope
            gradients["k_rope"][b, :, 0] += d_s.T @ q_rope  # of all heads
            gradients["v"][b, :, h] = p.T @ d_out
        return out, gradients


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_two_products_are_one_of_concatenated_heads(sizes):
    layer = Layer(sizes, 1)
    wanted, gradients = layer.expected()
    q, k, v, d_out = (
        x.astype(np.float32) for x in (layer.queries(), layer.keys(), layer.v, layer.d_out)
    )
    out, lse = attn.attention(q, k, v, causal=True, return_lse=True)
    assert out.shape == wanted.shape
    np.testing.assert_allclose(out, wanted, rtol=0, atol=2e-5)
    found = attn.attention_backward(d_out, q, k, v, out, lse, causal=True)
    nope = layer.nope
    parts = {
        "q_nope": found["q"][..., :nope],
        "q_rope": found["q"][..., nope:],
        "k_nope": found["k"][..., :nope],
        "k_rope": found["k"][..., nope:].sum(2, keepdims=True),
        "v": found["v"],
    }
    for name, gradient in parts.items():
        largest = np.abs(gradients[name]).max()
        np.testing.assert_allclose(gradient, gradients[name], rtol=0, atol=3e-6 * largest)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_absorbed(sizes, dtype):
    """For decoding W_UK goes into the queries and W_UV behind: one head of keys, V a part of it."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    layer = Layer(sizes, 2)
    q = np.concatenate([np.einsum("bnhd,hld->bnhl", layer.q_nope, layer.up_k), layer.q_rope], -1)
    cache = np.concatenate([layer.latents, layer.k_rope], -1).astype(dtype)
    q = q.astype(dtype)[:, -1:]
    values = cache[..., : layer.latent]
    assert np.shares_memory(values, cache)
    out = attn.attention(q, cache, values, causal=True, scale=layer.scale)
    assert out.shape == (BATCH, 1, HEADS, layer.latent)
    found = np.einsum("bnhl,hld->bnhd", out.astype(np.float64), layer.up_v)
    wanted = layer.expected()[0][:, -1:]
    rounding = {"float32": 2.0**-24, "bfloat16": 2.0**-9}[dtype.name]
    # Each of q, k, v and P is rounded once; a score of some 4 turns 2 roundings into 8 of P.
    assert np.abs(found - wanted).max() < 10 * rounding * np.abs(wanted).max()


def test_torch_gradients_reach_the_parts():
    torch = pytest.importorskip("torch")
    import attn.torch

    layer = Layer(SIZES["small"], 3)
    wanted, gradients = layer.expected()
    parts = {
        name: torch.tensor(getattr(layer, name), dtype=torch.float32, requires_grad=True)
        for name in gradients
    }
    q = torch.cat([parts["q_nope"], parts["q_rope"]], -1)
    k = torch.cat([parts["k_nope"], parts["k_rope"].expand(-1, -1, HEADS, -1)], -1)
    out = attn.torch.attention(q, k, parts["v"], causal=True)
    np.testing.assert_allclose(out.detach(), wanted, rtol=0, atol=2e-5)
    d_out = torch.tensor(layer.d_out, dtype=torch.float32)
    found = torch.autograd.grad(out, list(parts.values()), d_out)
    for gradient, want in zip(found, gradients.values(), strict=True):
        np.testing.assert_allclose(gradient, want, rtol=0, atol=3e-6 * np.abs(want).max())
