"""Whether a traced function reads what tensors hold, on which its trace then depends."""

from __future__ import annotations

from collections.abc import Iterable
from types import GetSetDescriptorType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from .buffers import Buffer
from .expression import Expr

# Methods whose answers follow from the shape.
_SIZES = frozenset({"size", "dim", "ndimension", "numel", "nelement", "__len__"})
# Attributes likewise.
_OF_SHAPE = frozenset({"shape", "nbytes"})


class Reads(TorchFunctionMode):
    """Sees what becomes of tensors while it is entered.

    values: something was made of a tensor that is no tensor, no expression and no answer to a
    question of `asked`: int(t), a branch, t.item(), math.sqrt(t), and whatever has no name here.
    t.int() makes a tensor, which a trace shows by reading it.
    asked: by the id of a tensor of `captured`, the names of the attributes that it was asked for,
    as shape, dtype and requires_grad, which may change while the tensor stays (t.resize_(7), t.data
    = other). The shape of another, as of t.nonzero() or t[t > 0], may follow from values.
    """

    def __init__(self, captured: Iterable[Any]) -> None:
        super().__init__()
        self._captured = {id(a) for a in captured}
        self.values = False
        self.asked: dict[int, set[str]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if Expr in types:  # what PyTorch would ask next
            return Expr.__torch_function__(func, types, args, kwargs)
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, (Tensor, Expr, Buffer)):
            name = self._attribute(func)
            if name is None or (name in _OF_SHAPE and id(args[0]) not in self._captured):
                self.values = True
            else:
                self.asked.setdefault(id(args[0]), set()).add(name)
        return result

    @staticmethod
    def _attribute(func: Any) -> str | None:
        """The attribute that func reads, or from which its result follows."""
        owner = getattr(func, "__self__", None)
        if isinstance(owner, GetSetDescriptorType):
            return owner.__name__
        return "shape" if getattr(func, "__name__", "") in _SIZES else None
