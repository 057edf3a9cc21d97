"""FlexAttention's functions, torch.nn.attention.flex_attention, by attn."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, overload

import torch
from torch import Tensor

from ..errors import InvalidArgument, Unsupported
from ..trace.tracer import trace
from .calls import attention, check_tensor

if TYPE_CHECKING:  # it takes seconds to import
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest
    from torch.nn.attention.flex_attention import BlockMask as TorchBlockMask


class BlockMask:
    """A mask_mod and the sizes that it was made for. It holds no blocks: attn finds the tiles that
    the mask leaves out from the mask itself.
    """

    def __init__(
        self,
        mask_mod: Callable[..., Any],
        B: int | None,
        H: int | None,
        Q_LEN: int,
        KV_LEN: int,
        BLOCK_SIZE: int | tuple[int, int] = 128,
    ) -> None:
        self.mask_mod = mask_mod
        self.shape = (B or 1, H or 1, Q_LEN, KV_LEN)
        self.seq_lengths = (Q_LEN, KV_LEN)
        self.BLOCK_SIZE = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE

    def __repr__(self) -> str:
        return f"BlockMask(shape={self.shape}, mask={trace(self.mask_mod)!r})"


def create_block_mask(
    mask_mod: Callable[..., Any],
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
) -> BlockMask:
    """torch.nn.attention.flex_attention.create_block_mask, in no time and without memory.

    mask_mod(b, h, q_idx, kv_idx) is traced when attention runs. device, BLOCK_SIZE and _compile are
    accepted and change nothing.
    """
    return BlockMask(mask_mod, B, H, Q_LEN, KV_LEN, BLOCK_SIZE)


@overload
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: BlockMask | TorchBlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: Literal[False] = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: None = None,
) -> Tensor: ...
@overload
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: BlockMask | TorchBlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    return_lse: Literal[True],
    kernel_options: dict[str, Any] | None = None,
    return_aux: None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: BlockMask | TorchBlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: AuxRequest,
) -> tuple[Tensor, AuxOutput]: ...
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: BlockMask | TorchBlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """torch.nn.attention.flex_attention.flex_attention: same arguments, shapes and results.

    query `[B, Hq, L, E]`, key `[B, H, S, E]`, value `[B, H, S, Ev]`. block_mask: attn's, or
    PyTorch's, of which both blocks and mask_mod count: an element is seen in a full block, and in
    another listed block where mask_mod says so. Tensors that score_mod reads receive gradients.
    kernel_options is accepted and changes nothing.

    Returns out, with return_lse (out, lse), with return_aux (out, AuxOutput); lse is the natural
    logarithm, float32 `[B, Hq, L]`.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, tensor)
        if tensor.dim() != 4:
            raise InvalidArgument(
                f"{name} has shape {tuple(tensor.shape)}; accepted is [batch, heads, seqlen, "
                "head_dim]"
            )
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise InvalidArgument(
            f"query has {query.shape[1]} heads and key {key.shape[1]}; accepted is the same "
            "number, or enable_gqa=True"
        )
    if return_aux is not None and return_aux.max_scores:
        raise Unsupported("return_aux asks for max_scores; accepted is lse")
    if key.shape[0] == 1 != query.shape[0]:  # PyTorch takes it with a block_mask
        key, value = (t.expand(query.shape[0], -1, -1, -1) for t in (key, value))
    mask = None
    if block_mask is not None:
        if not isinstance(block_mask, BlockMask) and not _is_of_torch(block_mask):
            raise TypeError(
                f"block_mask is a {type(block_mask).__name__}; accepted is what create_block_mask "
                "makes, of attn.torch or PyTorch"
            )
        q_len, kv_len = block_mask.seq_lengths
        if (q_len, kv_len) != (query.shape[2], key.shape[2]):
            raise InvalidArgument(
                f"block_mask is of {q_len} queries and {kv_len} keys; accepted are those of the "
                f"tensors, {query.shape[2]} and {key.shape[2]}"
            )
        mask = block_mask.mask_mod
        if not isinstance(block_mask, BlockMask):
            batch, heads = block_mask.shape[:2]
            if batch not in (1, query.shape[0]) or heads not in (1, query.shape[1]):
                raise InvalidArgument(  # an index out of range would read 0
                    f"block_mask is of batch {batch} and {heads} heads; accepted are those of "
                    f"query, {query.shape[0]} and {query.shape[1]}, or 1"
                )
            mask = _listed(block_mask)
    out, lse = attention(
        query, key, value, mask=mask, score=score_mod, scale=scale, layout="bhsd", return_lse=True
    )
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return out, AuxOutput(lse=lse if return_aux.lse else None)
    return (out, lse) if return_lse else out


