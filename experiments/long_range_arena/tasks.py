"""Tasks of Long Range Arena: ListOps and Pathfinder, made by programs, and Text, IMDB in bytes."""

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
PATHFINDER = {"train": 160_000, "test": 20_000}


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


def pathfinder(folder: Path, size: int, counts: dict[str, int]) -> Task:
    """An image is size * size tokens, its pixels."""
    images, labels = [], []
    for i in range(len(list(folder.glob(f"pathfinder_{size}_*.labels")))):
        part = folder / f"pathfinder_{size}_{i}"
        images.append(np.fromfile(part.with_suffix(".images"), np.uint8).reshape(-1, size * size))
        labels.append(np.fromfile(part.with_suffix(".labels"), np.uint8).astype(np.int64))
    tokens, classes = np.concatenate(images), np.concatenate(labels)
    lengths = np.full(len(classes), size * size, np.int32)
    train, test = slice(0, counts["train"]), slice(counts["train"], sum(counts.values()))
    splits = [Split(tokens[part], lengths[part], classes[part]) for part in (train, test)]
    return Task(256, 2, splits[0], splits[1], {"dashes": 14, "size": size})


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
