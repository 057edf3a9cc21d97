"""batch_invariant: bits of a sequence do not depend on the batch that it is in."""

import numpy as np
import pytest

import attn

RANDOM = np.random.default_rng(36)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


# So many that, where bits may depend on the batch, keys of a sequence have fewer parts in it.
LENGTHS = (1100, 2600, 700) * 16
Q, K, V = normal(48, 1, 4, 32), normal(48, 2600, 2, 32), normal(48, 2600, 2, 32)


def alone(b):
    return Q[b : b + 1], K[b : b + 1, : LENGTHS[b]], V[b : b + 1, : LENGTHS[b]]


def bits(attention, array, as_numpy, **options):
    """(out, lse) of the first three sequences in the batch, and alone."""
    used = array(np.array(LENGTHS, np.int32))
    options.update(return_lse=True, threads=2)
    batch = attention(array(Q), array(K), array(V), seqused_k=used, **options)
    for b in range(3):
        single = attention(*map(array, alone(b)), **options)
        yield [[as_numpy(x)[i].tobytes() for x in those] for those, i in ((batch, b), (single, 0))]


def numpy_functions():
    return attn.attention, np.asarray, np.asarray


def torch_functions():
    torch = pytest.importorskip("torch")
    import attn.torch

    return attn.torch.attention, torch.from_numpy, torch.Tensor.numpy


def jax_functions():
    jax = pytest.importorskip("jax")
    import attn.jax

    return attn.jax.attention, jax.numpy.asarray, np.asarray


@pytest.mark.parametrize("functions", [numpy_functions, torch_functions, jax_functions])
def test_bits_of_a_sequence_alone(functions):
    found = functions()
    assert all(x == y for x, y in bits(*found, batch_invariant=True))
    assert any(x != y for x, y in bits(*found))  # else the above proves nothing


def test_compiled_by_jax():
    jax = pytest.importorskip("jax")
    attention, array, as_numpy = jax_functions()

    def compiled(*arrays, **options):
        used = options.pop("seqused_k", None)
        return jax.jit(lambda q, k, v: attention(q, k, v, seqused_k=used, **options))(*arrays)

    assert all(x == y for x, y in bits(compiled, array, as_numpy, batch_invariant=True))


def test_plan_says_it():
    assert "batch_invariant: " in str(attn.plan(Q, K, V, batch_invariant=True))
    assert "batch_invariant: " not in str(attn.plan(Q, K, V))


def test_gradients_are_refused():
    out, lse = attn.attention(Q, K, V, return_lse=True, batch_invariant=True)
    with pytest.raises(attn.Unsupported, match="batch_invariant is true; accepted by backward"):
        attn.attention_backward(out, Q, K, V, out, lse, batch_invariant=True)


def test_refuses_what_is_no_bool():
    with pytest.raises(attn.InvalidArgument, match="batch_invariant is 'yes'; accepted is True or"):
        attn.attention(Q, K, V, batch_invariant="yes")
