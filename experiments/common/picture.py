"""Pictures by the library's own SVG writer, bench/papers/svg.py."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from .results import FOLDER

_SPEC = importlib.util.spec_from_file_location("svg", FOLDER.parent / "bench/papers/svg.py")
assert _SPEC is not None
assert _SPEC.loader is not None
_svg = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_svg)

COLOUR = {"attn": 0, "eager": 1, "sdpa_cudnn": 2, "sdpa_flash": 3, "flex": 4, "repeat": 5}


def colour(name: str) -> int:
    """One for each attention, in every picture."""
    return next((COLOUR[key] for key in ("repeat", *COLOUR) if key in name), 6)


def figure(title: str, panels: Sequence[dict[str, Any]]) -> str:
    return str(_svg.figure(title, panels))


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Means of `window` neighbours."""
    return [sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]


def thinned(values: Sequence[float], first: float, most: int = 120) -> list[tuple[float, float]]:
    """(x, y) of at most so many, for a line."""
    every = -(-len(values) // most)
    return [(first + i, values[i]) for i in range(0, len(values), every)]
