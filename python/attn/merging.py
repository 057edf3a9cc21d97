"""Joining attention over parts of the keys, in the operations that PyTorch, JAX and CuPy share."""

from __future__ import annotations

from .errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_INFINITY = float("inf")


def merge(parts: Iterable[tuple[Any, Any]], library: Any, constant: Callable[[Any], Any]) -> Any:
    """(out, lse) of attention over all keys; attn.merge documents the arguments.

    Args:
        library: The module whose arrays these are: torch or jax.numpy.
        constant: Gives an array back as one that has no derivative.
    """
    pairs = list(parts)
    _check(pairs)
    outs, lses = zip(*pairs, strict=True)
    lse = library.stack(lses)
    # Any number near the largest keeps exp() in range, so no gradient goes through it.
    largest = constant(library.amax(lse, 0))
    largest = library.where(largest == -_INFINITY, 0.0, largest)
    weights = library.exp(lse - largest)
    total = weights.sum(0)
    is_empty = total == 0
    total = library.where(is_empty, 1.0, total)
    merged = library.where(is_empty, -_INFINITY, largest + library.log(total))
    weights = library.swapaxes(weights / total, -1, -2)[..., None]
    # A set without keys weighs nothing, whatever its out holds.
    shares = library.where(weights == 0, 0.0, library.stack(outs))
    out = (weights * shares).sum(0)
    dtype = outs[0].dtype
    return (out.to(dtype) if hasattr(out, "to") else out.astype(dtype)), merged


def _check(pairs: list[tuple[Any, Any]]) -> None:
    if not pairs:
        raise InvalidArgument("parts is empty; accepted is at least one (out, lse)")
    shape = tuple(pairs[0][0].shape)
    # [batch, seqlen_q, heads, head_dim] or packed [total_q, heads, head_dim]; lse has heads first.
    rows = (*shape[:-3], shape[-2], shape[-3]) if len(shape) in (3, 4) else None
    for i, (out, lse) in enumerate(pairs):
        if rows is None or tuple(out.shape) != shape or tuple(lse.shape) != rows:
            raise InvalidArgument(
                f"part {i} has out {list(out.shape)} and lse {list(lse.shape)}; accepted are out "
                "[batch, seqlen_q, heads, head_dim] or [total_q, heads, head_dim], alike in all "
                "parts, and lse [batch, heads, seqlen_q] or [heads, total_q]"
            )
