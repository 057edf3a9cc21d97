"""Arrays that expressions read."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from .captured import is_numpy_number
from .expression import Expr, lift, load_elements, load_number
from .kinds import BOOL, FLOAT, INT, TYPE_NAMES, is_number, kind_of
from .refusal import TraceError, refuse, refuse_protocols

MAX_RANK = 4
MAX_DEPTH = 8  # of lists and dicts within each other


class Buffer:
    """An array that expressions read: buffer(slopes)[s.head], buffer(bias)[s.batch, s.key].

    Indices may come one at a time, t[i][j]; an index outside of the array reads 0.
    """

    __slots__ = ("array", "indices", "key")

    def __init__(
        self,
        array: Any,
        indices: tuple[Expr | None, ...] | None = None,
        key: int | None = None,
    ) -> None:
        if indices is None:
            rank = len(array.shape)
            if rank > MAX_RANK:
                refuse(f"an array of rank {rank} in an expression: accepts rank 0 to {MAX_RANK}")
            indices = (None,) * rank
        self.array = array
        self.indices = indices
        self.key = id(array) if key is None else key

    @property
    def shape(self) -> tuple[int, ...]:
        pairs = zip(self.array.shape, self.indices, strict=True)
        return tuple(size for size, index in pairs if index is None)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # as Expr does
            raise AttributeError(name)
        refuse(
            f"{name} of an array, {self.dtype} of shape {self.shape}, that is read when attention "
            "runs; accepted are its elements by index, shape, ndim, size, dtype and len"
        )

    def __getitem__(self, index: Any) -> Any:
        given = index if type(index) is tuple else (index,)
        indices = list(self.indices)
        places = [i for i, e in enumerate(indices) if e is None]
        if any(i is Ellipsis for i in given):
            at = next(n for n, i in enumerate(given) if i is Ellipsis)
            given = (*given[:at], *[slice(None)] * (len(places) - len(given) + 1), *given[at + 1 :])
        if len(given) > len(places):
            refuse(f"{len(given)} indices of an array with {len(places)} dimensions left")
        left = len(places)
        for place, i in zip(places, given):  # noqa: B905, fewer indices leave dimensions open
            if type(i) is not slice or i != slice(None):
                indices[place] = self._index(i, place)
                left -= 1
        if left:
            return type(self)(self.array, tuple(indices), self.key)
        return load_elements(self.array, indices, self.key)

    def _index(self, i: Any, place: int) -> Expr:
        if i is None or isinstance(i, (slice, list, str)):
            refuse(f"an index of type {type(i).__name__}: accepts int32 values and a full slice")
        if (isinstance(i, int) or is_numpy_number(i)) and i < 0:  # from the end
            i = i + int(self.array.shape[place])
        e = lift(i)
        if e.kind != INT:
            refuse(f"the index {e!r} is {TYPE_NAMES[e.kind]}: accepts int32")
        return e

    def refuse_value(self, *_: Any, **__: Any) -> NoReturn:
        refuse(f"an array of rank {self.ndim} is used as a value: index each dimension")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if Expr in types:
            return NotImplemented  # which that class answers
        return refuse(
            f"torch function {func.__name__} of a part of an array, which is read when attention "
            "runs: accepts its elements, each dimension indexed"
        )

    def _set(self, *_: Any) -> NoReturn:
        refuse(f"an array of rank {self.ndim} is written to: an expression only reads arrays")

    __setitem__ = __delitem__ = _set


refuse_protocols(Buffer, Buffer.refuse_value, "eq", "ne", "hash", "bool", "format")


class CapturedBuffer(Buffer):
    """In place of an array of NumPy or JAX that a traced function captures."""

    __slots__ = ()
    # What isinstance asks: a helper that takes arrays of several libraries finds its branch.
    __class__ = property(lambda self: type(self.array))


def buffer(array: Any) -> Any:
    """The array, to be indexed by expressions; of rank 0, the expression that reads it.

    array: torch, NumPy, JAX or other DLPack array of rank 0 to 4, kept alive.
    """
    if isinstance(array, (Buffer, Expr)):  # made of what a traced function captured
        return array
    return Buffer(array) if len(array.shape) else lift(array)


def in_place_of(array: Any) -> Any:
    """What stands for an array of NumPy or JAX while a function that captures it is traced."""
    return CapturedBuffer(array) if len(array.shape) else lift(array)


def with_buffers(value: Any, depth: int = 0) -> Any:
    """A Buffer in place of an array of NumPy or JAX, and a copy of a list or dict that holds some.

    Everything else is returned as it is: what a function writes to a list of numbers stays there.
    """
    kind = type(value)
    if kind is list or kind is dict:
        if depth > MAX_DEPTH:
            return value
        pairs = [*(enumerate(value) if kind is list else value.items())]
        new = [(place, with_buffers(v, depth + 1)) for place, v in pairs]
        if all(a[1] is b[1] for a, b in zip(pairs, new, strict=True)):
            return value
        return dict(new) if kind is dict else [v for _, v in new]
    is_array = hasattr(value, "__dlpack__") and hasattr(value, "shape")
    return in_place_of(value) if is_array and not hasattr(value, "__torch_function__") else value


def load(array: Any, index: Any, key: int | None = None) -> Any:
    """array[index], where an index is an expression, or () for an array of rank 0.

    key: what tells arrays apart, id(array) where it is left out.
    """
    if key is None:
        key = id(array)
    given = index if type(index) is tuple else (index,)
    if len(given) == len(array.shape) <= MAX_RANK:
        for e in given:
            if type(e) is not Expr or e.kind != INT:
                break
        else:  # nothing to convert
            return load_elements(array, given, key) if given else load_number(array, key)
    return Buffer(array, None, key)[given]


def loadable(array: Any) -> Any:
    """The array with a rank of 1 to 4 and a dtype that attn loads; itself where it has these, or
    where it is a number.

    int64 becomes int32, bool uint8, float64 float32. Throws TraceError where an int64 on the CPU
    does not fit; a GPU is not waited for, and what JAX compiles is not known.
    """
    if isinstance(array, (int, float)):
        return int(array) if isinstance(array, int) else float(array)
    if len(array.shape) == 0:
        if is_number(array):
            return array
        array = array.reshape(1)
    name = str(array.dtype).rpartition(".")[2]
    if name in ("int32", "uint8", "float32", "float16", "bfloat16"):
        return array
    to = {BOOL: "uint8", INT: "int32", FLOAT: "float32"}[kind_of(array)]
    if hasattr(array, "astype"):  # NumPy, JAX, CuPy
        converted = array.astype(to)
        known = name == "int64" and not type(array).__name__.endswith("Tracer")  # of JAX
        unchanged = not known or bool((converted == array).all())
    else:
        import torch

        converted = array.view(torch.uint8) if name == "bool" else array.to(getattr(torch, to))
        known = name == "int64" and array.device.type == "cpu" and not torch.compiler.is_compiling()
        unchanged = True
        if known:
            while torch._C._functorch.is_functorch_wrapped_tensor(array):  # vmap tells no values
                array = torch._C._functorch.get_unwrapped(array)
            unchanged = bool((array == array.to(torch.int32)).all())
    if not unchanged:
        raise TraceError("an int64 array that an expression reads has values outside of int32")
    return converted
