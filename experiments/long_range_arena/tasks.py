"""Two tasks of Long Range Arena: ListOps, made by a program, and Text, reviews of IMDB in bytes."""

from __future__ import annotations

import json
import lzma
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..common.data import write

# Lists for training, validation and the test, as in Long Range Arena, and the shortest and longest.
COUNTS = {"train": 96_000, "validation": 2_000, "test": 2_000}
SOURCE = Path(__file__).with_name("listops.cpp")


@dataclass
class Split:
    tokens: np.ndarray  # uint8 [rows, length], filled up with `padding`
    lengths: np.ndarray  # int32 [rows]
    labels: np.ndarray  # int64 [rows]


@dataclass
class Task:
    vocabulary: int  # padding is its last token
    classes: int
    train: Split
    test: Split
    known: dict[str, Any]  # what is known of the data


def make_listops(folder: Path, counts: dict[str, int], *bounds: int) -> None:
    """Compiles the program and writes listops_SPLIT.npz, different lists in each."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "listops"
    subprocess.run(["c++", "-O3", "-std=c++20", str(SOURCE), "-o", str(program)], check=True)
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
    return Task(16, 10, splits[0], splits[1], known)


def text(folder: Path, length: int) -> Task:
    splits = []
    for name in ("train", "test"):
        with lzma.open(folder / f"imdb_{name}.tsv.xz", "rt", encoding="utf-8") as lines:
            rows = [line.rstrip("\n").split("\t", 2) for line in lines]
        tokens = np.zeros((len(rows), length), np.uint8)
        lengths = np.zeros(len(rows), np.int32)
        for i, (_, _, review) in enumerate(rows):
            raw = np.frombuffer(review.encode()[:length], np.uint8)
            tokens[i, : len(raw)] = raw
            lengths[i] = len(raw)
        labels = np.array([int(row[0]) for row in rows], np.int64)
        splits.append(Split(tokens, lengths, labels))
    return Task(256, 2, splits[0], splits[1], {"mean_length": float(splits[1].lengths.mean())})
