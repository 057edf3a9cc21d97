"""Streams of fresh Pathfinder images: number i of a stream follows from its seed alone.

Programs make shards of a stream ahead of who reads it; what lies behind is removed. A step learns
from the newest shards, as many as WINDOW, and each image is seen `repeats` times in the mean, under
one of the 8 symmetries of a square, of which none changes the class. What step i gets does not
depend on how fast images are made: where they are late it waits.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

WINDOW = 8  # shards
SPLITS = ("train", "test", "even")


@dataclass
class Stream:
    program: Path  # pathfinder, compiled
    folder: Path  # of its files, which nothing else has
    size: int
    dashes: int
    seed: int
    split: str  # "train", "test" or "even": other images for any seed
    processes: int = 1
    shard: int = 500  # images of one program
    _running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _made: set[int] = field(default_factory=set)  # and not read yet
    _read: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=dict)

    def _seed_of(self, number: int) -> int:
        words = (self.seed, self.size, self.dashes, SPLITS.index(self.split), number)
        return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])

    def _file(self, number: int) -> Path:
        return self.folder / f"{self.split}_{self.size}_{self.dashes}_{number}"

    def _collect(self) -> None:
        for n, process in list(self._running.items()):
            if process.poll() is None:
                continue
            if process.returncode:
                raise SystemExit(f"pathfinder failed for {self._file(n).name}")
            self._made.add(n)
            del self._running[n]

    def ahead(self, first: int, count: int) -> None:
        """Starts the programs of these shards, at most `processes` at once."""
        self._collect()
        self.folder.mkdir(parents=True, exist_ok=True)
        for n in range(first, first + count):
            if len(self._running) >= self.processes:
                return
            if n in self._running or n in self._made or n in self._read:
                continue
            words = [self._file(n), self.shard, self._seed_of(n), self.size, self.dashes]
            even = ["even"] if self.split == "even" else []
            self._running[n] = subprocess.Popen([str(w) for w in (self.program, *words, *even)])

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images u8 [shard, size, size], labels i64 [shard], discs f32 [shard, 4]."""
        if number not in self._read:
            self._collect()
            while number not in self._made:
                self.ahead(number, 1)
                self._running.get(number, next(iter(self._running.values()))).wait()
                self._collect()
            file = self._file(number)
            shape = (self.shard, self.size, self.size)
            self._read[number] = (
                np.fromfile(file.with_suffix(".images"), np.uint8).reshape(shape),
                np.fromfile(file.with_suffix(".labels"), np.uint8).astype(np.int64),
                np.fromfile(file.with_suffix(".discs"), np.float32).reshape(-1, 4),
            )
            for old in [n for n in self._read if n <= number - 2 * WINDOW]:
                del self._read[old]
            self._made.remove(number)
            for suffix in (".images", ".labels", ".discs"):
                file.with_suffix(suffix).unlink()
        return self._read[number]

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
            process.wait()
        self._running.clear()


def turned(images: np.ndarray, symmetry: int) -> np.ndarray:
    """One of the 8 symmetries of a square, 0 to 7, of images [..., size, size]."""
    images = np.rot90(images, symmetry % 4, axes=(-2, -1))
    return images.swapaxes(-2, -1) if symmetry >= 4 else images


def batch_of(stream: Stream, batch: int, repeats: int, step: int) -> dict[str, np.ndarray]:
    """A step's tokens, u8 [batch, size * size], and labels, i64 [batch]."""
    random = np.random.default_rng((stream.seed, stream.size, stream.dashes, step))
    newest = WINDOW - 1 + step * batch // (stream.shard * repeats)
    stream.ahead(newest - WINDOW + 1, WINDOW + 2 * stream.processes)
    shards, rows = np.divmod(random.integers(0, WINDOW * stream.shard, batch), stream.shard)
    symmetries = random.integers(0, 8, batch)
    images = np.empty((batch, stream.size, stream.size), np.uint8)
    labels = np.empty(batch, np.int64)
    for n in np.unique(shards).tolist():
        found, classes, _ = stream.read(newest - n)
        images[shards == n] = found[rows[shards == n]]
        labels[shards == n] = classes[rows[shards == n]]
    for symmetry in range(8):
        images[symmetries == symmetry] = turned(images[symmetries == symmetry], symmetry)
    return {"tokens": images.reshape(batch, -1), "labels": labels}
