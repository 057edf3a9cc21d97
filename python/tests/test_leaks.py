"""Memory stays flat over calls with gradients, and of JAX; test_calls.py has NumPy's.

A result is 4 KB, an object of Python some 50 bytes: a call that keeps one of either shows.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import attn

LENGTH, HEADS, DIM = 16, 4, 16
BYTES_A_CALL = 40


def normal(seed, *shape):
    shape = shape or (1, LENGTH, HEADS, DIM)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def assert_flat(call, count):
    """The least growth of three rounds: what libraries keep for themselves grows but once."""
    for _ in range(count // 5):
        call()
    grown = []
    for _ in range(3):
        before = resident_bytes()
        for _ in range(count):
            call()
        grown.append(resident_bytes() - before)
        if grown[-1] < BYTES_A_CALL * count:
            return
    raise AssertionError(f"{count} calls took {grown} bytes")


def test_backward_of_numpy():
    q, k, v, bias = normal(1), normal(2), normal(3), normal(4, LENGTH, LENGTH)

    def call():
        out, lse = attn.attention(q, k, v, bias=bias, return_lse=True)
        wanted = ("q", "k", "v", "bias")
        attn.attention_backward(out, q, k, v, out, lse, bias=bias, gradients=wanted)

    assert_flat(call, 20_000)


def torch_calls():
    """{name: a call with its gradients}."""
    torch = pytest.importorskip("torch")
    import attn.torch

    q, k, v = (torch.tensor(normal(seed)).requires_grad_() for seed in (1, 2, 3))
    bias = torch.tensor(normal(4, LENGTH, LENGTH)).requires_grad_()
    first = [t.transpose(1, 2) for t in (q, k, v)]
    factor = 0.5

    def backward():
        attn.torch.attention(q, k, v, causal=True).sum().backward()
        q.grad = k.grad = v.grad = None

    def bias_and_lse():
        out, lse = attn.torch.attention(q, k, v, bias=bias, return_lse=True)
        torch.autograd.grad(out.sum() + lse.sum(), (q, k, v, bias))

    def flex():  # functions that are new at each call
        out = attn.torch.flex_attention(
            *first,
            lambda s, b, h, i, j: s * factor + bias[i, j],
            attn.torch.create_block_mask(lambda b, h, i, j: i >= j, None, None, LENGTH, LENGTH),
        )
        torch.autograd.grad(out.sum(), (q, bias))

    def dropout():
        torch.autograd.grad(attn.torch.attention(q, k, v, dropout=0.3).sum(), q)

    def without_backward():  # a graph that nobody walks
        attn.torch.scaled_dot_product_attention(*first, is_causal=True)

    def refused():
        for options in ({"layout": "x"}, {"bias": bias[:3]}):
            with pytest.raises(attn.Error):
                attn.torch.attention(q, k, v, **options)

    return locals()


@pytest.mark.parametrize(
    "name", ["backward", "bias_and_lse", "flex", "dropout", "without_backward", "refused"]
)
def test_torch(name):
    assert_flat(torch_calls()[name], 5_000)


@pytest.mark.parametrize("name", ["gradients", "alone", "traced", "copied", "refused"])
def test_jax(name):
    jax = pytest.importorskip("jax")
    import attn.jax

    with jax.default_device(jax.devices("cpu")[0]):
        q, k, v = (jax.numpy.asarray(normal(seed)) for seed in (1, 2, 3))
        bias = jax.numpy.asarray(normal(4, LENGTH, LENGTH))

        def loss(q, k, v, bias):
            return attn.jax.attention(q, k, v, bias=bias, causal=True).sum()

        compiled = jax.jit(jax.grad(loss, (0, 1, 2, 3)))

        def refused():
            with pytest.raises(attn.Error):
                attn.jax.attention(q, k, v, layout="x")

        calls = {
            "gradients": lambda: compiled(q, k, v, bias),
            "alone": lambda: attn.jax.attention(q, k, v, bias=bias, causal=True),
            "traced": lambda: attn.jax.attention(q, k, v, mask=lambda s: s.key <= s.position),
            "copied": lambda: attn.attention(q, k, v),
            "refused": refused,
        }

        def call():  # ended, so that what has been asked for and waits does not count
            jax.block_until_ready(calls[name]())

        assert_flat(call, 5_000)
