"""What an expression may read besides arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from .expression import PRIMARY, Expr
from .kinds import FLOAT, INT
from .refusal import refuse, refuse_protocols


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
            object.__setattr__(self, name, Expr(name, type, PRIMARY, {}))

    def __reduce__(self) -> str:
        return "symbols"  # a copy is the one instance

    if not TYPE_CHECKING:  # which would take every name for one that exists

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__") or name in ("dtype", "shape"):  # by which arrays are known
                raise AttributeError(f"'Symbols' object has no attribute '{name}'")
            refuse(f"attn.symbols has no {name}: accepts {', '.join(self.__slots__)}")

        def __setattr__(self, name: str, value: Any) -> NoReturn:
            """Every later call would read the new value: `s.score += 1` is such a statement."""
            refuse(
                f"{name} of attn.symbols is to be set or deleted: every expression of the process "
                f"reads it; accepted is a name of the function's own, as {name} = s.{name} + 1"
            )

        def __delattr__(self, name: str) -> NoReturn:
            self.__setattr__(name, None)

    def _itself(self, *_: Any, **__: Any) -> NoReturn:
        refuse(
            "attn.symbols itself is used as a value: accepts its attributes, "
            f"{', '.join(self.__slots__)}"
        )


# `__call__` too, as `lambda s: s()` is a slip that Python would answer with the name of a class.
refuse_protocols(Symbols, Symbols._itself, "eq", "ne", "hash", "bool", "len", "format", "call")
symbols = Symbols()
