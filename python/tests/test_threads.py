"""How many threads work for a call on a CPU: as many as attn is told, or PyTorch is."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import attn

# What a call starts is counted in a process of its own, since pools stay.
COUNTING = """
import os, sys, warnings
import numpy as np
import attn
warnings.simplefilter("ignore")

def started(call):
    before = len(os.listdir("/proc/self/task"))
    call()
    return len(os.listdir("/proc/self/task")) - before

x = np.random.default_rng(1).standard_normal((1, 512, 4, 64)).astype(np.float32)
"""
WITH_TORCH = (
    COUNTING
    + """
import torch, attn.torch, attn.flash_attn
from torch.nn.functional import scaled_dot_product_attention
t = torch.from_numpy(x).requires_grad_()
heads_first = t.transpose(1, 2)

def both(call):
    call(t, t, t).sum().backward()

def hook():
    torch.nn.attention.activate_flash_attention_impl("attn")
    both(lambda q, k, v: scaled_dot_product_attention(heads_first, heads_first, heads_first))

CALLS = {
    "attn.torch": lambda: both(attn.torch.attention),
    "flash_attn": lambda: both(attn.flash_attn.flash_attn_func),
    "attn.attention": lambda: attn.attention(*[t.detach()] * 3),
    "hook": hook,
}
torch.set_num_threads(1)
both(lambda q, k, v: q + k)  # the thread of autograd
"""
)


def output(code, **environment):
    inherited = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    found = subprocess.run(
        [sys.executable, "-c", code], env={**inherited, **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert not found.returncode, found.stderr
    return found.stdout.strip()


@pytest.fixture(autouse=True)
def _default():
    yield
    attn.set_num_threads(0)


def rows(n=512):
    return [np.random.default_rng(i).standard_normal((1, n, 4, 64), np.float32) for i in range(3)]


def test_a_setting_is_what_plans_use_and_changes_no_bit():
    tensors = rows()
    attn.set_num_threads(1)
    wanted = attn.attention(*tensors)
    for threads in (3, 2, 1):
        attn.set_num_threads(threads)
        assert attn.get_num_threads() == threads
        assert attn.plan(*tensors)._forward.threads == threads
        assert np.array_equal(attn.attention(*tensors), wanted)


@pytest.mark.parametrize(
    ("environment", "threads"),
    [
        ({"ATTN_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, 3),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "1"}, 1),
    ],
    ids=str,
)
def test_the_environment(environment, threads):
    code = COUNTING + "print(attn.get_num_threads(), started(lambda: attn.attention(x, x, x)))"
    assert output(code, **environment) == f"{threads} {threads - 1}"


def test_a_setting_comes_before_the_environment():
    code = COUNTING + "attn.set_num_threads(2); print(started(lambda: attn.attention(x, x, x)))"
    assert output(code, ATTN_NUM_THREADS="4") == "1"


def test_a_call_that_says_its_threads_has_them():
    """As far as there are CPUs, whatever the environment says of others."""
    code = COUNTING + "print(attn.plan(x, x, x, threads=2)._forward.threads)"
    assert output(code, OMP_NUM_THREADS="1") == str(min(2, os.cpu_count()))


def test_a_setting_may_be_an_integer_of_numpy():
    before = attn.get_num_threads()
    attn.set_num_threads(np.int64(before + 1))
    assert attn.get_num_threads() == before + 1
    attn.set_num_threads(0)


@pytest.mark.parametrize("threads", [-1, 4097, 1.5, True, "2"])
def test_refusals(threads):
    with pytest.raises(attn.InvalidArgument, match="threads is .*; accepted are 0"):
        attn.set_num_threads(threads)


def test_a_wrong_environment_is_refused_by_the_call():
    code = COUNTING + "attn.attention(x, x, x)"
    with pytest.raises(AssertionError, match="ATTN_NUM_THREADS is many; accepted are 1 to 4096"):
        output(code, ATTN_NUM_THREADS="many")


@pytest.mark.parametrize("name", ["attn.torch", "flash_attn", "attn.attention", "hook"])
def test_the_number_of_pytorch(name):
    """One thread starts none; of three, attn starts two more at most."""
    torch = pytest.importorskip("torch")
    if name == "hook" and not hasattr(torch.nn.attention, "restore_flash_attention_impl"):
        pytest.skip("this PyTorch has no list of implementations")
    code = WITH_TORCH + f"print(started(CALLS[{name!r}]))"
    assert output(code, ATTN_NUM_THREADS="4") == "0"


def test_calls_of_pytorch_take_the_smaller_number():
    torch = pytest.importorskip("torch")
    x = torch.randn(1, 512, 4, 64)
    before = torch.get_num_threads()
    try:
        for theirs, ours, used in ((1, 4, 1), (3, 4, 3), (3, 2, 2), (4, 0, None)):
            torch.set_num_threads(theirs)
            attn.set_num_threads(ours)
            used = used or min(theirs, attn.get_num_threads())
            assert attn.plan(x, x, x)._forward.threads == used
    finally:
        torch.set_num_threads(before)
