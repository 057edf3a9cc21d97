"""The experiments run as toys, resume bit for bit, and measure what they say (experiments/)."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from experiments.__main__ import EXPERIMENTS  # noqa: E402
from experiments.bert import batches, lamb  # noqa: E402
from experiments.bert.run import Bert  # noqa: E402
from experiments.common import attention, data, results, timing, train  # noqa: E402
from experiments.common.model import GPT, SIZES, Config, optimizer  # noqa: E402
from experiments.gpt2.run import shown_name  # noqa: E402
from experiments.gpt2_context.run import long_documents, loss_by_position  # noqa: E402
from experiments.long_range_arena import tasks  # noqa: E402


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_toy_runs(name, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "experiments", "run", name, "--toy", "--out", str(tmp_path)],
        cwd=ROOT, check=True,
    )  # fmt: skip
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["rows"]
    assert not [row for row in result["rows"].values() if "error" in row]
    assert (tmp_path / "picture.svg").read_text().startswith("<svg")


@pytest.fixture(autouse=True)
def _backends_of_pytorch():
    """Attention by a name selects PyTorch's backends for the whole process."""
    kinds = ("cudnn", "flash", "mem_efficient", "math")
    before = [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in kinds]
    yield
    for kind, enabled in zip(kinds, before, strict=True):
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(enabled)


