"""Long documents: labels and F1 (experiments/long_documents)."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from experiments.common import sources  # noqa: E402
from experiments.long_documents import documents  # noqa: E402


def test_f1_and_its_threshold_are_those_of_the_definition():
    random = np.random.default_rng(7)
    labels = (random.random((30, 5)) < 0.3).astype(np.float32)
    scores = (labels + random.normal(0, 1.0, labels.shape)).astype(np.float32)

    def by_definition(threshold):
        said = scores > threshold
        true = (said & (labels > 0)).sum()
        precision, recall = true / max(1, said.sum()), true / labels.sum()
        return 2 * precision * recall / max(1e-9, precision + recall)

    for threshold in (-0.5, 0.3, 1.1):
        found = documents.f1(documents.counts(scores, labels, threshold))
        assert found == pytest.approx(by_definition(threshold))
    best = documents.best_threshold(scores, labels)
    every = [by_definition(t) for t in np.unique(scores) - 1e-6]
    assert by_definition(best) == pytest.approx(max(every))


def test_labels_are_what_several_packages_import():
    made = [sources.Document(f"p{i % 4}", "x", ["numpy", f"own{i % 4}"], "train") for i in range(8)]
    made += [sources.Document("q", "x", ["unseen"], "test")] * 3
    assert documents.labels_of(made, share=0.1, packages=3) == ["numpy"]
