"""What PyTorch builds on attn.torch, on each device: compiled code, checkpoints, opcheck."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import attn  # noqa: E402
import attn.torch  # noqa: E402
from torch_problems import DEVICES, GPU, leaf  # noqa: E402

# PyTorch's compiler uses what PyTorch calls deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_checkpointing_repeats_dropout(device, reentrant):
    q, k, v = (leaf(1, 20, 2, 8, device=device) for _ in range(3))

    def gradients(function):
        torch.manual_seed(3)
        out = function(q, k, v)
        return [out, *torch.autograd.grad(out.square().sum(), [q, k, v])]

    call = partial(attn.torch.attention, dropout=0.4, causal=True, deterministic=True)
    plain = gradients(call)
    if reentrant:
        torch.manual_seed(3)
        out = checkpoint(call, q, k, v, use_reentrant=True)
        out.square().sum().backward()
        again = [out, q.grad, k.grad, v.grad]
    else:
        again = gradients(lambda *t: checkpoint(call, *t, use_reentrant=False))
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(call(q, k, v), call(q, k, v))


OPCHECKS = {
    "plain": lambda on: {},
    "causal": lambda on: {"causal": True, "softcap": 2.0, "window": (3, -1)},
    "heads first": lambda on: {"layout": "bhsd", "scale": 0.3},
    "tensors": lambda on: {
        "bias": torch.randn(1, 4, 6, 6, device=on), "sink": torch.randn(4, device=on)
    },
    "formula": lambda on: {
        "mask": attn.Formula("ids[query] == ids[key]", ids=torch.zeros(6, device=on).int())
    },
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPCHECKS)
def test_opcheck(name, device):
    from attn.torch import ops as torch_ops

    options = OPCHECKS[name](device)

    calls = []

    class Recorded(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "attn":
                calls.append((func, args))
            return func(*args, **(kwargs or {}))

    heads_first = options.get("layout") == "bhsd"
    shape = (2, 4, 6, 8) if heads_first else (2, 6, 4, 8)
    q, k, v = (leaf(*shape, device=device) for _ in range(3))
    with Recorded():
        out, _ = torch_ops.attention(q, k, v, **options)
        out.sum().backward()
    assert [str(func) for func, _ in calls] == ["attn.forward.default", "attn.backward.default"]
    for func, args in calls:
        detached = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
        torch.library.opcheck(func, tuple(detached))


@pytest.mark.parametrize("kind", ["plain", "score"])
@pytest.mark.parametrize("through", ["a mode", "eager", "aot_eager"])
def test_no_second_derivative(through, kind):
    """As without the operators; with a backend of AOTAutograd PyTorch refuses it itself."""
    q, k, v = (leaf(1, 5, 2, 8) for _ in range(3))
    options = {"score": lambda s: s.score + v[0, s.key, 0, 0]} if kind == "score" else {}

    def penalty(q):
        loss = call(q).sum()
        (gradient,) = torch.autograd.grad(loss, q, create_graph=True)
        assert torch.equal(gradient, torch.autograd.grad(plain(q).sum(), q)[0])
        (first,) = torch.autograd.grad(call(q).sum(), q)
        assert not first.requires_grad
        return gradient.square().sum()

    def plain(q):
        return attn.torch.attention(q, k, v, **options)

    torch._dynamo.reset()
    call = plain if through == "a mode" else torch.compile(plain, backend=through, fullgraph=True)
    mode = FlopCounterMode(display=False) if through == "a mode" else nullcontext()
    refused = "does not currently support double" if through == "aot_eager" else "no second deriv"
    for differentiated in (
        lambda loss: torch.autograd.grad(loss, q),
        lambda loss: loss.backward(),
        lambda loss: loss.backward(inputs=[v]),
    ):
        with mode, pytest.raises(RuntimeError, match=refused):
            differentiated(penalty(q))


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return partial(torch.compile, backend="aot_eager", fullgraph=True)


def gradients_of(function, tensors):
    out, lse = function(*tensors)
    torch.manual_seed(1)
    return [out, lse, *torch.autograd.grad(out, tensors, torch.randn(out.shape, device=out.device))]


# On a GPU sums of several blocks are in the order in which these end, but with `deterministic`.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_is_one_graph(compiled, dynamic, device):
    ids = torch.randint(0, 3, (40,), device=device).sort().values
    table = leaf(2, 4, 40, 40, device=device)

    def function(q, k, v, slopes, factor):
        computed = ids * 2

        def mask(b, h, i, j):
            return (computed[i] == computed[j]) & (i - j < 11) & (j <= i)

        def score(s, b, h, i, j):
            return s + factor * table[b, h, i, j] - slopes[h] * torch.abs(i - j)

        options = {"mask": mask, "score": score, "layout": "bhsd", "deterministic": True}
        return attn.torch.attention(q, k, v, return_lse=True, **options)

    shapes = [(2, 4, 40, 16)] * 3 + [(4,), ()]
    tensors = [leaf(*shape, device=device) for shape in shapes]
    expected = gradients_of(function, tensors)
    found = gradients_of(compiled(function, dynamic=dynamic), tensors)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("count", range(5))
def test_compile_without_gradients(compiled, count):
    """Whatever the number of tensors beside q, k and v: two of them failed."""
    names = ["a", "b", "c", "d"][:count]
    q, *tensors = (torch.randn(1, 6, 2, 8) for _ in range(1 + count))
    score = attn.Formula(
        " + ".join(["score", *[f"{name}[0, query, head, 0]" for name in names]]),
        **dict(zip(names, tensors, strict=True)),
    )

    def function(q):
        return attn.torch.attention(q, q, q, score=score)

    assert torch.equal(compiled(function)(q), function(q))


@pytest.mark.parametrize("device", DEVICES)
def test_compile_with_dynamic_shapes_compiles_once(compiled, device):
    def function(q, k, v):
        options = {"mask": lambda s: s.key <= s.position, "bias": bias, "deterministic": True}
        return attn.torch.attention(q, k, v, return_lse=True, **options)

    made = compiled(function, dynamic=True)
    for n in (17, 23, 40):
        bias = torch.randn(1, 1, n, n, device=device)
        tensors = [leaf(2, n, 4, 8, device=device) for _ in range(3)]
        for a, b in zip(gradients_of(made, tensors), gradients_of(function, tensors), strict=True):
            assert torch.equal(a, b)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_compile_of_sizes_that_follow_from_values(compiled):
    def chosen(q, flags):
        some = q[:, flags.nonzero()[:, 0]].transpose(1, 2)
        more = torch.cat((some, some), -1)
        return attn.torch.attention(some, some, more, layout="bhsd").transpose(1, 2)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        function = compiled(chosen)
        for count in (3, 5, 1, 0):
            q, flags = leaf(2, 7, 4, 8), torch.arange(7) < count
            found, wanted = function(q, flags), chosen(q, flags)
            assert torch.equal(found, wanted)
            assert found.stride() == wanted.stride() or count < 2
            gradient = torch.randn_like(wanted)
            ours, theirs = (torch.autograd.grad(out, q, gradient)[0] for out in (found, wanted))
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_compile_draws_dropout_anew(compiled, device):
    def function(q, k, v):
        return attn.torch.attention(q, k, v, dropout=0.5, layout="bhsd")

    made = compiled(function)
    tensors = [torch.randn(1, 2, 9, 8, device=device) for _ in range(3)]
    torch.manual_seed(5)
    first, second = made(*tensors), made(*tensors)
    torch.manual_seed(5)
    assert torch.equal(made(*tensors), first)
    assert not torch.equal(first, second)


def test_compile_reads_rng_from_a_tensor(compiled):
    made = compiled(lambda q, rng: attn.torch.attention(q, q, q, dropout=0.5, rng=rng))
    q = torch.randn(1, 9, 2, 8)
    for seed in (5, 6):
        wanted = attn.torch.attention(q, q, q, dropout=0.5, rng=(seed, 1))
        assert torch.equal(made(q, torch.tensor([seed, 1])), wanted)


def test_compile_refuses_with_the_reason(compiled):
    made = compiled(lambda q: attn.torch.attention(q, q, q, mask=lambda b, h, i, j: torch.sort(i)))
    with pytest.raises(Exception, match="torch function sort has no form"):
        made(torch.randn(1, 3, 2, 8))


def test_compile_after_a_trace_with_numpy(compiled):
    """What NumPy's arrays leave behind in attn is nothing that torch.compile cannot read."""
    ids = np.zeros(5, np.int32)
    x = np.ones((1, 5, 2, 8), np.float32)
    attn.attention(x, x, x, mask=lambda s: attn.buffer(ids)[s.key] == 0)
    table = torch.arange(5, dtype=torch.float32)

    def function(q):
        return attn.torch.attention(q, q, q, score=lambda s: s.score + table[s.key])

    q = torch.randn(1, 5, 2, 8)
    torch.testing.assert_close(compiled(function)(q), function(q))


