"""What torch.func makes of attn's operators: the rules of vmap, and that of is_grads_batched.

The elements of the mapped dimension become a batch, one call for all, where nothing but their rows
tells sequences apart: no tensor is mapped but those of rows, no dropout, no lengths, and neither
mask nor score reads `batch`. Otherwise there is a call for each element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..options import MASK_ARRAY, OF_PREFIX, OF_SEQUENCES

_BATCH = re.compile(r"\bbatch\b")
# How attn.options reads an array as mask, whose batch of 1 serves all.
_OF_MASK_ARRAY = f"{MASK_ARRAY}[batch, head, query, key]"
_LENGTHS = frozenset({*OF_SEQUENCES, *OF_PREFIX})


def _is_one_batch(
    names: Sequence[str], texts: Sequence[str], tensors: Sequence[Tensor], wanted: Sequence[str]
) -> bool:
    """Whether sequences of several calls may be those of one."""
    if not {"q", "k", "v"}.issuperset(wanted) or not _LENGTHS.isdisjoint(names):
        return False
    if any(_BATCH.search(text.replace(_OF_MASK_ARRAY, "")) for text in texts):
        return False
    for name, tensor in zip(names, tensors, strict=False):
        if name in ("bias", MASK_ARRAY) and tensor.dim() == 4 and tensor.shape[0] != 1:
            return False
        if name == "alibi" and tensor.dim() == 2:
            return False
    return True


def _first(t: Tensor, dim: int | None, size: int) -> Tensor:
    """With the mapped dimension in front."""
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)


def rule(
    op: Any,
    rows: int,
    separator: str,
    last_contiguous: Callable[[Tensor], Tensor],
    joins: bool,
) -> Callable[..., Any]:
    """The rule of an operator whose first `rows` arguments are tensors of rows; its text follows,
    in backward `wanted`, then `tensors` and the numbers. joins: whether each result has a batch, so
    that one call may serve several elements.
    """
    texts = 1 if rows == 3 else 2

    def mapped(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        size = info.batch_size
        call, *more = args[rows : rows + texts]
        tensors, *numbers = args[rows + texts :] or (None,)
        dims = (in_dims[rows + texts] if len(in_dims) > rows + texts else None) or []
        names, mask, score, *_ = call.split(separator)
        wanted = more[0].split(",") if more else ()
        dropout = numbers[3] if len(numbers) > 3 else 0.0
        q_at = 0 if rows == 3 else 2
        rank = args[q_at].dim() - (in_dims[q_at] is not None)
        given = list(map(_first, args[:rows], in_dims[:rows], [size] * rows))
        one = joins and rank == 4 and not dropout and all(dim is None for dim in dims)
        if one and _is_one_batch(names.split(","), (mask, score), tensors or (), wanted):
            batch = given[q_at].shape[1]
            folded = [last_contiguous(t.flatten(0, 1)) for t in given]
            found = op(*folded, *args[rows:])
            results = [t.unflatten(0, (size, batch)) for t in found]
        else:
            every = []
            for i in range(size):
                at = tensors
                if tensors is not None:
                    at = [
                        t if dim is None else t.select(dim, i)
                        for t, dim in zip(tensors, dims, strict=True)
                    ]
                one_of = [last_contiguous(t[i]) for t in given]
                after = () if tensors is None and not numbers else (at, *numbers)
                every.append(op(*one_of, call, *more, *after))
            results = [torch.stack(parts) for parts in zip(*every, strict=True)]
        out = tuple(results) if rows == 3 else results
        return out, type(out)([0] * len(out))

    return mapped


def is_batch(gradient: Tensor | None) -> bool:
    """Whether torch.autograd.grad was given this one with is_grads_batched=True: such a tensor is
    of PyTorch's older vmap, in which no operator of attn has a rule.
    """
    return gradient is not None and torch._C._functorch.is_legacy_batchedtensor(gradient)


def for_each(
    one: Callable[..., Sequence[Tensor | None]], *gradients: Tensor | None
) -> list[Tensor | None]:
    """The results of `one`, a backward pass, of gradients of which is_batch() is true for some: a
    call for each element of the batch.
    """
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    apart = [
        torch._remove_batch_dim(g, level, 0, 0) if g is not None and is_batch(g) else None
        for g in gradients
    ]
    size = next(len(parts) for parts in apart if parts is not None)
    every = [
        one(*[g if part is None else part[i] for g, part in zip(gradients, apart, strict=True)])
        for i in range(size)
    ]
    return [
        None if parts[0] is None else torch._add_batch_dim(torch.stack(parts), 0, level)
        for parts in zip(*every, strict=True)
    ]


def in_vmap_of(tensors: Sequence[Tensor], q: Tensor) -> Tensor:
    """q, mapped where one of the tensors is: PyTorch looks for vmap in no list that is optional,
    as `tensors` is one of an operator.
    """
    for t in tensors:
        q = torch.where(torch.zeros_like(t, dtype=torch.bool).any(), q, q)
    return q
