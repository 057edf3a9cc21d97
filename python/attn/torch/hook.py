"""PyTorch's own scaled_dot_product_attention, computed by attn:

import attn.torch
from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl

activate_flash_attention_impl("attn")  # needs torch 2.11; restore_flash_attention_impl() ends it

From then on PyTorch's operators of FlashAttention are attn's: what
`torch.nn.functional.scaled_dot_product_attention` sends there on a GPU and on the CPU, and
`torch.nn.attention.varlen.varlen_attn` on a GPU.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from .. import _attn
from ..errors import Unsupported
from ..options import make_options
from .rng import draw_rng, drawn_again
from .shapes import as_bias, last_contiguous

_Rows = tuple[Tensor, Tensor]


def _rows(*several: Tensor) -> list[Tensor]:
    """[batch, heads, seqlen, head_dim] as the library reads it, or back."""
    return [t.transpose(1, 2) for t in several]


def _forward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> _Rows:
    q, k, v = map(last_contiguous, (q, k, v))
    out, lse = _attn.forward(make_options(**options), q, k, v, None, True, None, True)
    return out, lse


def _backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    row_major: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """row_major: how the gradients lie in memory, else as q, k and v do."""
    d_out, q, k, v, out = map(last_contiguous, (d_out, q, k, v, out))
    made = make_options(**options)
    wanted = ("q", "k", "v")
    d_q, d_k, d_v = _attn.backward(
        made, d_out, q, k, v, out, lse.contiguous(), wanted, None, None, True, row_major
    )
    return d_q, d_k, d_v


def _dropout(probability: float, query: Tensor) -> tuple[dict[str, Any], Tensor]:
    """The options, and seed and offset for the backward pass, on the device of `query`.

    These are results of PyTorch's operator, which compiled code may compute again in the backward
    pass to save memory. Other numbers would be another mask.
    """
    if probability and drawn_again():
        raise Unsupported(
            f"dropout_p is {probability} in a forward pass that torch.compile computes again in "
            "the backward pass, where it has another mask; accepted are "
            "torch._functorch.config.activation_memory_budget of 1 and "
            "attn.torch.scaled_dot_product_attention"
        )
    words = draw_rng(query) if probability else query.new_empty(2, dtype=torch.int64)
    return _again(probability, words), words


def _again(probability: float, words: Tensor) -> dict[str, Any]:
    return {"dropout": probability, "rng": words} if probability else {}


def _refuse_debug(return_debug_mask: bool) -> None:
    if return_debug_mask:
        raise Unsupported("return_debug_mask is True; accepted is False")


def _causal(is_causal: bool) -> str | None:
    """As scaled_dot_product_attention has it: the first query stands at the first key.

    So has its operator of the CPU. In that of a GPU the last query stands at the last key: PyTorch
    sends it equal lengths, or a causal_lower_right.
    """
    return "key <= query" if is_causal else None


def cpu_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> _Rows:
    """aten::_scaled_dot_product_flash_attention_for_cpu; PyTorch sends no dropout here."""
    q, k, v = _rows(query, key, value)
    out, lse = _forward(q, k, v, mask=_causal(is_causal), bias=_four(attn_mask), scale=scale)
    (out,) = _rows(out)
    return out, lse.transpose(1, 2).contiguous().transpose(1, 2)  # strides as PyTorch's


def cpu_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """aten::_scaled_dot_product_flash_attention_for_cpu_backward."""
    d_out, q, k, v, o = _rows(grad_out, query, key, value, out)
    found = _backward(
        d_out,
        q,
        k,
        v,
        o,
        logsumexp,
        row_major=True,  # [batch, seqlen, heads, head_dim], as PyTorch tells its compiler
        mask=_causal(is_causal),
        bias=_four(attn_mask),
        scale=scale,
    )
    return tuple(_rows(*found))


def _four(attn_mask: Tensor | None) -> Tensor | None:
    if attn_mask is None:
        return None
    attn_mask = as_bias(attn_mask)  # PyTorch makes float64 of a mask of booleans for float64
    return attn_mask.reshape((1,) * (4 - attn_mask.dim()) + attn_mask.shape)


def dense_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """aten::_scaled_dot_product_flash_attention."""
    _refuse_debug(return_debug_mask)
    dropout, words = _dropout(dropout_p, query)
    out, lse = _forward(*_rows(query, key, value), causal=is_causal, scale=scale, **dropout)
    (out,) = _rows(out)
    rest = words, words, query.new_empty(0)
    return out, lse, None, None, query.shape[2], key.shape[2], *rest


def dense_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """aten::_scaled_dot_product_flash_attention_backward."""
    d_out, q, k, v, o = _rows(grad_out, query, key, value, out)
    found = _backward(
        d_out,
        q,
        k,
        v,
        o,
        logsumexp,
        causal=is_causal,
        scale=scale,
        **_again(dropout_p, philox_seed),
    )
    return tuple(_rows(*found))


def _varlen(
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool,
    left: int | None,
    right: int | None,
) -> dict[str, Any]:
    """Options of FlashAttention's own operators: the last query stands at the last key."""
    options: dict[str, Any] = {"causal": is_causal}
    sides = [-1 if side is None else side for side in (left, right)]
    if max(sides) >= 0:
        options["window"] = tuple(sides)
    if cum_seq_q is not None:
        options |= {"cu_seqlens_q": cum_seq_q, "cu_seqlens_k": cum_seq_k}
        options |= {"max_seqlen_q": max_q, "max_seqlen_k": max_k}
    return options


def varlen_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """aten::_flash_attention_forward: `[batch, seqlen, heads, head_dim]` or `[total, ...]`."""
    _refuse_debug(return_debug_mask)
    dropout, words = _dropout(dropout_p, query)
    options = _varlen(
        cum_seq_q, cum_seq_k, max_q, max_k, is_causal, window_size_left, window_size_right
    )
    out, lse = _forward(
        query, key, value, scale=scale, seqused_k=seqused_k, alibi=alibi_slopes,
        **options, **dropout,
    )  # fmt: skip
    return out, lse, words, words, query.new_empty(0)


def varlen_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """aten::_flash_attention_backward."""
    options = _varlen(
        cum_seq_q, cum_seq_k, max_q, max_k, is_causal, window_size_left, window_size_right
    )
    return _backward(
        grad_out, query, key, value, out, logsumexp, scale=scale, **options,
        **_again(dropout_p, rng_state),
    )  # fmt: skip


_CPU = {
    "_scaled_dot_product_flash_attention_for_cpu": cpu_forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": cpu_backward,
}
_CUDA = {
    "_scaled_dot_product_flash_attention": dense_forward,
    "_scaled_dot_product_flash_attention_backward": dense_backward,
    "_flash_attention_forward": varlen_forward,
    "_flash_attention_backward": varlen_backward,
}


class _Active:
    """While it lives, attn's functions stand in the place of PyTorch's."""

    def __init__(self) -> None:
        self.libraries: list[Library] = []
        for device, functions in (("CPU", _CPU), ("CUDA", _CUDA)):
            library = Library("aten", "IMPL", device)
            with warnings.catch_warnings():  # that a kernel is replaced, which is the purpose
                warnings.simplefilter("ignore", UserWarning)
                for name, function in functions.items():
                    library.impl(name, function, device)
            self.libraries.append(library)

    def remove(self) -> None:
        for library in self.libraries:
            library._destroy()
        self.libraries = []


def register() -> None:
    """Makes attn known to torch.nn.attention, where that has such a list (PyTorch 2.11)."""
    known = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if known is not None:
        known("attn", register_fn=_Active)
