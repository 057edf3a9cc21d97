"""Tracing of masks and scores inside of torch.compile."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..trace import refusal
from ..trace.buffers import load
from ..trace.expression import FUNCTIONS, METHODS, Expr, lift
from ..trace.refusal import refuse
from ..trace.tracer import as_formula, call, expression
from .comparisons import symbols_are_asked

refusal.is_compiling = torch.compiler.is_compiling
_LOSES_EQUALITIES = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 12)


# Functions whose __name__ is not the one in FUNCTIONS: methods of tensors, which torch.compile
# shows by what wraps them, and those of the module `operator`, which torch.export shows.
_NAMED: list[tuple[Any, str]] = [
    (getattr(Tensor, name), name)
    for name in (
        "__rsub__", "__rtruediv__", "__floordiv__", "__rfloordiv__", "__rmod__", "__pow__",
        "__rpow__", "__rlshift__", "__rrshift__",
    )
] + [
    (getattr(operator, name), name)
    for name in (
        "__truediv__", "__floordiv__", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__",
        "__pos__",
    )
]  # fmt: skip


class _Loads(TorchFunctionMode):
    """Sees what a function does with tensors and symbols.

    torch.compile asks a tuple of indices nothing, and a tensor that it computed has no identity:
    its place in `arrays` stands for it.
    """

    def __init__(self, arrays: list[Tensor]) -> None:
        super().__init__()
        self.arrays = arrays

    def load(self, tensor: Tensor, index: Any) -> Any:
        key = -1
        for i, known in enumerate(self.arrays):
            if known is tensor:
                key = i
        if key < 0:
            key = len(self.arrays)
            self.arrays.append(tensor)
        return load(tensor, index, key)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__ or func is operator.getitem:
            index = args[1]
            several = index if type(index) is tuple else (index,)
            for i in several:
                if isinstance(i, Expr):
                    return self.load(args[0], index)
            return func(*args)
        symbolic = False
        for a in args:
            if isinstance(a, Expr):
                symbolic = True
        if not symbolic:
            return func(*args, **(kwargs or {}))
        name = func.__name__
        for function, known in _NAMED:
            if func is function:
                name = known
        if name not in FUNCTIONS:
            refuse(f"torch function {func.__name__} has no form as an expression")
        lifted = [self.load(a, ()) if isinstance(a, Tensor) else a for a in args]
        if func is Tensor.where:
            return METHODS[name](*lifted, **(kwargs or {}))
        return FUNCTIONS[name](*lifted, **(kwargs or {}))


def traced(given: Any, name: str, arrays: list[Tensor]) -> Expr:
    """As `expression`; inside of torch.compile, part of what is compiled, and never kept.

    arrays: tensors that have been read so far, by this and other formulas of the call.
    """
    if not torch.compiler.is_compiling():
        return expression(given, name)
    if callable(given):
        if _LOSES_EQUALITIES and torch.compiler.is_dynamo_compiling() and not symbols_are_asked():
            refuse(
                f"a function as {name} within torch.compile of PyTorch {torch.__version__}, which "
                "would make a flag of == between a symbol and a number that changes from call to "
                "call; accepted are text, an attn.Formula, and an expression of attn.symbols made "
                "outside of what is compiled"
            )
        with _Loads(arrays):
            given = call(given)
    return as_formula(lift(given), name)
