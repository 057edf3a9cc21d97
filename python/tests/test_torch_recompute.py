"""Dropout in compiled code whose backward pass computes parts of the forward pass again: it finds
the mask that the forward pass had, whatever is saved.
"""

from __future__ import annotations

from functools import partial
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from torch._functorch import config  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import attn.torch  # noqa: E402
from attn.flash_attn import flash_attn_func  # noqa: E402
from attn.torch import ops as torch_ops  # noqa: E402
from attn.torch import rng as torch_rng  # noqa: E402
from torch_problems import DEVICES, leaf  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


# PyTorch 2.11 draws for two calls in another order than eager does; 2.15 does not.
DRAWS_AS_EAGER = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)


def heads_first(q, k, v):
    rows = (t.transpose(1, 2) for t in (q, k, v))
    return attn.torch.scaled_dot_product_attention(*rows, dropout_p=0.5).transpose(1, 2)


CALLS = {
    "attention": partial(attn.torch.attention, dropout=0.5, deterministic=True),
    "flash_attn": partial(flash_attn_func, dropout_p=0.5, deterministic=True),
    "scaled_dot_product_attention": heads_first,
}


def results(function, tensors):
    torch.manual_seed(3)
    out = function(*tensors)
    return [out.detach(), *torch.autograd.grad(out.sum(), tensors)]


def check(function, compiled, device="cpu"):
    """Returns how often attn computed its forward pass in compiled code, which is linear in v."""
    tensors = [leaf(2, 32, 2, 8, device=device) for _ in range(3)]
    with mock.patch.object(torch_ops._attn, "forward", wraps=torch_ops._attn.forward) as forward:
        found = results(compiled, tensors)
    # The sum of out is that of dv * v, if both passes have one mask: another is 0.1 or more off.
    out, _, _, dv = (x.double() for x in found)
    near = 1e-5 * (dv * tensors[2]).abs().sum()
    assert (out.sum() - (dv * tensors[2]).sum()).abs() <= near
    if DRAWS_AS_EAGER:
        for x, y in zip(found, results(function, tensors), strict=True):
            assert torch.allclose(x, y, rtol=1e-5, atol=1e-5)
    return forward.call_count


def twice(call):
    def function(q, k, v):
        return call(q.sin(), k, 3 * call(q, k.cos(), v * 2)) * 2

    return function


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("budget", [1, 0.5, 0.1, 0.01, 0])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_budget_of_memory(call, budget, device):
    function = twice(call)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    with config.patch(activation_memory_budget=budget):
        count = check(function, compiled, device)
    if budget in (1, 0):  # the last call is not computed again, since its result is not needed
        assert count == {1: 2, 0: 4}[budget]


@pytest.mark.parametrize("budget", [0.1, 0.0])
def test_a_budget_of_a_region(budget):
    region = getattr(torch.autograd.graph, "region_activation_memory_budget", None)
    if region is None:
        pytest.skip("this PyTorch has no budgets of regions")
    function = twice(CALLS["attention"])

    def within(q, k, v):
        with region(budget):
            return function(q, k, v)

    torch._dynamo.reset()
    check(function, torch.compile(within, backend="aot_eager", fullgraph=True))


def test_a_budget_of_a_region_that_holds_for_all():
    """The budget of the region is that of the graph, also of dropout before the region."""
    region = getattr(torch.autograd.graph, "region_activation_memory_budget", None)
    if not hasattr(config, "activation_memory_budget_require_full_coverage"):
        pytest.skip("this PyTorch has no budgets of regions that hold for all")
    function = twice(CALLS["attention"])

    def before(q, k, v):
        out = function(q, k, v)
        with region(0.0):
            return out * 3

    def plain(q, k, v):
        return function(q, k, v) * 3

    torch._dynamo.reset()
    with config.patch(activation_memory_budget_require_full_coverage=False):
        check(plain, torch.compile(before, backend="aot_eager", fullgraph=True))


@pytest.mark.parametrize("preserve", [True, False])
def test_a_checkpoint(preserve):
    """Without preserve_rng_state too, which outside of compiled code gives up the mask."""

    def function(q, k, v):
        part = twice(CALLS["attention"])
        return checkpoint(part, q, k, v, use_reentrant=False, preserve_rng_state=preserve) * 3

    def plain(q, k, v):
        return twice(CALLS["attention"])(q, k, v) * 3

    torch._dynamo.reset()
    check(plain, torch.compile(function, backend="aot_eager", fullgraph=True))


def test_inductor():
    function = twice(CALLS["attention"])
    torch._dynamo.reset()
    with config.patch(activation_memory_budget=0.1):
        check(function, torch.compile(function, fullgraph=True))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_within_vmap(randomness):
    q = torch.randn(3, 1, 9, 2, 8)

    def function(q):
        call = partial(attn.torch.attention, dropout=0.5)
        return torch.func.vmap(lambda t: call(t, t, t), randomness=randomness)(q)

    torch._dynamo.reset()
    torch.manual_seed(5)
    wanted = function(q)
    torch.manual_seed(5)
    assert torch.equal(torch.compile(function, backend="aot_eager", fullgraph=True)(q), wanted)


class _Marks(TorchDispatchMode):
    """What torch.fx would note of each operator, a dictionary of the process."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(dict(torch.fx.traceback.current_meta))
        return func(*args, **(kwargs or {}))


def test_a_program_that_runs_marks_nothing():
    """Another thread may be tracing."""
    with _Marks() as marks:
        torch_rng._draw(device=torch.device("cpu"))
    assert marks.seen
    assert not any(marks.seen)