@pytest.fixture
def one_thread():
    """A toy's tensors are smaller than what waking a thread costs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(name, seed, dropout=0.1):
    torch.manual_seed(seed)
    model = GPT(Config(**SIZES["toy"], context=16, dropout=dropout, attention=name))
    return model, optimizer(model, 1e-2)


def trained(parts, checkpoint, **keywords):
    model, learner = parts
    row = train.train(
        model, model, learner, data.Batches(data.toy(), 4, 16, 7, "cpu"),
        train.Schedule(6, 1e-2, warm_up=2), name="test", micro_batches=2, report_every=1,
        checkpoint=checkpoint, **keywords,
    )  # fmt: skip
    return row["losses"], [p.detach().clone() for p in model.parameters()]


def test_a_compiled_sdpa_takes_no_graph_of_another_backend():
    # The cache finds a graph by what was traced, which is the same for all of them.
    import torch._functorch.config as config

    with config.patch(enable_autograd_cache=True):
        attention.attention("sdpa_flash")
        assert not config.enable_autograd_cache


def test_a_row_names_the_attention_that_its_kernels_say():
    row = {"attention": "sdpa_flash", "kernels": {"longest": [["pytorch_flash::fwd", 1.0, 12]]}}
    assert shown_name("sdpa_flash", row) == "sdpa_flash"
    row["kernels"]["longest"].append(["cudnn_generated_sdpa_flash_fprop", 2.0, 12])
    assert shown_name("sdpa_flash", row) == "sdpa_flash (ran cuDNN's kernels)"
    assert timing.attends("void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*")
    assert not timing.attends("triton_red_fused_convert_dq_0")


@pytest.mark.parametrize("name", ["eager", "attn"])
def test_a_run_resumes_bit_for_bit(name, tmp_path, one_thread):
    losses, weights = trained(small(name, 1), None)
    file = tmp_path / "checkpoint.pt"
    trained(small(name, 1), file, stop=3, checkpoint_every=3)
    # Another model and another state of the generators: all comes from the checkpoint.
    again, weights_again = trained(small(name, 2), file, resume=True)
    assert again == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, weights_again, strict=True))
    # Dropout is on, so a run with other masks differs.
    other, _ = trained(small(name, 1, dropout=0.5), None)
    assert other != losses


@pytest.mark.parametrize("name", ["sdpa", "sdpa_flash", "attn"])
@pytest.mark.parametrize("kind", ["causal", "padded", "one query", "grouped"])
def test_attention_of_every_name_is_the_same(name, kind):
    torch.manual_seed(3)
    queries = 1 if kind == "one query" else 24
    q = torch.randn(2, queries, 4, 16)
    k, v = (torch.randn(2, 24, 2 if kind == "grouped" else 4, 16) for _ in range(2))
    options = {"causal": kind != "padded"}
    if kind == "padded":
        options["lengths"] = torch.tensor([24, 9], dtype=torch.int32)
    expected = attention.attention("eager")(q, k, v, **options)
    found = attention.attention(name)(q, k, v, **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_block_sparse_attention_is_eager_over_a_butterfly():
    torch.manual_seed(4)
    q, k, v = (torch.randn(1, 8 * attention.BLOCK, 1, 16) for _ in range(3))
    blocks = [[bin(i ^ j).count("1") <= 1 for j in range(8)] for i in range(8)]
    mask = torch.tensor(blocks).repeat_interleave(attention.BLOCK, 0)
    mask = mask.repeat_interleave(attention.BLOCK, 1)
    scores = (q[0, :, 0] @ k[0, :, 0].T / 4).masked_fill(~mask, float("-inf"))
    found = attention.attention("attn_block_sparse")(q, k, v)
    torch.testing.assert_close(found[0, :, 0], scores.softmax(-1) @ v[0, :, 0], rtol=0, atol=2e-6)


def test_packed_and_padded_batches_have_one_loss():
    texts = batches.toy_sequences(64)
    assert len({len(t) for t in texts}) > 10
    of = batches.Masked(texts, 5, 64, 300, seed=1)
    torch.manual_seed(5)
    config = {"layers": 2, "heads": 2, "width": 64, "vocabulary": 300}
    model = Bert(Config(**config, context=64, causal=False, attention="attn"))
    rows = of.rows(4)
    assert rows < 5 * 64
    for step in range(2):
        padded, packed = of(step, 0, "cpu"), of(step, rows, "cpu")
        a = model(padded, {"lengths": padded.lengths})
        b = model(packed, {"cu_seqlens": packed.cu_seqlens, "longest": 64})
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
        assert (padded.targets != batches.IGNORED).sum() > 10


def test_lamb_is_algorithm_2():
    torch.manual_seed(6)
    weight = torch.randn(3, 4, dtype=torch.float64)
    parameter = torch.nn.Parameter(weight.clone())
    learner = lamb.Lamb([parameter], lr=0.1, weight_decay=0.01)
    m = v = torch.zeros_like(weight)
    for step in range(1, 4):
        gradient = torch.randn_like(weight)
        parameter.grad = gradient.clone()
        learner.step()
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        update = m / (1 - 0.9**step) / ((v / (1 - 0.999**step)).sqrt() + 1e-6) + 0.01 * weight
        weight = weight - 0.1 * weight.norm() / update.norm() * update
        torch.testing.assert_close(parameter.detach(), weight)


def test_loss_by_position_reads_documents_in_pieces():
    tokens = np.concatenate([[data.END], np.arange(1, 9), [data.END], np.arange(11, 14)])
    texts = long_documents(tokens.astype(np.uint16), 8, 5)
    assert texts.tolist() == [[data.END, *range(1, 9)]]
    seen = []

    def loss_of(inputs, targets):
        seen.append((inputs.tolist(), targets.tolist()))
        return targets.float()

    found = loss_by_position(loss_of, texts, 4, "cpu")
    assert seen == [([[data.END, 1, 2, 3], [4, 5, 6, 7]], [[1, 2, 3, 4], [5, 6, 7, 8]])]
    assert found == {"documents": 1, "0-4": [2.5, None], "4-8": [6.5, None]}


def test_text_is_split_by_package(tmp_path):
    for name in ("a/x.py", "a/y.py", "a/copy.py", "scipy/z.py", "single.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text = 'of {name.replace('copy', 'x')}'\n" * 20)
    of = data.packages([tmp_path])
    assert list(of) == ["a", "scipy", "single.py"]
    assert len(list(data.documents(of["a"]))) == 2  # a copy does not count


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX, where it is loaded too
def test_a_failure_in_a_process_of_its_own_is_a_row():
    def fail():
        raise ValueError("no such thing")

    assert results.apart(fail) == {"error": "ValueError: no such thing"}
    assert results.apart(lambda: {"fine": 1}) == {"fine": 1}


def test_gpt2_is_as_large_as_the_papers():
    with torch.device("meta"):
        counts = {
            size: sum(p.numel() for p in GPT(Config(**SIZES[size])).parameters()) / 1e6
            for size in ("124M", "350M", "1.3B")
        }
    assert 124 < counts["124M"] < 125
    assert 350 < counts["350M"] < 360
    assert 1300 < counts["1.3B"] < 1330


def value_of(tokens):
    """The value of a list of ListOps, by its definition."""
    if tokens[0] < 10:
        return tokens.pop(0)
    operation = tokens.pop(0)
    values = []
    while tokens[0] != 14:
        values.append(value_of(tokens))
    tokens.pop(0)
    by_name = {10: min, 11: max, 12: lambda v: int(np.median(v)), 13: lambda v: sum(v) % 10}
    return by_name[operation](values)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_listops_have_the_values_that_their_labels_say(tmp_path):
    counts = {"train": 40, "validation": 5, "test": 15}
    tasks.make_listops(tmp_path, counts, 100, 400)
    task = tasks.listops(tmp_path, 400, counts)
    known = set()
    for split, count in ((task.train, 40), (task.test, 15)):
        assert split.tokens.shape == (count, 400)
        for row, length, label in zip(split.tokens, split.lengths, split.labels, strict=True):
            assert 100 < length < 400
            assert (row[length:] == 15).all()
            tokens = row[:length].tolist()
            known.add(tuple(tokens))
            assert value_of(tokens) == label
            assert not tokens
    assert len(known) == 55
    assert len(set(task.train.labels.tolist())) > 4


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("size", [32, 64])
def test_pathfinder_has_two_discs_on_curves_of_one_class_or_the_other(size, tmp_path):
    counts = {"train": 30, "test": 10}
    tasks.make_pathfinder(tmp_path, size, counts, processes=2)
    task = tasks.pathfinder(tmp_path, size, counts)
    assert task.train.tokens.shape == (30, size * size)
    assert task.test.tokens.shape == (10, size * size)
    labels = np.concatenate([task.train.labels, task.test.labels])
    assert set(labels.tolist()) == {0, 1}
    images = np.concatenate([task.train.tokens, task.test.tokens])
    assert len({image.tobytes() for image in images}) == 40  # no process repeats another's
    share = (images > 0).mean(axis=1)
    assert ((share > 0.02) & (share < 0.5)).all()
    # 2 x 2 pixels of a disc are white; dashes are thinner.
    pixels = images.reshape(-1, size, size).astype(float)
    squares = np.lib.stride_tricks.sliding_window_view(pixels, (2, 2), axis=(1, 2))
    for means in squares.mean(axis=(3, 4)):
        y, x = np.unravel_index(means.argmax(), means.shape)
        assert means[y, x] > 220
        means[max(0, y - 3) : y + 4, max(0, x - 3) : x + 4] = 0
        y, x = np.unravel_index(means.argmax(), means.shape)
        if means[y, x] > 220:  # discs may overlap
            means[max(0, y - 3) : y + 4, max(0, x - 3) : x + 4] = 0
            assert means.max() < 220
