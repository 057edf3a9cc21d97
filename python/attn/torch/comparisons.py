"""Comparisons of symbols within torch.compile.

From PyTorch 2.12 on its tracer makes False of == between an object and a number that changes from
call to call, and True of !=, without asking the object: in the table that says what a comparison of
two classes is, and in the comparison of the class of such numbers, which lists and tuples use. attn
makes both ask its symbols, as Python does. Comparisons that torch.compile reads prove that they are
asked; where a later PyTorch answers elsewhere, the proof fails and functions are refused.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from ..trace.expression import Expr
from ..trace.symbol import symbols

# Each comparison with the one that is the same with its sides exchanged.
_EXCHANGED: dict[Any, Any] = {
    operator.eq: operator.eq,
    operator.ne: operator.ne,
    operator.lt: operator.gt,
    operator.le: operator.ge,
    operator.gt: operator.lt,
    operator.ge: operator.le,
}
_key = symbols.key
_answers: list[bool] = []  # of `_compare`, where torch.compile read it
_are_asked: bool | None = None  # not yet known


def symbols_are_asked() -> bool:
    """Whether torch.compile asks symbols what a comparison with a number that changes means. The
    first call makes it do so. Called while torch.compile reads a function, under its lock.
    """
    global _are_asked
    if _are_asked is None:
        try:
            _change_table()
            _change_numbers()
            _are_asked = _proof()
        except Exception:
            _are_asked = False
    return _are_asked


def _change_table() -> None:
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.builtin import BuiltinVariable
    from torch._dynamo.variables.tensor import SymNodeVariable

    table: Any = BuiltinVariable._binop_handlers()
    of_objects = {}  # what a comparison of any two objects is
    for compared in _EXCHANGED:
        classes, of_objects[compared] = table[compared][-1]
        if classes != (VariableTracker, VariableTracker):
            raise LookupError(f"{classes} is no row for all objects")
    for compared, exchanged in _EXCHANGED.items():

        def left(tracer: Any, a: Any, b: Any, ask: Any = of_objects[compared]) -> Any:
            return ask(tracer, a, b) if _is_symbol(a) else None  # None: the next row answers

        def right(tracer: Any, a: Any, b: Any, ask: Any = of_objects[exchanged]) -> Any:
            return ask(tracer, b, a) if _is_symbol(b) else None

        table[compared][:0] = [
            ((VariableTracker, SymNodeVariable), left),
            ((SymNodeVariable, VariableTracker), right),
        ]
    BuiltinVariable.call_function_handler_cache.clear()  # what was found in the table before


def _change_numbers() -> None:
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.tensor import SymNodeVariable

    for name in ("richcompare_impl", "tp_richcompare_impl"):  # 2.13; 2.12 has the table alone
        known = getattr(SymNodeVariable, name, None)
        if known is None:
            continue

        @functools.wraps(known)
        def compare(number: Any, tracer: Any, other: Any, op: str, known: Any = known) -> Any:
            if _is_symbol(other):
                return ConstantVariable.create(NotImplemented)  # the other one is asked
            return known(number, tracer, other, op)

        setattr(SymNodeVariable, name, compare)


def _is_symbol(tracked: Any) -> bool:
    try:
        return tracked.python_type() is Expr
    except (AttributeError, NotImplementedError):
        return False


def _proof() -> bool:
    """Compiles comparisons of a symbol and a number that changes."""
    del _answers[:]
    compiled = functools.partial(torch.compile, backend="eager", fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(specialize_int=False):
        compiled(_compare)(7)
        try:
            compiled(_compare_lists)(7)
        except Exception:  # as the truth of a symbol is asked for
            return _answers == [True]
    return False


def _compare(number: int) -> None:
    results = (_key == number, number == _key, _key != number, number != _key, _key < number)
    asked = True
    for result in results:
        if type(result) is not Expr:
            asked = False
    if torch.compiler.is_dynamo_compiling():
        _answer(asked)


def _compare_lists(number: int) -> bool:
    return [number] == [_key]


def _answer(asked: bool) -> None:
    _answers.append(asked)


# torch.compile calls them and reads nothing of them: this is what
# torch.compiler.assume_constant_result sets, which imports torch._dynamo, for seconds and also
# where nothing is compiled.
symbols_are_asked._dynamo_marked_constant = True  # type: ignore[attr-defined]
_answer._dynamo_marked_constant = True  # type: ignore[attr-defined]