def _is_of_torch(block_mask: object) -> TypeGuard[TorchBlockMask]:
    from torch.nn.attention.flex_attention import BlockMask as TorchBlockMask

    return isinstance(block_mask, TorchBlockMask)


def _table(block_mask: TorchBlockMask) -> Tensor:
    """uint8 [B, H, q blocks, kv blocks]: 0 not listed, 1 listed, 2 full."""
    rows, columns = (
        -(-length // size)
        for length, size in zip(block_mask.seq_lengths, block_mask.BLOCK_SIZE, strict=True)
    )
    table = None
    for value, counts, indices in (
        (1, block_mask.kv_num_blocks, block_mask.kv_indices),
        (2, block_mask.full_kv_num_blocks, block_mask.full_kv_indices),
    ):
        if counts is None or indices is None:
            continue
        listed = torch.arange(indices.shape[-1], device=counts.device) < counts[..., None]
        shape = (*counts.shape[:-1], counts.shape[-1], max(columns, indices.shape[-1]) + 1)
        # What is past the count goes to a column of its own.
        places = torch.where(listed, indices, shape[-1] - 1).long()
        one = torch.zeros(shape, dtype=torch.uint8, device=counts.device)
        one.scatter_(-1, places, value)
        one = one[..., :rows, :columns]
        table = one if table is None else torch.maximum(table, one)
    assert table is not None
    return table.contiguous()


# By the id of a BlockMask: itself, its mask_mod, the state of its lists, what they made, and the
# lists, alive so that their ids are theirs.
_Listed = tuple["weakref.ref[TorchBlockMask]", Callable[..., Any], Any, Callable[..., Any], Any]
_listed_masks: dict[int, _Listed] = {}


def _lists(block_mask: TorchBlockMask) -> tuple[Tensor | None, ...]:
    return (
        block_mask.kv_num_blocks,
        block_mask.kv_indices,
        block_mask.full_kv_num_blocks,
        block_mask.full_kv_indices,
    )


def _state(lists: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
    """Which tensors they are, their memory and how often that was written."""
    return tuple(
        [t if t is None else (id(t), t.untyped_storage()._cdata, _writes(t)) for t in lists]
    )


def _writes(t: Tensor) -> float:
    """NaN, which equals nothing, for a tensor of torch.inference_mode: it does not count them."""
    return float("nan") if t.is_inference() else t._version


def _listed(block_mask: TorchBlockMask) -> Callable[..., Any]:
    """What PyTorch's BlockMask shows, as a mask_mod; kept until the BlockMask changes or goes."""
    mask_mod = block_mask.mask_mod
    if torch.compiler.is_compiling():
        return _mask_of_blocks(_table(block_mask), block_mask.BLOCK_SIZE, mask_mod)
    key, lists = id(block_mask), _lists(block_mask)
    state = _state(lists)
    known = _listed_masks.get(key)
    if (
        known is None
        or known[0]() is not block_mask
        or known[1] is not mask_mod
        or known[2] != state
    ):
        gone = weakref.ref(block_mask, lambda _: _listed_masks.pop(key, None))
        function = _mask_of_blocks(_table(block_mask), block_mask.BLOCK_SIZE, mask_mod)
        known = _listed_masks[key] = (gone, mask_mod, state, function, lists)
    return known[3]


def _mask_of_blocks(
    table: Tensor, sizes: tuple[int, int], mask_mod: Callable[..., Any]
) -> Callable[..., Any]:
    q_size, kv_size = sizes

    def function(b: Any, h: Any, q: Any, k: Any) -> Any:
        block = table[b, h, q // q_size, k // kv_size]
        return (block == 2) | ((block == 1) & mask_mod(b, h, q, k))

    return function
