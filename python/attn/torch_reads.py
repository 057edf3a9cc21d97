"""Whether a traced function reads what tensors hold, on which its trace then depends."""

from __future__ import annotations

from types import GetSetDescriptorType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from .expression import Buffer, Expr

# What they give belongs to the tensor as its identity does, and so do attributes.
_SIZES = frozenset({"size", "dim", "ndimension", "numel", "nelement", "stride", "__len__"})


class Reads(TorchFunctionMode):
    """Sees what becomes of tensors while it is entered; `any` says that values were read.

    All that makes something else of a tensor than a tensor or an expression counts: int(t), a
    branch, t.item(), math.sqrt(t), and whatever has no name here. t.int() makes a tensor, which a
    trace shows by reading it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.any = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if Expr in types:  # what PyTorch would ask next
            return Expr.__torch_function__(func, types, args, kwargs)
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, (Tensor, Expr, Buffer)) and not self._is_of_the_tensor(func):
            self.any = True
        return result

    @staticmethod
    def _is_of_the_tensor(func: Any) -> bool:
        if isinstance(getattr(func, "__self__", None), (GetSetDescriptorType, property)):
            return True
        return getattr(func, "__name__", "") in _SIZES
