"""How attn says that something has no form as an expression, and where it stands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ..errors import InvalidArgument

_HERE = str(Path(__file__).parents[1]) + os.sep  # of the package


class TraceError(InvalidArgument):
    """A function or operation that has no form as an expression; says which, and at what line."""


def user_line() -> str:
    """`file.py:12`, the innermost line being executed outside of attn, torch and NumPy."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if not name.startswith(_HERE) and module not in ("torch", "numpy"):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "unknown line"


def _never() -> bool:
    return False


# Whether a compiler reads this, which says itself where it was. attn.torch sets it.
is_compiling: Callable[[], bool] = _never


def refuse(what: str) -> NoReturn:
    if is_compiling():
        raise TraceError(what)
    raise TraceError(f"{what} ({user_line()})")
