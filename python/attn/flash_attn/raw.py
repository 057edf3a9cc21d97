"""Calls without autograd, by the names and argument lists of FlashAttention 2's private functions,
which other packages (ring attention, for one) put their own gradients around.

`_flash_attn_forward` and `_flash_attn_varlen_forward` return (out, softmax_lse, S_dmask,
rng_state); the backward functions write dq, dk and dv where these are given, and return
softmax_d = rowsum(dout * out), float32 `(batch, nheads, seqlen_q)` or `(nheads, total_q)`.
rng_state is int64 `[2]` on q's device, of any contents without dropout. `flash_attn_gpu` has the
same calls with the argument lists of the extension module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgument
from ..formula import Formula
from ..operations import attention_backward
from ..torch.rng import draw_rng
from ..torch.shapes import last_contiguous
from .attend import attend, infinite_where_empty, lengths_of, window_masks
from .probabilities import dropped_probabilities


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
    out: Tensor | None,
    **lengths: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = draw_rng(q) if dropout_p else q.new_empty(2, dtype=torch.int64)
    common: dict[str, Any] = {
        "dropout_p": dropout_p, "softmax_scale": softmax_scale, "causal": causal,
        "window_size": window_size, "softcap": softcap, "alibi_slopes": alibi_slopes,
    }  # fmt: skip
    with torch.no_grad():
        found, lse = attend(q, k, v, rng=rng, **common, **lengths)
        if out is not None:
            found = out.copy_(found)
        probabilities = q.new_empty(0)
        if return_softmax and dropout_p:
            beside = [name for name in lengths if not name.startswith(("cu_", "max_"))]
            if beside:
                raise InvalidArgument(
                    f"return_softmax is {return_softmax} with dropout_p and {beside[0]}; accepted "
                    "are two of them"
                )
            probabilities = dropped_probabilities(q, k, rng=rng, **common, **lengths)
    return found, infinite_where_empty(lse), probabilities, rng


def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None,
    **lengths: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, softmax_d)."""
    options: dict[str, Any] = dict(lengths, deterministic=bool(deterministic))
    if dropout_p:
        if rng_state is None:
            raise InvalidArgument(
                f"rng_state is None and dropout_p {dropout_p}; accepted is what forward returned"
            )
        options.update(dropout=dropout_p, rng=rng_state)
    masks, buffers = window_masks(window_size)
    if masks:
        options["mask"] = Formula(" && ".join(masks), **buffers)
    with torch.no_grad():
        dout, q, k, v, out = map(last_contiguous, (dout, q, k, v, out))
        found = attention_backward(
            dout, q, k, v, out,
            softmax_lse.masked_fill(softmax_lse == torch.inf, -torch.inf),
            scale=softmax_scale, causal=causal,
            softcap=softcap if softcap > 0 else None, alibi=alibi_slopes, **options,
        )  # fmt: skip
        given = {"q": dq, "k": dk, "v": dv}
        made = [x if (to := given[n]) is None else to.copy_(x) for n, x in found.items()]
        softmax_d = (dout.float() * out.float()).sum(-1).transpose(-2, -1)
    return made[0], made[1], made[2], softmax_d


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Forward pass of q, k, v `(batch, seqlen, heads, headdim)`."""
    window = (window_size_left, window_size_right)
    return _forward(
        q, k, v, dropout_p, softmax_scale, causal, window, softcap, alibi_slopes, return_softmax,
        None,
    )  # fmt: skip


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:
    """Backward pass; writes dq, dk and dv and returns softmax_d."""
    window = (window_size_left, window_size_right)
    return _backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window,
        softcap, alibi_slopes, deterministic, rng_state,
    )[3]  # fmt: skip


def _lengths(
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int
) -> dict[str, Any]:
    return {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": int(max_seqlen_q),
        "max_seqlen_k": int(max_seqlen_k),
    }


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Forward pass of packed sequences; zero_tensors has no effect: every row is written."""
    if num_splits > 1:
        raise InvalidArgument(f"num_splits > 1 is not supported: it is {num_splits}; accepted is 0")
    lengths = _lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    if leftpad_k is not None:
        lengths["leftpad"] = leftpad_k
    if seqused_k is not None:
        lengths["seqused_k"] = seqused_k
    if block_table is not None:
        used = lengths_of(lengths.pop("cu_seqlens_k"))
        lengths.setdefault("seqused_k", used)
        lengths["page_table"] = block_table
    window = (window_size_left, window_size_right)
    return _forward(
        q, k, v, dropout_p, softmax_scale, causal, window, softcap, alibi_slopes, return_softmax,
        None, **lengths,
    )  # fmt: skip


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """Backward pass of packed sequences; writes dq, dk and dv and returns softmax_d."""
    window = (window_size_left, window_size_right)
    return _backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window,
        softcap, alibi_slopes, deterministic, rng_state,
        **_lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
    )[3]  # fmt: skip


def _no_generator(generator: Any) -> None:
    if generator is not None:
        raise InvalidArgument(
            "the `generator` argument is no longer supported: it is given; accepted is None"
        )


class flash_attn_gpu:
    """The entry points of the extension module, whose arguments come by their places."""

    @staticmethod
    def fwd(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, alibi_slopes: Tensor | None,
        dropout_p: float, softmax_scale: float, causal: bool, left: int, right: int,
        softcap: float, return_softmax: bool, generator: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """(out, softmax_lse, S_dmask, rng_state)."""
        _no_generator(generator)
        return _forward(
            q, k, v, dropout_p, softmax_scale, causal, (left, right), softcap, alibi_slopes,
            return_softmax, out,
        )  # fmt: skip

    @staticmethod
    def varlen_fwd(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor, seqused_k: Tensor | None, leftpad_k: Tensor | None,
        block_table: Tensor | None, alibi_slopes: Tensor | None, max_seqlen_q: int,
        max_seqlen_k: int, dropout_p: float, softmax_scale: float, zero_tensors: bool,
        causal: bool, left: int, right: int, softcap: float, return_softmax: bool, generator: Any,
        num_splits: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """(out, softmax_lse, S_dmask, rng_state)."""
        _no_generator(generator)
        found, *rest = _flash_attn_varlen_forward(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
            softmax_scale, causal, left, right, softcap, alibi_slopes, return_softmax, block_table,
            leftpad_k, seqused_k, zero_tensors, num_splits,
        )  # fmt: skip
        return (found if out is None else out.copy_(found), *rest)  # type: ignore[return-value]

    @staticmethod
    def bwd(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
        dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, alibi_slopes: Tensor | None,
        dropout_p: float, softmax_scale: float, causal: bool, left: int, right: int,
        softcap: float, deterministic: bool, generator: Any, rng_state: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """(dq, dk, dv, softmax_d)."""
        _no_generator(generator)
        return _backward(
            dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
            (left, right), softcap, alibi_slopes, deterministic, rng_state,
        )  # fmt: skip

    @staticmethod
    def varlen_bwd(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
        dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor, alibi_slopes: Tensor | None, max_seqlen_q: int, max_seqlen_k: int,
        dropout_p: float, softmax_scale: float, zero_tensors: bool, causal: bool, left: int,
        right: int, softcap: float, deterministic: bool, generator: Any,
        rng_state: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """(dq, dk, dv, softmax_d)."""
        _no_generator(generator)
        return _backward(
            dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
            (left, right), softcap, alibi_slopes, deterministic, rng_state,
            **_lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
        )  # fmt: skip
