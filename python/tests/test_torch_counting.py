"""What PyTorch's counter of floating-point operations and its profiler see of a call."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import attn.flash_attn  # noqa: E402
import attn.torch  # noqa: E402
from torch_problems import leaf  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def counted(call):
    with FlopCounterMode(display=False) as mode:
        call()
    return mode.get_total_flops()


def test_as_many_as_pytorch_counts():
    q, k, v = leaf(2, 4, 24, 16), leaf(2, 2, 40, 16), leaf(2, 2, 40, 8)
    wide = [t.detach().repeat_interleave(2, 1).requires_grad_() for t in (k, v)]
    ours = attn.torch.scaled_dot_product_attention
    theirs = torch.nn.functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = counted(lambda: theirs(q, *wide))
        wanted_both = counted(lambda: theirs(q, *wide).sum().backward())
    assert counted(lambda: ours(q, k, v, enable_gqa=True)) == wanted > 0
    with_scores = 2 * 2 * 4 * 24 * 40 * 16  # which attn computes again in the backward pass
    found = counted(lambda: ours(q, k, v, enable_gqa=True).sum().backward())
    assert found == wanted_both + with_scores


def test_sequences_of_their_own_lengths():
    q = leaf(30, 4, 16)
    ends = torch.tensor([0, 10, 30], dtype=torch.int32)
    pairs = 4 * (10 * 10 + 20 * 20)
    options = {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
    assert counted(lambda: attn.torch.attention(q, q, q, **options)) == 4 * 16 * pairs
    rows = leaf(2, 30, 4, 16)
    used = torch.tensor([7, 30], dtype=torch.int32)
    found = counted(lambda: attn.torch.attention(rows, rows, rows, seqused_k=used))
    assert found == 4 * 16 * 4 * 30 * 37


def test_keys_of_a_shared_prefix():
    q, k, v = torch.randn(2, 9, 4, 16), torch.randn(2, 20, 2, 16), torch.randn(2, 20, 2, 16)
    rows = torch.randn(70, 2, 16)
    found = counted(lambda: attn.torch.attention(q, k, v, prefix_k=rows, prefix_v=rows))
    assert found == 4 * 16 * 2 * 4 * 9 * (70 + 20)
    pages, used = torch.randn(9, 16, 2, 16), torch.tensor([20, 32], dtype=torch.int32)
    table = torch.tensor([[4, 0], [2, 8]], dtype=torch.int32)
    options = {"page_table": table, "seqused_k": used, "prefix_page_table": table[0]}
    found = counted(lambda: attn.torch.attention(q, pages, pages, seqlen_prefix=17, **options))
    assert found == 4 * 16 * 4 * 9 * (17 + 20 + 17 + 32)


def test_of_a_compiled_function():
    """PyTorch runs it as it is written while a mode is active."""
    q = leaf(1, 16, 2, 8)
    wanted = counted(lambda: attn.torch.attention(q, q, q).sum().backward())
    torch._dynamo.reset()
    compiled = torch.compile(attn.torch.attention, backend="aot_eager")
    compiled(q, q, q).sum().backward()
    assert counted(lambda: compiled(q, q, q).sum().backward()) == wanted > 0


LATE = """
import torch, attn.torch
from torch.utils.flop_counter import FlopCounterMode
mode = FlopCounterMode(display=False)
q = torch.randn(1, 16, 2, 8)
with mode:
    attn.torch.attention(q, q, q)
print(mode.get_total_flops())
"""


def test_a_counter_that_was_imported_and_made_later():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(4 * 2 * 16 * 16 * 8)


@pytest.mark.parametrize("options", [{}, {"causal": True, "return_lse": True}], ids=str)
def test_the_profiler_sees_the_operators(options):
    q = leaf(1, 16, 2, 8)
    plain = attn.torch.attention(q.detach(), q, q, **options)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        out = attn.torch.attention(q, q, q, **options)
        first = out[0] if options else out
        first.sum().backward()
        with torch.no_grad():
            attn.torch.attention(q, q, q, **options)
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts["attn::forward"] == 2
    assert counts["attn::backward"] == 1
    assert torch.equal(first, plain[0] if options else plain)
