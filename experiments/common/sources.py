"""Python sources of this machine as documents: their packages, their texts and what they import.

Lines that import are taken out of a text, also those within strings and comments, and so are the
comments that it begins with, which say whose it is. Packages are split among training, validation
and test: packages copy from themselves. A document of validation or test of which more than half
of the longer lines are in training's too is left out.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sysconfig
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import data
from .results import cores

MOST = 1500  # documents of a package, so that no package is most of them
BYTES = 65_536  # of a text: more than 16k tokens
SHARES = {"test": 0.15, "validation": 0.1}  # of all documents
LARGEST = 0.08  # of all documents: a package with more is for training

# `import x`, `from x import y`, `import_module("x")` and others that name a module.
_IMPORT = re.compile(
    r"^[\s>.#*\"']*(?:cimport|import)\s+\w|^[\s>.#*\"']*from\s+[\w.]+\s+c?import\b"
    r"|import_module\(|__import__\(|importorskip\(|find_spec\("
)


@dataclass
class Document:
    package: str
    text: str
    imports: list[str]  # packages, not its own
    split: str = ""


def without_imports(text: str) -> tuple[str, list[str]]:
    """The text without what imports, and the packages that its statements import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of strings in others' sources
        tree = ast.parse(text)
    hidden: set[int] = set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
        else:
            continue
        hidden.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    # As the parser counts lines, which splitlines() does not.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    shown = [
        line
        for number, line in enumerate(lines, 1)
        if number not in hidden and not _IMPORT.search(line)
    ]
    while shown and (not shown[0].strip() or shown[0].startswith("#")):
        del shown[0]
    return "\n".join(shown), sorted(found - {"__future__"})


def _of_package(package: str, files: list[Path]) -> list[Document]:
    documents: list[Document] = []
    name = package.removesuffix(".py")
    for text in data.documents(files):
        if len(documents) == MOST:
            break
        try:
            shown, imports = without_imports(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        shown = shown.encode()[:BYTES].decode(errors="ignore")
        if len(shown) > 200:
            others = [i for i in imports if i != name]
            documents.append(Document(name, shown, others))
    return documents


def split_of(counts: dict[str, int]) -> dict[str, str]:
    """A split for each package, by its name's hash, so that it is one on every machine."""
    total = sum(counts.values())
    order = sorted(counts, key=lambda name: hashlib.sha1(name.encode()).digest())
    splits = dict.fromkeys(counts, "train")
    for split, share in SHARES.items():
        taken = 0
        for name in order:
            fits = taken + counts[name] <= share * total
            if splits[name] == "train" and counts[name] <= LARGEST * total and fits:
                splits[name] = split
                taken += counts[name]
    return splits


def lines_of(text: str) -> set[bytes]:
    """Hashes of the lines that say something."""
    stripped = (line.strip() for line in text.split("\n"))
    return {hashlib.md5(line.encode()).digest()[:8] for line in stripped if len(line) >= 20}


def split(
    documents: list[Document], splits: dict[str, str] | None = None
) -> tuple[list[Document], int]:
    """Splits are set; without the copies of training's in the others, whose number is given."""
    if splits is None:
        splits = split_of(Counter(d.package for d in documents))
    known: set[bytes] = set()
    for document in documents:
        document.split = splits[document.package]
        if document.split == "train":
            known |= lines_of(document.text)
    kept, copies = [], 0
    for document in documents:
        lines = lines_of(document.text)
        if document.split != "train" and len(lines & known) > 0.5 * len(lines):
            copies += 1
        else:
            kept.append(document)
    return kept, copies


def make(folder: Path, sources: list[Path] | None = None) -> None:
    """Writes documents.json and documents.npz of the folder."""
    start = time.time()
    of = data.packages(sources or [Path(sysconfig.get_path("purelib"))])
    with ProcessPoolExecutor(cores()) as pool:
        parts = list(pool.map(_of_package, of, of.values()))
    documents, copies = split([document for part in parts for document in part])
    if not all(any(d.split == s for d in documents) for s in ("train", *SHARES)):
        raise SystemExit(f"{len(of)} packages are too few for training, validation and test")
    texts = [d.text.encode() for d in documents]
    about: dict[str, Any] = {
        "documents": {s: sum(d.split == s for d in documents) for s in ("train", *SHARES)},
        "packages": {
            s: sorted({d.package for d in documents if d.split == s}) for s in ("train", *SHARES)
        },
        "copies_left_out": copies,
        "seconds": round(time.time() - start, 1),
        "rows": [[d.package, d.split, d.imports] for d in documents],
    }
    folder.mkdir(parents=True, exist_ok=True)
    ends = np.cumsum([len(t) for t in texts])
    with (folder / "documents.new.npz").open("wb") as file:
        np.savez(file, text=np.frombuffer(b"".join(texts), np.uint8), ends=ends)
    (folder / "documents.new.npz").replace(folder / "documents.npz")
    data.write(folder / "documents.json", json.dumps(about).encode())


def load(folder: Path) -> tuple[list[Document], dict[str, Any]]:
    """The documents, which are read from this machine the first time, and what is known of them."""
    with data.alone(folder, "documents"):
        if not (folder / "documents.json").exists():
            make(folder)
    about = json.loads((folder / "documents.json").read_text())
    stored = np.load(folder / "documents.npz")
    text, ends = stored["text"].tobytes(), stored["ends"].tolist()
    documents = [
        Document(package, text[start:end].decode(), imports, split)
        for (package, split, imports), start, end in zip(
            about.pop("rows"), [0, *ends[:-1]], ends, strict=True
        )
    ]
    return documents, about


def toy() -> list[Document]:
    """Of Python's own library: its modules, and folders, are packages."""
    of = data.packages([Path(sysconfig.get_path("stdlib"))])
    chosen = ("asyncio", "email", "html", "http", "json", "logging", "multiprocessing", "xml")
    documents = [d for name in chosen for d in _of_package(name, of.get(name, [])[:8])]
    splits = {name: "train" for name in chosen} | {"http": "test", "json": "validation"}
    return split(documents, splits)[0]
