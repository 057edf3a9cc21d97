"""Which packages does a Python file import? Documents in tokens, labels, batches, and F1."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..common import data, sources

LABELS = 48  # at most
PACKAGES, SHARE = 3, 0.01  # of training that import what is a label: so many, and of documents
LONG = 4096  # tokens of a document that counts among the long ones


@dataclass
class Split:
    tokens: list[np.ndarray]  # uint16, whole documents
    labels: np.ndarray  # float32 [documents, labels], 0 or 1


@dataclass
class Task:
    names: list[str]  # of the labels
    vocabulary: int
    splits: dict[str, Split]  # train, validation, test


def labels_of(documents: list[sources.Document], share: float, packages: int) -> list[str]:
    """What enough packages and documents of training import, the most frequent first."""
    train = [d for d in documents if d.split == "train"]
    count = Counter(name for d in train for name in d.imports)
    importers = Counter(name for name, _ in {(n, d.package) for d in train for n in d.imports})
    enough = share * len(train)
    frequent = [n for n, c in count.most_common() if c >= enough and importers[n] >= packages]
    return frequent[:LABELS]


def task_of(
    documents: list[sources.Document],
    tokens: list[np.ndarray],
    vocabulary: int,
    share: float = SHARE,
    packages: int = PACKAGES,
) -> Task:
    """Documents that import none of the labels are among them."""
    names = labels_of(documents, share, packages)
    if not names:
        raise SystemExit("no package is imported by enough documents")
    splits = {}
    for split in ("train", "validation", "test"):
        chosen = [i for i, d in enumerate(documents) if d.split == split]
        labels = np.zeros((len(chosen), len(names)), np.float32)
        for row, i in zip(labels, chosen, strict=True):
            row[[names.index(n) for n in documents[i].imports if n in names]] = 1
        splits[split] = Split([tokens[i] for i in chosen], labels)
    return Task(names, vocabulary, splits)


def load(folder: Path) -> Task:
    """In GPT-2's tokens, which are written to the folder the first time."""
    documents, _ = sources.load(folder)
    file = folder / "documents_tokens.npz"
    with data.alone(folder, "documents_tokens"):
        if not file.exists():
            tokenize(documents, folder / "gpt2_merges.txt.xz", file)
    stored = np.load(file)
    tokens = np.split(stored["tokens"], stored["ends"][:-1])
    return task_of(documents, tokens, data.END + 1)


def tokenize(documents: list[sources.Document], merges: Path, file: Path) -> None:
    encode = data.tokenizer(merges).encode_batch_fast
    texts = [d.text for d in documents]
    parts = []
    for i in range(0, len(texts), 512):
        parts += [np.array(e.ids, np.uint16) for e in encode(texts[i : i + 512])]
    beside = file.with_suffix(".new.npz")
    with beside.open("wb") as out:
        np.savez(out, tokens=np.concatenate(parts), ends=np.cumsum([len(p) for p in parts]))
    beside.replace(file)


def toy() -> Task:
    documents = sources.toy()
    tokens = [np.frombuffer(d.text.encode(), np.uint8).astype(np.uint16) for d in documents]
    return task_of(documents, tokens, 256, share=0.1, packages=2)


def packed(split: Split, rows: np.ndarray, n: int) -> dict[str, np.ndarray]:
    """The first n tokens of these documents, one after the other, as attention takes them."""
    parts = [split.tokens[i][:n].astype(np.int64) for i in rows]
    lengths = np.array([len(p) for p in parts], np.int32)
    return {
        "tokens": np.concatenate(parts)[None],
        "at": np.concatenate([np.arange(len(p)) for p in parts])[None],
        "owner": np.repeat(np.arange(len(parts)), lengths),
        "lengths": lengths,
        "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        "labels": split.labels[rows],
    }


def drawn(split: Split, batch: int, seed: int, step: int) -> np.ndarray:
    """Documents of a step, by the seed and the step alone: the same ones at any length."""
    return np.random.default_rng((seed, step)).integers(0, len(split.tokens), batch)


def counts(scores: np.ndarray, labels: np.ndarray, threshold: float) -> np.ndarray:
    """Of each document: labels found, labels said, and labels that it has, [documents, 3]."""
    said, has = scores > threshold, labels > 0
    return np.stack([(said & has).sum(1), said.sum(1), has.sum(1)], 1)


def f1(table: np.ndarray) -> float:
    """Micro-F1: 2 found / (said + has), of all documents and labels together."""
    found, said, has = table.sum(0)
    return float(2 * found / max(1, said + has))


def best_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    """Where F1 is largest; to be chosen on validation."""
    order = np.argsort(scores, axis=None)[::-1]
    found = np.cumsum(labels.reshape(-1)[order])
    values = 2 * found / (np.arange(1, len(order) + 1) + labels.sum())
    at = int(values.argmax())
    ranked = scores.reshape(-1)[order]
    return float((ranked[at] + ranked[min(at + 1, len(ranked) - 1)]) / 2)


def measured(scores: np.ndarray, split: Split, threshold: float) -> dict[str, float | int]:
    """F1 with half of a 95 % interval, of all documents and of the long ones."""
    table = counts(scores, split.labels, threshold)
    long = table[[len(t) > LONG for t in split.tokens]]
    row: dict[str, float | int] = {"documents": len(table), "long_documents": len(long)}
    for end, of in (("", table), ("_long", long)):
        if len(of):
            row["f1" + end] = f1(of)
            row["interval_95" + end] = interval(of)
    return row


def interval(table: np.ndarray, draws: int = 400) -> float:
    """Half of a 95 % interval of F1, by drawing documents with replacement."""
    random = np.random.default_rng(1)
    values = [f1(table[random.integers(0, len(table), len(table))]) for _ in range(draws)]
    return 1.96 * float(np.std(values))
