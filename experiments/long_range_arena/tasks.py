"""Tasks of Long Range Arena: ListOps and Pathfinder, made by programs; Text, IMDB in bytes; Image,
CIFAR-10 in grey; and in the place of Retrieval pairs of Python files.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..common import sources
from ..common.data import write

# Lists for training, validation and the test, as in Long Range Arena, and the shortest and longest.
COUNTS = {"train": 96_000, "validation": 2_000, "test": 2_000}
PATHFINDER = {"train": 160_000, "test": 20_000}


@dataclass
class Split:
    tokens: np.ndarray  # uint8 [rows, length], filled up with `padding`
    lengths: np.ndarray  # int32 [rows]
    labels: np.ndarray  # int64 [rows], or of the pairs
    pairs: np.ndarray | None = None  # int64 [labels, 2]: rows, where two are asked about together


@dataclass
class Task:
    vocabulary: int  # padding is its last token
    classes: int
    train: Split
    test: Split
    known: dict[str, Any]  # what is known of the data


def compiled(name: str, folder: Path) -> Path:
    """NAME.cpp beside this file as a program in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name(f"{name}.cpp")
    subprocess.run(["c++", "-O3", "-std=c++20", str(source), "-o", str(folder / name)], check=True)
    return folder / name


def make_listops(folder: Path, counts: dict[str, int], *bounds: int) -> None:
    """Writes listops.tokens, listops.index and listops.json, of different lists."""
    program = compiled("listops", folder)
    total = sum(counts.values())
    said = subprocess.run(
        [str(program), str(folder / "listops"), str(total), "1", *map(str, bounds)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    write(folder / "listops.json", said.encode())


def listops(folder: Path, length: int, counts: dict[str, int]) -> Task:
    tokens = np.fromfile(folder / "listops.tokens", np.uint8)
    index = np.fromfile(folder / "listops.index", np.int32).reshape(-1, 2)
    padding = 15
    rows = np.full((len(index), length), padding, np.uint8)
    inside = np.arange(length) < index[:, :1]
    rows[inside] = tokens  # all of a list, and no list is longer
    train = counts["train"]
    test = train + counts["validation"]
    splits = [
        Split(rows[part], index[part, 0].copy(), index[part, 1].astype(np.int64))
        for part in (slice(0, train), slice(test, test + counts["test"]))
    ]
    known = json.loads((folder / "listops.json").read_text())
    known["root_operator_on_test"] = by_key(
        *((split.tokens[:, 0].astype(int), split.labels) for split in splits)
    )
    return Task(16, 10, splits[0], splits[1], known)


def make_pathfinder(folder: Path, size: int, counts: dict[str, int], processes: int = 1) -> None:
    """Writes pathfinder_SIZE_PART.images and .labels, a part for each process."""
    program = compiled("pathfinder", folder)
    each = -(-sum(counts.values()) // processes)
    running = [
        subprocess.Popen(
            [str(program), str(folder / f"pathfinder_{size}_{i}"), str(each), str(i + 1), str(size)]
        )
        for i in range(processes)
    ]
    if any([process.wait() for process in running]):
        raise SystemExit("pathfinder failed")
    about = {"size": size, "parts": processes, "images": counts}
    write(folder / f"pathfinder_{size}.json", json.dumps(about).encode())


def pathfinder(folder: Path, size: int, counts: dict[str, int]) -> Task:
    """An image is size * size tokens, its pixels."""
    images, labels, discs = [], [], []
    parts = json.loads((folder / f"pathfinder_{size}.json").read_text())["parts"]
    for i in range(parts):
        part = folder / f"pathfinder_{size}_{i}"
        images.append(np.fromfile(part.with_suffix(".images"), np.uint8).reshape(-1, size * size))
        labels.append(np.fromfile(part.with_suffix(".labels"), np.uint8).astype(np.int64))
        discs.append(np.fromfile(part.with_suffix(".discs"), np.float32).reshape(-1, 4))
    tokens, classes = np.concatenate(images), np.concatenate(labels)
    lengths = np.full(len(classes), size * size, np.int32)
    train, test = slice(0, counts["train"]), slice(counts["train"], sum(counts.values()))
    splits = [Split(tokens[part], lengths[part], classes[part]) for part in (train, test)]
    apart = distance(np.concatenate(discs))
    known = by_key((apart[train], classes[train]), (apart[test], classes[test]))
    about = {"dashes": 14, "size": size, "distance_of_discs": known}
    return Task(256, 2, splits[0], splits[1], about)


def distance(discs: np.ndarray) -> np.ndarray:
    """Whole pixels between the two discs of each image, x and y of one and of the other."""
    return np.hypot(discs[:, 0] - discs[:, 2], discs[:, 1] - discs[:, 3]).astype(int)


def by_key(learnt: tuple[np.ndarray, np.ndarray], asked: tuple[np.ndarray, np.ndarray]) -> float:
    """Accuracy of who knows the key of a row alone: says the class that is most frequent there.

    Both are keys >= 0 and labels of rows; the classes are learnt from the first.
    """
    counts = np.zeros((1 + max(k.max() for k, _ in (learnt, asked)), 1 + learnt[1].max()))
    np.add.at(counts, learnt, 1)
    return float((counts.argmax(1)[asked[0]] == asked[1]).mean())


def text(folder: Path, length: int) -> Task:
    splits = []
    for name in ("train", "test"):
        with lzma.open(folder / f"imdb_{name}.tsv.xz", "rt", encoding="utf-8") as lines:
            rows = [line.rstrip("\n").split("\t", 2) for line in lines]
        tokens, lengths = padded([row[2].encode() for row in rows], length)
        splits.append(Split(tokens, lengths, np.array([int(row[0]) for row in rows], np.int64)))
    return Task(256, 2, splits[0], splits[1], {"mean_length": float(splits[1].lengths.mean())})


def padded(texts: list[bytes], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Their first bytes as tokens, [texts, length], and how many."""
    tokens = np.zeros((len(texts), length), np.uint8)
    lengths = np.array([min(len(t), length) for t in texts], np.int32)
    for row, content in zip(tokens, texts, strict=True):
        raw = np.frombuffer(content[:length], np.uint8)
        row[: len(raw)] = raw
    return tokens, lengths


def image(folder: Path) -> Task:
    """CIFAR-10 in grey, from a copy as JPEG files: a token a pixel."""
    file = folder / "cifar10_gray.npz.xz"
    with lzma.open(file) as packed:
        stored = np.load(io.BytesIO(packed.read()))
    splits = [
        Split(
            stored[f"{name}_x"].reshape(-1, 1024),
            np.full(len(stored[f"{name}_y"]), 1024, np.int32),
            stored[f"{name}_y"].astype(np.int64),
        )
        for name in ("train", "test")
    ]
    return Task(256, 10, splits[0], splits[1], {"source": "JPEG copy of CIFAR-10, in grey"})


# Of Retrieval: as many pairs as are drawn of documents, half of them of one package.
PAIRS = {"train": 60_000, "test": 6_000}


def retrieval(
    documents: list[sources.Document], length: int, pairs: dict[str, int], seed: int = 1
) -> Task:
    """Are two Python files of one package? Rows are two documents of `length` bytes.

    The substitute for Long Range Arena's task, whose articles are not here. Packages of the test
    are not those of training.
    """
    splits, known = [], {}
    for name, count in pairs.items():
        # Validation's packages are of the test here: no choice is made by it.
        mine = [d for d in documents if (d.split == "train") == (name == "train")]
        of: dict[str, list[int]] = {}
        for i, document in enumerate(mine):
            of.setdefault(document.package, []).append(i)
        tokens, lengths = padded([d.text.encode() for d in mine], length)
        several = [package for package, found in of.items() if len(found) > 1]
        if not several or len(of) < 2:
            raise SystemExit(f"Retrieval needs two packages for {name}, one of several files")
        # By the square root of their files: neither the largest nor the smallest are most pairs.
        weights = np.sqrt([len(of[package]) for package in several])
        random = np.random.default_rng((seed, name == "train"))
        labels = random.integers(0, 2, count)
        chosen = np.empty((count, 2), np.int64)
        for row, label in zip(chosen, labels, strict=True):
            one = random.choice(len(several), p=weights / weights.sum())
            if label == 1:
                row[:] = random.choice(of[several[one]], 2, replace=False)
                continue
            other = one
            while other == one:
                other = random.choice(len(several), p=weights / weights.sum())
            row[:] = [random.choice(of[several[i]]) for i in (one, other)]
        splits.append(Split(tokens, lengths, labels, chosen))
        known[f"packages_{name}"] = len(several)
    known["shared_words"] = by_key(*(shared_words(split) for split in splits))
    return Task(256, 2, splits[0], splits[1], known)


def shared_words(split: Split, most: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Of pairs: the share of words that both documents have, in fiftieths, and their labels."""
    assert split.pairs is not None
    words: dict[int, set[bytes]] = {}
    shares = []
    for pair in split.pairs[:most].tolist():
        for row in pair:
            if row not in words:
                content = split.tokens[row, : split.lengths[row]].tobytes()
                words[row] = set(re.findall(rb"[A-Za-z_]{4,}", content))
        one, other = (words[row] for row in pair)
        shares.append(int(50 * len(one & other) / max(1, len(one | other))))
    return np.array(shares), split.labels[:most]
