"""What this build and this machine are."""

from __future__ import annotations

import operator

from . import _attn, nvrtc
from .errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def info() -> dict[str, Any]:
    """Version, processor, instruction sets (each "available" or why not) and GPU: what is missing
    where there is none that can be used.
    """
    nvrtc.load()
    result: dict[str, Any] = _attn.info()
    return result


def get_num_threads() -> int:
    """Threads that work for a call on a CPU, the caller's among them.

    What set_num_threads said last; else the environment variable ATTN_NUM_THREADS, else
    OMP_NUM_THREADS, else one for each CPU. A call on tensors of PyTorch takes no more than
    torch.get_num_threads() says.
    """
    return _attn.get_num_threads()


def set_num_threads(threads: int) -> None:
    """For calls that begin later, in the whole process; 0: as if it had never been called.

    Results are the same bits for any number.
    """
    try:
        number = -1 if isinstance(threads, bool) else operator.index(threads)
    except TypeError:
        number = -1
    if not 0 <= number <= 4096:
        raise InvalidArgument(f"threads is {threads!r}; accepted are 0 (the default) to 4096")
    _attn.set_num_threads(number)


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8 (h + 1) / heads) of each head h, as in the ALiBi paper.

    As an array they are the `alibi` of attn.attention.
    """
    result: list[float] = _attn.alibi_slopes(heads)
    return result


def tree_words(parents: Sequence[int], seqlen_q: int = 0) -> list[list[int]]:
    """The words of one sequence for attn.tree_mask: each draft token sees itself, its parent and
    all that lie above.

    >>> import attn
    >>> attn.tree_words([-1, 0, 0, 1])
    [[1], [3], [5], [11]]

    Args:
        parents: The parent of each draft token, before it in the draft, or -1 where that is the
            last token before the draft.
        seqlen_q: Rows of the result, each of ceil(seqlen_q / 32) words. Those past the draft are 0.
            0 stands for one row for each token.
    """
    try:
        numbers = [operator.index(parent) for parent in parents]
        rows = operator.index(seqlen_q)
    except TypeError:
        raise InvalidArgument(
            f"tree_words of {parents!r} and {seqlen_q!r}; accepted are integers"
        ) from None
    # What is out of range is refused as the nearest number that is, too.
    most = 2**31 - 1
    clipped = [max(-2, min(parent, most)) for parent in numbers]
    result: list[list[int]] = _attn.tree_words(clipped, max(-1, min(rows, most)))
    return result
