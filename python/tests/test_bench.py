"""What benchmarks make of their results."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def test_table_and_figure_of_torch_peers(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench/python"), *sys.path])
    import torch_peers_report as report

    def row(kind, n, **times):
        first = dict.fromkeys(times, 1.5)
        return {"kind": kind, "d": 64, "n": n, "first": first, "forward": times, "backward": times}

    result = {"command": "python torch_peers.py", "tokens": 4096, "rows": [
        row("softcap", 1024, attn=0.25), row("causal", 2048, attn=0.5, fa2=1.0),
        row("causal", 1024, attn=0.25, fa2=0.5),
    ]}  # fmt: skip
    assert report.table(result).splitlines()[4:] == [
        "| causal | 64 | 1024 | 0.25 / 0.25 (1.5 s) |  | 0.5 / 0.5 (1.5 s) |  |",
        "| causal | 64 | 2048 | 0.5 / 0.5 (1.5 s) |  | 1 / 1 (1.5 s) |  |",
        "| softcap | 64 | 1024 | 0.25 / 0.25 (1.5 s) |  |  |  |",
    ]
    drawn = ElementTree.fromstring(report.figure(result))
    lines = [e for e in drawn.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 2 * 2  # passes, implementations of the mask with two lengths


def test_tracing_measures_every_row(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench/python"), *sys.path])
    import tracing

    file = tmp_path / "tracing.json"
    monkeypatch.setattr(sys, "argv", ["tracing.py", "--repeat", "2", "--json", str(file)])
    tracing.main()
    kept = json.loads(file.read_text())
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + len(tracing.FUNCTIONS) + 1 + len(kept["plan_us"])
    for row in kept["trace_us"].values():
        assert 0 < row["again"] < row["first"]  # it would be as long if nothing were kept
    assert all(0 < us < 1e5 for us in kept["plan_us"].values())
    assert "a softcap" in printed[5]


def test_scalars_measures_every_function(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench/python"), *sys.path])
    import scalars

    file = tmp_path / "scalars.json"
    arguments = ["--lengths", "40", "--pairs", "3", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["scalars.py", *arguments])
    scalars.main()
    kept = json.loads(file.read_text())
    assert list(kept) == ["n 40, d 64", "n 40, d 128"]
    names = list(scalars.functions(0.5, 2))
    assert all(list(rows) == names for rows in kept.values())
    assert all(row["ratio"] > 0 < row["literal_ms"] for r in kept.values() for row in r.values())
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * len(names)


def test_scalars_ends_where_results_differ(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench/python"), *sys.path])
    import scalars

    with pytest.raises(SystemExit, match="other results"):
        scalars.ratio(lambda: np.zeros(3), lambda: np.ones(3), 1, scalars.processor_seconds)
