"""How attn says that something has no form as an expression, and where it stands."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ..errors import InvalidArgument

_HERE = str(Path(__file__).parents[1]) + os.sep  # of the package
_STANDARD = str(Path(os.__file__).parent) + os.sep  # Python's own library
_INSTALLED = ("site-packages", "dist-packages")
# What Python may ask an object by, of what the objects of a trace can refuse.
_PROTOCOLS = (
    *(
        side + name
        for name in (
            "add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul",
            "and", "or", "xor", "lshift", "rshift",
        )
        for side in ("", "r")
    ),
    "neg", "pos", "invert", "abs", "round", "trunc", "floor", "ceil",
    "lt", "le", "gt", "ge", "int", "float", "complex", "index", "bytes",
    "iter", "next", "reversed", "contains", "getitem", "setitem", "delitem", "array",
    "enter", "exit", "await",
)  # fmt: skip


def refuse_protocols(cls: type, method: Callable[..., Any], *more: str) -> None:
    """Makes the method what Python calls for each of _PROTOCOLS, and for `more`, that the class
    does not have itself.
    """
    for name in _PROTOCOLS:
        if f"__{name}__" not in vars(cls):
            setattr(cls, f"__{name}__", method)
    for name in more:
        setattr(cls, f"__{name}__", method)


class TraceError(InvalidArgument):
    """A function or operation that has no form as an expression; says which, and at what line."""


def user_line() -> str:
    """`file.py:12`, the innermost line being executed outside of attn, torch and NumPy."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown line"


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if name.startswith(_STANDARD) and not any(part in name for part in _INSTALLED):
        return False
    module = frame.f_globals.get("__name__", "").partition(".")[0]
    return not name.startswith((_HERE, "<frozen ")) and module not in ("torch", "numpy", "jax")


_OF_TRACE = re.compile(r"\b(Expr|Symbols|Buffer|CapturedBuffer)\b")


def refuse_with_line(error: Exception) -> None:
    """Refuses, with a line, what Python or a library answered to an object of a trace; does nothing
    where the error is the traced function's own.
    """
    step = error.__traceback__
    line, inside = "unknown line", False
    while step is not None:
        inside = step.tb_frame.f_code.co_filename.startswith(_HERE)
        if _is_users(step.tb_frame):
            line = f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
        step = step.tb_next
    if inside or _OF_TRACE.search(str(error)):
        raise TraceError(
            f"{error}: accepted of attn.symbols and what is computed of them are operators, and "
            f"functions and methods of torch and NumPy that work element by element ({line})"
        ) from error


def _never() -> bool:
    return False


# Whether a compiler reads this, which says itself where it was. attn.torch sets it.
is_compiling: Callable[[], bool] = _never


def refuse(what: str) -> NoReturn:
    if is_compiling():
        raise TraceError(what)
    raise TraceError(f"{what} ({user_line()})")
