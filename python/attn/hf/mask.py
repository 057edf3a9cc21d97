"""The mask that attn gives a model of transformers: a formula, which the model hands back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..trace.symbol import symbols

__all__ = ["Mask", "make_mask"]


class Mask:
    """A mask `[batch, 1, seqlen_q, seqlen_k]` that takes no memory.

    A model that hands it back gets `mask_mod` computed. With anything else, such as a slice, a sum
    or a comparison, it becomes the tensor that "eager" has in this place, 0 where a key is seen
    and the least number of `dtype` where it is not: every model of transformers can take that one.
    It is no Tensor and no BlockMask, so that no model takes it for one and leaves out what it does
    to the others.
    """

    def __init__(
        self,
        mask_mod: Callable[..., Any],
        sizes: tuple[int, int, int, int],
        made_of: dict[str, Any],
    ) -> None:
        self.mask_mod = mask_mod
        self.shape = torch.Size(sizes)
        self.ndim = 4
        self.dtype: torch.dtype = made_of["dtype"]
        self.device = torch.device(made_of["device"])
        self.made_of = made_of
        self.tensor: Tensor | None = None  # once a model has asked for more than the above

    def as_tensor(self) -> Tensor:
        if self.tensor is None:
            from transformers.masking_utils import eager_mask

            self.tensor = eager_mask(**self.made_of)
        return self.tensor

    def contiguous(self) -> Mask:
        """Itself: transformers 5.23 asks for it where a cache is static."""
        return self

    def __repr__(self) -> str:
        return f"attn mask of {tuple(self.shape)}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "made_of" not in self.__dict__:  # as copy and pickle ask
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self.as_tensor(), name)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map(_plain, (args, kwargs or {}))
        return function(*args, **kwargs)

    __hash__ = object.__hash__


def _plain(value: Any) -> Any:
    return value.as_tensor() if isinstance(value, Mask) else value


def _operator(name: str) -> Callable[..., Any]:
    def operator(self: Mask, *others: Any) -> Any:
        return getattr(self.as_tensor(), name)(*map(_plain, others))

    return operator


_BINARY = ("add", "and", "floordiv", "matmul", "mod", "mul", "or", "pow", "sub", "truediv", "xor")
_OTHERS = (
    *("abs", "bool", "contains", "eq", "float", "ge", "getitem", "gt", "int", "invert", "iter"),
    *("le", "len", "lt", "ne", "neg", "setitem"),
)
for _name in (*_OTHERS, *_BINARY, *(f"r{name}" for name in _BINARY)):
    setattr(Mask, f"__{_name}__", _operator(f"__{_name}__"))


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | Mask | None = None,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float32,
    use_vmap: bool = False,
    **_: Any,
) -> Mask:
    """Transformers' `eager_mask` as a formula: the index function, its offsets and the padding.

    Offsets that change from step to step are read from memory, so that one kernel serves all steps;
    the usual ones are none: the last query stands at the last key.
    """
    if isinstance(attention_mask, Mask):  # ready made, as transformers lets a 4D tensor through
        return attention_mask
    if isinstance(q_offset, Tensor):  # the cache raises its own in place before the mask is read
        q_offset = q_offset.clone()
    made_of: dict[str, Any] = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "attention_mask": attention_mask,
        "device": device,
        "dtype": dtype,
        "use_vmap": use_vmap,
    }
    if mask_function is not None:
        made_of["mask_function"] = mask_function
    static = isinstance(q_offset, Tensor)
    # Place of the query: symbols.position + shift, or, where a tensor says it, query + q_offset.
    shift = q_offset if static else q_offset - (kv_length - q_length)
    start = _offset(shift, device)
    key_start = _offset(kv_offset, device)
    first = symbols.query if static else symbols.position

    def function(b: Any, h: Any, q: Any, k: Any) -> Any:
        q = first if start is None else first + start
        k = k if key_start is None else k + key_start
        seen = True if mask_function is None else mask_function(b, h, q, k)
        return seen if attention_mask is None else seen & attention_mask[b, k]

    return Mask(function, (batch_size, 1, q_length, kv_length), made_of)


def _offset(value: int | Tensor, device: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value.reshape(())
    return torch.tensor(value, dtype=torch.int32, device=device) if value else None
