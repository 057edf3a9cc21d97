"""Types in the signatures of attn, for type checkers; nothing imports this when a program runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypedDict

from .formula import Formula

Array: TypeAlias = Any  # of NumPy, PyTorch, JAX, CuPy, or with __dlpack__
Score: TypeAlias = str | Formula | Callable[..., Any]
Mask: TypeAlias = Score | Array


class Problem(TypedDict, total=False):
    """The keywords of attn.attention but for dropout, of which attn.torch draws rng itself."""

    mask: Mask | None
    score: Score | None
    scale: float | None
    causal: bool
    window: tuple[int | None, int | None] | None
    softcap: float | None
    alibi: Array | None
    bias: Array | None
    sink: Array | None
    cu_seqlens_q: Array | None
    cu_seqlens_k: Array | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    seqused_q: Array | None
    seqused_k: Array | None
    page_table: Array | None
    key_list: Array | None
    prefix_k: Array | None
    prefix_v: Array | None
    prefix_page_table: Array | None
    seqlen_prefix: int | None
    type_q: str | None
    type_k: str | None
    type_v: str | None
    type_o: str | None
    scale_q: Array | None
    scale_k: Array | None
    scale_v: Array | None
    layout: str | None
    backend: str
    algorithm: str
    threads: int
    deterministic: bool
    batch_invariant: bool


class Options(Problem, total=False):
    """The keywords of attn.attention, which documents them."""

    dropout: float
    rng: int | tuple[int, int] | Array | None
