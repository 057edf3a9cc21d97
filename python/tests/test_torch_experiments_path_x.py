"""Path-X: fresh images, positions, and when it counts as learnt (experiments/path_x)."""

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from experiments.long_range_arena import tasks  # noqa: E402
from experiments.path_x import images, model  # noqa: E402
from experiments.path_x import run as path_x  # noqa: E402


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_streams_are_fresh_images_in_an_order_that_no_speed_changes(tmp_path):
    program = tasks.compiled("pathfinder", tmp_path)

    def stream(split, processes, seed=1):
        folder = tmp_path / f"{split}_{processes}_{seed}"
        return images.Stream(program, folder, 32, 6, seed, split, processes, shard=10)

    slow, fast = stream("train", 1), stream("train", 3)
    for step in (0, 1, 9):
        a, b = (images.batch_of(s, 8, 2, step) for s in (slow, fast))
        assert (a["tokens"] == b["tokens"]).all()
        assert (a["labels"] == b["labels"]).all()
    # A run that goes on begins with a later step.
    again = images.batch_of(stream("train", 2), 8, 2, 9)
    assert (again["tokens"] == a["tokens"]).all()
    others = [stream("test", 1), stream("even", 1), stream("train", 1, seed=2)]
    shards = [s.read(0) for s in (slow, *others)] + [others[0].read(1)]
    turned = {images.turned(i, s).tobytes() for i in shards[0][0] for s in range(8)}
    for found, *_ in shards[1:]:
        assert not turned & {image.tobytes() for image in found}
    # Even images are pairs of both classes at one distance.
    _, labels, discs = shards[2]
    apart = (64 * np.hypot(discs[:, 0] - discs[:, 2], discs[:, 1] - discs[:, 3]) / 32).astype(int)
    assert (labels[::2] + labels[1::2] == 1).all()
    assert (apart[::2] == apart[1::2]).all()
    for each in (slow, fast, *others):
        each.stop()


def test_positions_of_larger_images_are_those_of_the_smaller():
    torch.manual_seed(6)
    small = model.PathModel(4, "grid", "eager", 0.0)
    large = model.PathModel(8, "grid", "eager", 0.0)
    large.load_state_dict(model.grown(small.state_dict(), 8))
    a = small.encoder.positions().view(4, 4, -1)
    b = large.encoder.positions().view(8, 8, -1)
    assert torch.equal(b[5, 2], a[2, 1])
    # Rotary scores follow from how far rows and columns are apart.
    q, k = torch.randn(2, 1, 1, 1, 32).expand(2, 1, 64, 1, 32)
    turn = model.RotaryGrid(8, 32)
    scores = (turn(q)[0, :, 0] @ turn(k)[0, :, 0].T).view(8, 8, 8, 8)
    torch.testing.assert_close(scores[1, 2, 4, 3], scores[3, 5, 6, 6])
    for row, column in ((3, 4), (6, 3), (4, 5)):
        assert (scores[1, 2, 4, 3] - scores[1, 2, row, column]).abs() > 1e-3


def test_the_verdict_is_of_five_standard_errors():
    labels, discs = np.arange(10_000) % 2, np.zeros((10_000, 4), np.float32)
    row = path_x.judged(5250, labels, discs)
    assert row["standard_errors"] == pytest.approx(5.0)
    assert path_x.said(row).endswith("above chance: better")
    assert path_x.said(path_x.judged(5249, labels, discs)).endswith("no better")
    # Where the longest distances are all of one class, knowing the distance is enough.
    discs[:, 0] = 9 * labels
    assert path_x.judged(5250, labels, discs)["distance_of_discs"] == 1.0


def test_a_curriculum_stops_below_60_percent(tmp_path, monkeypatch):
    ran = []

    def apart(function, positions, stage, begin, *_):
        ran.append((positions, stage.name, begin and begin.name))
        accuracy = 0.59 if positions == "grid" else 0.61
        return path_x.judged(int(100 * accuracy), np.arange(100) % 2, np.zeros((100, 4)))

    monkeypatch.setattr(path_x.results, "apart", apart)
    monkeypatch.setattr(path_x, "compiled", lambda *_: None)
    parser = argparse.ArgumentParser()
    path_x.add_options(parser)
    options = parser.parse_args(["--speed", ""])
    options.__dict__ |= {
        "out": tmp_path,
        "resume": False,
        "device": "cpu",
        "deadline": 9e99,
        "seed": 1,
    }
    result = path_x.run(options)
    assert ran == [
        ("grid", "32/attn", None),
        ("grid", "64/attn", "32/attn"),
        ("rotary", "32x6/attn", None),
        ("rotary", "32/attn", "32x6/attn"),
        ("rotary", "64/attn", "32/attn"),
        ("rotary", "128/attn", "64/attn"),
        ("rotary", "128/attn_block_sparse", "64/attn"),
        ("rotary", "256/attn_block_sparse", "128/attn_block_sparse"),
    ]
    assert list(result["stopped"]) == ["grid"]
    assert json.loads((tmp_path / "result.json").read_text()) == result
