"""Long Range Arena and what its classifiers are made of (experiments/)."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from experiments import __main__ as run  # noqa: E402
from experiments.common import attention, classify, results, sources  # noqa: E402
from experiments.long_range_arena import table, tasks  # noqa: E402
from experiments.long_range_arena.model import Classifier, Rows  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    """A toy's tensors are smaller than what waking a thread costs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def split_of(lengths, n, classes=3, seed=1):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 16, (len(lengths), n)).astype(np.uint8)
    labels = random.integers(0, classes, len(lengths))
    return tasks.Split(tokens, np.array(lengths, np.int32), labels)


def learned(seed, folder, resume, breaks_at=None, dropout=0.2):
    """Losses and weights of six steps, which may be broken off as by a person."""
    split = split_of([32, 20, 7, 32, 15], 32)
    torch.manual_seed(seed)
    net = Classifier(tasks.Task(16, 3, split, split, {}), 32, "attn", dropout)
    rows = Rows(tasks.Task(16, 3, split, split, {}), 32, 4, seed=5)

    def batch_of(step):
        if step == breaks_at:
            raise KeyboardInterrupt
        return rows.of_step(step)

    def loss_of(batch):
        return torch.nn.functional.cross_entropy(net(batch).float(), batch["labels"])

    steps = classify.Steps(net, loss_of, rows.of_step(0), "cpu", rate=1e-2)
    row = classify.train(
        steps, batch_of, classify.linear(1e-2, 6), 6, name="test", resume=resume,
        checkpoint=folder / "checkpoint.pt", save_every=-1.0,
    )  # fmt: skip
    steps.milliseconds(1)  # measuring changes nothing
    return row["losses"], [p.detach().clone() for p in net.parameters()]


def test_a_classifier_that_was_broken_off_resumes_bit_for_bit(tmp_path):
    losses, weights = learned(1, tmp_path / "whole", resume=False)
    with pytest.raises(KeyboardInterrupt):
        learned(1, tmp_path / "broken", resume=False, breaks_at=4)
    # Another model and another state of the generators: all comes from the checkpoint.
    again, weights_again = learned(2, tmp_path / "broken", resume=True)
    assert [step for step, _ in again] == [1, 2, 3, 4, 5, 6]
    assert again == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, weights_again, strict=True))
    other, _ = learned(1, tmp_path / "other", resume=False, dropout=0.5)
    assert other != losses


@pytest.mark.parametrize("name", ["attn", "attn_block_sparse"])
def test_packed_rows_have_the_scores_of_padded_ones(name):
    split = split_of([300, 131, 256, 9], 300)
    task = tasks.Task(16, 3, split, split, {})
    torch.manual_seed(3)
    net = Classifier(task, 300, name, dropout=0.0)
    padded, packed = (Rows(task, 300, 4, seed=1, packed_steps=steps) for steps in (0, 7))
    fullest = max(sum(split.lengths[packed.drawn(step)]) for step in range(7))
    assert 0 <= packed.packed_rows - fullest < 128
    assert packed.filled(split, 1).tolist() == [1, 2, 3, 1]  # a batch that is filled up
    both = []
    for rows in (padded, packed):
        arrays = rows.arrays(split, rows.filled(split, 1))
        both.append(net({key: torch.from_numpy(a) for key, a in arrays.items()}))
    torch.testing.assert_close(*both, rtol=0, atol=1e-5)


