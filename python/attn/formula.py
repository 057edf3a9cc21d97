"""Masks and scores as text that reads arrays by name."""

from __future__ import annotations

from .errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Formula:
    """A mask or score in the language of docs/expressions.md, and the arrays that it reads.

    >>> import attn, numpy as np
    >>> ids = np.array([[0, 0, 1, 1]], np.int32)
    >>> mask = attn.Formula("ids[batch, query] == ids[batch, key]", ids=ids)
    >>> q = k = v = np.ones((1, 4, 2, 8), np.float32)
    >>> attn.attention(q, k, v, mask=mask).shape
    (1, 4, 2, 8)

    Args:
        text: The formula; names of arrays stand with their indices in brackets. A load outside an
            array reads 0, a dimension of size 1 accepts any index.
        **buffers: Anys of 1 to 4 dimensions, on the device of q: int32, uint8 and bool read as
            integers, float32, bfloat16 and float16 as float32. A number, or an array without
            dimensions, is read by its name alone: an int as int32, a float as float32. Another
            value compiles nothing anew.
    """

    __slots__ = ("buffers", "text")

    def __init__(self, text: str, /, **buffers: Any | float):
        self.text = text
        self.buffers = buffers

    def __repr__(self) -> str:
        return f"Formula({self.text!r}, {', '.join(self.buffers)})"


def reads(formula: str, name: str) -> bool:
    """Whether the text of a formula reads the array, as `name[key]`. torch.compile follows it."""
    text = "".join(formula.split())
    at = text.find(name + "[")
    while at > 0 and (text[at - 1].isalnum() or text[at - 1] == "_"):  # of a longer name
        at = text.find(name + "[", at + 1)
    return at >= 0


def block_mask(blocks: Any, block_q: int, block_k: int, *, top_left: bool = False) -> Formula:
    """Block-sparse attention: a mask that is true where the block of the query and key is.

    Args:
        blocks: bool or uint8 `[blocks_q, blocks_k]`, or `[batch, heads_q, blocks_q, blocks_k]`
            (sizes of 1 broadcast), of blocks of block_q x block_k scores. A call refuses other
            numbers of blocks than cover its scores.
        block_q: Rows of a block.
        block_k: Keys of a block.
        top_left: Rows count from the first query. Otherwise, as with `causal`, the last query
            stands at the last key, and blocks_q is that of seqlen_k rows.
    """
    if len(blocks.shape) not in (2, 4):
        raise InvalidArgument(
            f"blocks has shape {tuple(blocks.shape)}; accepted is [blocks_q, blocks_k] or "
            "[batch, heads, blocks_q, blocks_k]"
        )
    for name, size in (("block_q", block_q), ("block_k", block_k)):
        if size < 1:
            raise InvalidArgument(f"{name} is {size}; accepted is at least 1")
    row = "query" if top_left else "position"
    outer = "batch, head, " if len(blocks.shape) == 4 else ""
    # By its name the buffer is attn::BlockMask's, whose shape every call holds to its lengths.
    text = f"block_mask[{outer}{row} / {block_q}, key / {block_k}] != 0"
    # A negative position lies in a negative block, which reads 0, but for a dimension of size 1.
    return Formula(text if top_left else f"position >= 0 && {text}", block_mask=blocks)


def tree_mask(words: Any) -> Formula:
    """Speculative decoding: the queries of a sequence are draft tokens that form a tree, and their
    keys are its last ones. A query sees all keys before the draft, and of the draft what its bits
    say. `attn.tree_words` makes these from the parents of the tokens.

    Args:
        words: int32 `[batch or 1, seqlen_q, ceil(seqlen_q / 32)]` on the device of q; of packed
            queries seqlen_q is max_seqlen_q. Query i sees draft token t where bit t % 32 of
            words[batch, i, t // 32] is set. A shorter sequence uses its first rows and bits, and
            ignores all others.
    """
    if len(words.shape) != 3:
        raise InvalidArgument(
            f"words has shape {tuple(words.shape)}; accepted is "
            "[batch, seqlen_q, ceil(seqlen_q / 32)]"
        )
    draft = "key - (seqlen_k - seqlen_q)"
    # By its name the buffer is attn::tree_mask's, whose shape every call holds to its lengths.
    text = f"{draft} < 0 || (tree[batch, query, ({draft}) / 32] >> ({draft}) % 32 & 1) != 0"
    return Formula(text, tree=words)
