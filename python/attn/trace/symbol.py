"""What an expression may read besides arrays."""

from __future__ import annotations

from .expression import PRIMARY, Expr
from .kinds import FLOAT, INT


class Symbols:
    """The values that every expression may read; `attn.symbols` is the one instance.

    score: float32, softmax_scale * q·k, in scores only. query, key: rows of Q and of K, each from 0
    within its sequence. position: the query's place among the keys, query + seqlen_k - seqlen_q.
    batch, head: the sequence and the query head. seqlen_q, seqlen_k: lengths of this sequence.
    """

    __slots__ = ("batch", "head", "key", "position", "query", "score", "seqlen_k", "seqlen_q")
    batch: Expr
    head: Expr
    key: Expr
    position: Expr
    query: Expr
    score: Expr
    seqlen_k: Expr
    seqlen_q: Expr

    def __init__(self) -> None:
        for name in self.__slots__:
            type = FLOAT if name == "score" else INT
            setattr(self, name, Expr(name, type, PRIMARY, {}))


symbols = Symbols()
