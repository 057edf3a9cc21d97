"""Comparisons that torch.compile answers without asking the symbol.

PyTorch 2.12 and newer make False of == between an object and a number that changes from call to
call, and True of !=, wherever it stands: in a loop, in what a decorator got. Nothing of it is left
in what is traced, so that attn looks on while PyTorch's tracer, which is Python, reads a function.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from ..trace.expression import Expr

_TRACER = "torch._dynamo.convert_frame"  # whose frames are below those of what is traced


class _Look:
    """A profile function (sys.setprofile) that counts such comparisons. It ends by itself with the
    frame `outermost`, where the function was refused meanwhile.
    """

    def __init__(self, answers: CodeType, outermost: FrameType) -> None:
        self.answers = answers
        self.outermost = outermost
        self.found = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is self.answers:
            self.found += any(map(_is_symbol, frame.f_locals.values()))
        elif event == "return" and frame is self.outermost:
            sys.setprofile(None)


def _is_symbol(tracked: Any) -> bool:
    try:
        return tracked.python_type() is Expr
    except (AttributeError, NotImplementedError):
        return False


def look_on() -> None:
    """Begins to look on, in this thread; not where a profiler of Python is in the way, nor where
    PyTorch answers elsewhere.
    """
    from torch._dynamo.variables.builtin import BuiltinVariable

    answers = getattr(BuiltinVariable, "_comparison_with_symnode", None)
    if answers is None or not isinstance(sys.getprofile(), (_Look, type(None))):
        return
    outermost = frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _TRACER:
            outermost = frame
        frame = frame.f_back  # type: ignore[assignment]
    sys.setprofile(_Look(answers.__code__, outermost))


def count() -> int:
    """Ends it; how many comparisons were lost."""
    look = sys.getprofile()
    if not isinstance(look, _Look):
        return 0
    sys.setprofile(None)
    return look.found


# torch.compile calls them while it traces: what torch.compiler.assume_constant_result sets.
look_on._dynamo_marked_constant = True  # type: ignore[attr-defined]
count._dynamo_marked_constant = True  # type: ignore[attr-defined]
