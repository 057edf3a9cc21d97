"""attn.dist over processes of a gloo group, on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

import attn  # noqa: E402
import attn.dist  # noqa: E402
import dist_ranks  # noqa: E402


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_agree_with_one_process(size, tmp_path):
    dist_ranks.spawn(size, tmp_path, dist_ranks.agree_with_one_process)


@pytest.mark.parametrize("size", [2, 3])
def test_compiled_is_as_plain(size, tmp_path):
    dist_ranks.spawn(size, tmp_path, dist_ranks.compile_together)


def test_what_one_refuses_all_refuse(tmp_path):
    dist_ranks.spawn(3, tmp_path, dist_ranks.refuse_together)


def test_a_silent_process_is_named(tmp_path):
    dist_ranks.spawn(2, tmp_path, dist_ranks.tell_of_silence)


def test_a_process_that_ends_is_told(tmp_path):
    dist_ranks.spawn(3, tmp_path, dist_ranks.tell_of_death)


def test_a_wrong_share_is_seen(tmp_path):
    """The comparison itself can fail."""
    with pytest.raises(AssertionError):
        dist_ranks._near("x", torch.ones(3), torch.tensor([1.0, 1.0, 1.01]), torch.float32)
    with pytest.raises(AssertionError):
        dist_ranks._near("x", torch.full((3,), torch.nan), torch.ones(3), torch.float32)


def test_a_plan_needs_a_group():
    with pytest.raises(attn.InvalidArgument, match="no process group"):
        attn.dist.plan((1, 8, 1, 8), (1, 8, 1, 8), causal=True)
    plan = attn.dist.plan((1, 512, 4, 8), (1, 512, 2, 8), ranks=2, causal=True, chunk=64)
    assert sorted([*plan.rows(0), *plan.rows(1)])[0][0] == 0
    assert sorted(torch.cat([plan.index(0), plan.index(1)]).tolist()) == list(range(512))
    assert "on 2 ranks" in str(plan)


@pytest.mark.parametrize("size", [2, 3])
def test_a_model_trains_with_its_sequence_sharded(size, tmp_path):
    pytest.importorskip("transformers")
    dist_ranks.spawn(size, tmp_path, dist_ranks.train_transformers)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are fewer than two GPUs")
def test_ranks_on_gpus_agree_with_one(tmp_path):
    dist_ranks.spawn(2, tmp_path, dist_ranks.agree_on_gpus, "cpu:gloo,cuda:nccl")
