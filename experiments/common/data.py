"""Text on this machine as a file of tokens, and batches of it in an order that a seed decides.

  python -m experiments data --data DIR [--tokens N]

reads the Python sources of the packages that are installed, splits them by package (packages copy
from themselves, so a split by file would leak), and writes DIR/python_train.bin and
DIR/python_validation.bin (uint16), tokenised with GPT-2's byte-level BPE from
DIR/gpt2_merges.txt.xz, and DIR/python.json. It downloads nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import lzma
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

END = 50256  # GPT-2's <|endoftext|>, before each document
VALIDATION = ("networkx", "skimage", "scipy")  # packages; of those the ones that are there


def byte_symbols() -> list[str]:
    """GPT-2's printable symbols of the 256 bytes, in the order of its vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    symbols = {b: chr(b) for b in printable}
    symbols.update({b: chr(256 + i) for i, b in enumerate(others)})
    return [symbols[b] for b in printable + others]


def tokenizer(merges_file: Path) -> Any:
    """GPT-2's tokenizer: its vocabulary follows from its merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    with lzma.open(merges_file, "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    pairs = (line.split(" ") for line in lines if line and not line.startswith("#version"))
    merges = [(a, b) for a, b in pairs]
    words = [*byte_symbols(), *(a + b for a, b in merges), "<|endoftext|>"]
    vocabulary = {word: i for i, word in enumerate(words)}
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    assert vocabulary["<|endoftext|>"] == END, "these are not GPT-2's merges"
    return made


def packages(folders: list[Path]) -> dict[str, list[Path]]:
    """Python files of each package in the folders, in one order on every machine."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            found.setdefault(file.relative_to(folder).parts[0], []).append(file)
    return dict(sorted(found.items()))


def documents(files: list[Path]) -> Iterator[str]:
    """Their texts without copies and without tables of numbers."""
    seen: set[bytes] = set()
    for file in files:
        try:
            raw = file.read_bytes()
            text = raw.decode()
        except (OSError, UnicodeDecodeError):
            continue
        digits = len(raw) - len(raw.translate(None, b"0123456789"))
        key = hashlib.sha1(raw).digest()
        if not 200 <= len(raw) <= 1_000_000 or digits > 0.2 * len(raw) or key in seen:
            continue
        seen.add(key)
        yield text


def prepare(folder: Path, most_tokens: int, sources: list[Path] | None = None) -> dict[str, Any]:
    """Writes the token files; packages in turn until there are most_tokens for training."""
    encode = tokenizer(folder / "gpt2_merges.txt.xz").encode_batch_fast
    sources = sources or [Path(sysconfig.get_path("purelib"))]
    of = packages(sources)
    start = time.time()
    about: dict[str, Any] = {"tokens": {}, "packages": {}, "tokenizer": "GPT-2's BPE"}
    # Large packages first: many small ones would leave the largest documents out.
    names = sorted(of, key=lambda name: -sum(f.stat().st_size for f in of[name]))
    splits = {
        "validation": ([n for n in names if n in VALIDATION], max(most_tokens // 10, 1)),
        "train": ([n for n in names if n not in VALIDATION], most_tokens),
    }
    for split, (chosen, most) in splits.items():
        parts: list[np.ndarray] = []
        total = 0
        for name in chosen:
            texts = list(documents(of[name]))
            for i in range(0, len(texts), 512):
                for encoding in encode(texts[i : i + 512]):
                    parts.append(np.array([END, *encoding.ids], np.uint16))
                    total += len(parts[-1])
                if total >= most:
                    break
            about["packages"].setdefault(split, []).append(name)
            if total >= most:
                break
        if not parts:
            raise SystemExit(f"no sources for {split} in {', '.join(map(str, sources))}")
        tokens = np.concatenate(parts)[:most]
        write(folder / f"python_{split}.bin", tokens.tobytes())
        about["tokens"][split] = len(tokens)
    about["seconds"] = round(time.time() - start, 1)
    write(folder / "python.json", json.dumps(about, indent=1).encode())
    return about


@contextlib.contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """While nobody else makes what has this name in the folder; waits for who does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content)
    beside.replace(path)


def load(folder: Path, split: str) -> np.ndarray:
    path = folder / f"python_{split}.bin"
    if not path.exists():
        raise SystemExit(f"{path} is missing; python -m experiments data --data {folder} makes it")
    return np.fromfile(path, np.uint16)


def toy(tokens: int = 60_000) -> np.ndarray:
    """Bytes of Python's own library: a text that is on every machine, of a vocabulary of 256."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"".join(file.read_bytes() for file in sorted(folder.glob("*.py"))[:20])
    return np.frombuffer(text[:tokens], np.uint8).astype(np.uint16)


class Batches:
    """Batch i is a function of seed and i alone: what a resumed run sees does not change.

    Sequences begin anywhere in the text, as in nanoGPT.
    """

    def __init__(self, tokens: np.ndarray, batch: int, n: int, seed: int, device: str) -> None:
        self.tokens, self.batch, self.n, self.seed, self.device = tokens, batch, n, seed, device
        if len(tokens) < n + 2:
            raise SystemExit(f"the text has {len(tokens)} tokens; a sequence needs {n + 1}")

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and the tokens that follow each, [batch, n]."""
        random = np.random.default_rng((self.seed, step))
        starts = random.integers(0, len(self.tokens) - self.n - 1, self.batch)
        rows = np.stack([self.tokens[s : s + self.n + 1] for s in starts]).astype(np.int64)
        both = torch.from_numpy(rows)
        if self.device == "cuda":
            both = both.pin_memory().to("cuda", non_blocking=True)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def main(arguments: list[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m experiments data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, help="has gpt2_merges.txt.xz")
    parser.add_argument("--tokens", type=float, default=80e6, help="most, for training")
    parser.add_argument("--sources", type=Path, nargs="*", help="site-packages")
    options = parser.parse_args(arguments)
    about = prepare(options.data, int(options.tokens), options.sources)
    print(json.dumps({"tokens": about["tokens"], "seconds": about["seconds"]}))