# "reduce-overhead" captures CUDA graphs.
@pytest.mark.parametrize(
    ("device", "mode"),
    [
        ("cpu", None),
        pytest.param("cuda", None, marks=GPU),
        pytest.param("cuda", "reduce-overhead", marks=GPU),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(device, mode, dynamic):
    """Shifts of a bias that is computed, rotated halves, a projection: as parts of models."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    weight = leaf(2 * 16, 3 * 4 * 16, device=device)
    slopes = leaf(4, device=device)

    def function(x, ids):
        q, k, v = (x @ weight).unflatten(-1, (3, 4, 16)).unbind(2)
        q, k = (torch.cat((-t[..., 8:], t[..., :8]), -1) * 0.5 + t for t in (q, k))
        out, lse = attn.torch.attention(
            q, k, v,
            mask=lambda b, h, i, j: (ids[b, i] == ids[b, j]) & (j <= i),
            score=lambda s, b, h, i, j: s - slopes[h].abs() * (i - j),
            bias=(q.mean((1, 2, 3)) * 0.1).view(-1, 1, 1, 1),
            return_lse=True,
        )  # fmt: skip
        return torch.nn.functional.gelu(out).flatten(2), lse

    made = torch.compile(function, mode=mode, fullgraph=True, dynamic=dynamic)
    for n in (33, 50) if dynamic else (33,):
        for _ in range(
            3 if mode else 1
        ):  # graphs are captured and replayed from the second call on
            x = leaf(2, n, 32, device=device)
            ids = torch.randint(0, 3, (2, n), device=device).sort().values
            results = []
            for f in (function, made):
                torch.manual_seed(n)
                out, lse = f(x, ids)
                loss = (out * torch.randn(out.shape, device=device)).sum() + lse.sin().sum()
                gradients = torch.autograd.grad(loss, (x, weight, slopes))
                results.append([t.detach().clone() for t in (out, lse, *gradients)])
            for found, wanted in zip(results[1], results[0], strict=True):
                largest = wanted.abs().max()
                assert largest > 0.1
                assert (found - wanted).abs().max() <= 2e-5 * largest