def test_no_place_has_many_rows_of_a_packed_batch():
    # As a GPU adds the gradients of one place's rows in turn, all of what fills a batch up at one
    # place took longer than the rest of a step.
    split = split_of([300, 9, 12, 7], 300)
    rows = Rows(tasks.Task(16, 3, split, split, {}), 300, 4, seed=1, packed_steps=7)
    arrays = rows.arrays(split, np.array([1, 2, 3, 3]))
    behind = rows.packed_rows - arrays["cu_seqlens"][-1]
    assert behind > 300
    assert np.bincount(arrays["at"][0]).max() <= 4 + -(-behind // 300)


def test_block_sparse_attention_takes_lengths():
    torch.manual_seed(4)
    n = 4 * attention.BLOCK
    q, k, v = (torch.randn(2, n, 1, 16) for _ in range(3))
    lengths = torch.tensor([n, 200], dtype=torch.int32)
    found = attention.attention("attn_block_sparse")(q, k, v, lengths=lengths)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    differing = (i // attention.BLOCK) ^ (j // attention.BLOCK)
    mask = ((differing & (differing - 1)) == 0) & (j < 200)
    scores = (q[1, :, 0] @ k[1, :, 0].T / 4).masked_fill(~mask, float("-inf"))
    expected = (scores.softmax(-1) @ v[1, :, 0])[:200]
    torch.testing.assert_close(found[1, :200, 0], expected, rtol=0, atol=2e-6)


def test_pairs_are_of_one_package_where_their_label_says_so():
    made = [
        sources.Document(f"p{p}", f"package {p} file {i} " * 9, [], "train" if p < 4 else "test")
        for i in range(6)
        for p in range(7)
    ]
    task = tasks.retrieval(made, 64, {"train": 60, "test": 40})
    for split in (task.train, task.test):
        found = set()
        texts = [bytes(r[:n]).decode() for r, n in zip(split.tokens, split.lengths, strict=True)]
        for (a, b), label in zip(split.pairs, split.labels, strict=True):
            one, other = (texts[x].split()[1] for x in (a, b))
            assert (one == other) == label
            assert a != b
            found |= {one, other}
        assert found == set("0123" if split is task.train else "456")
        assert 0.3 < split.labels.mean() < 0.7
    arrays = Rows(task, 64, 4, seed=1).arrays(task.test, np.arange(4))
    assert (arrays["tokens"][1] == task.test.tokens[task.test.pairs[1, 0]]).all()
    assert (arrays["tokens"][4 + 1] == task.test.tokens[task.test.pairs[1, 1]]).all()


def test_a_key_is_learnt_on_one_half_and_asked_of_the_other():
    learnt = np.array([0, 0, 0, 2, 2]), np.array([1, 1, 0, 0, 0])
    assert tasks.by_key(learnt, (np.array([0, 0, 2, 2]), np.array([1, 0, 0, 0]))) == 0.75


def test_kinds_that_have_no_time_yet_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "apart", lambda function, *arguments: function(*arguments))
    options = run.parser_of("long_range_arena").parse_args(["--out", str(tmp_path), "--resume"])
    experiment = run.module("long_range_arena")
    experiment.make_toy(options)
    options.runs, options.device, options.deadline = "toy/time", "cpu", float("inf")
    options.kinds = "attn"
    kept = {"eager": {"ms": 7.0}, "local": {"failed": "here"}}
    results.write_json(tmp_path / "result.json", {"rows": {"toy/time": {"kinds": kept}}})
    kinds = experiment.run(options)["rows"]["toy/time"]["kinds"]
    assert kinds | kept == kinds
    assert kinds["attn"]["ms"] > 0
    assert results.read_json(tmp_path / "result.json")["rows"]["toy/time"]["kinds"] == kinds


def test_lengths_are_given_where_a_sequence_is_shorter():
    for lengths, expected in (([32, 32], False), ([32, 31], True)):
        split, whole = split_of(lengths, 32), split_of([32], 32)
        for train, test in ((split, whole), (whole, split)):
            net = Classifier(tasks.Task(16, 3, train, test, {}), 32, "attn", 0.0)
            assert net.uses_lengths is expected


def test_speed_ups_are_a_geometric_mean_over_tasks():
    kinds = [
        {"eager": {"ms": 4.0}, "attn": {"ms": 2.0}},
        {"eager": {"ms": 9.0}, "attn": {"ms": 0.5}},
    ]
    rows = {f"t{i}/time": {"kinds": of | {"local": {"failed": "x"}}} for i, of in enumerate(kinds)}
    ratio, count = table.speed_ups({"rows": rows})["attn"]
    assert (round(ratio, 9), count) == (6.0, 2)
    mean, half = classify.mean_and_interval([0.4, 0.5], 0.02)
    assert mean == pytest.approx(0.45)
    assert half == pytest.approx((0.02**2 + (12.71 * 0.05) ** 2) ** 0.5, rel=1e-3)


def test_nothing_of_what_a_file_imports_is_left_in_its_text():
    text = (
        "# Copyright of a package\n\nimport os, sys as s\n"
        "from numpy.linalg import (\n    norm,\n)\n"
        "from . import sibling\nfrom __future__ import annotations\n\n"
        'def f():\n    """Adds.\n\n    >>> import scipy\n    """\n'
        "    try:\n        import torch.nn\n"
        "    except ImportError:\n        torch = importlib.import_module('torch')\n"
        "    scipy = pytest.importorskip('scipy')\n    return 1\n"
    )
    shown, imports = sources.without_imports(text)
    assert imports == ["numpy", "os", "sys", "torch"]
    for word in ("import ", "numpy", "norm", "scipy", "torch", "sibling", "Copyright"):
        assert word not in shown, word
    assert shown.startswith("def f():")
    assert shown.endswith("    return 1\n")


def test_documents_are_split_by_package_and_without_copies():
    lines = [f"value_{i} = compute_the_value({i})" for i in range(60)]
    made = [
        sources.Document(f"package{p}", "\n".join(lines[4 * p : 4 * p + 4]), [])
        for p in range(15)
        for _ in range(4)
    ]
    splits = {d.package: "test" if d.package in ("package0", "package1") else "train" for d in made}
    made[0].text = made[20].text  # as what packages carry of others
    kept, copies = sources.split(made, splits)
    assert copies == 1
    assert made[0] not in kept
    assert {d.package for d in kept if d.split == "test"} == {"package0", "package1"}
    shares = sources.split_of(dict.fromkeys("abcdefghijklmnopqrst", 10) | {"large": 60})
    assert shares["large"] == "train"
    assert sum(s == "test" for s in shares.values()) == 3
    assert sources.split_of(dict.fromkeys("abcdefghijklmnopqrst", 10)) == sources.split_of(
        dict.fromkeys("tsrqponmlkjihgfedcba", 10)
    )
