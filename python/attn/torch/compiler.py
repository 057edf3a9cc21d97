"""Decorators of torch.compiler with the types that PyTorch leaves out: they keep a function's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def disable(function: _Function) -> _Function:
    """A function that torch.compile leaves as it is, with all that it calls."""
    result: _Function = torch.compiler.disable(function)
    return result


def assume_constant_result(function: _Function) -> _Function:
    """A function whose result is a constant of what torch.compile traces."""
    result: _Function = torch.compiler.assume_constant_result(function)
    return result
