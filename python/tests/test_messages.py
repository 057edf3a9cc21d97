"""What refusals call an argument, and what they tell to do."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import attn

ROWS = np.zeros((2, 5, 4, 8), np.float32)
PACKED = np.zeros((10, 4, 8), np.float32)
ENDS = np.array([0, 5, 10], np.int32)


def of_numpy(x):
    return x


def of_torch(x):
    return pytest.importorskip("torch").from_numpy(x)


@pytest.mark.parametrize("made", [of_numpy, of_torch])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": np.ones((3, 4), bool)}, r"mask is bool\[3, 4\].*here of 2, 4, 5 and 5"),
        ({"mask": np.ones((3, 4), np.uint8)}, r"mask is u8\[3, 4\]"),
        ({"bias": np.ones((5, 5), bool)}, r"bias is of (torch\.)?bool; .*, and bool as a mask"),
        ({"q": ROWS > 0}, r"q is bool\[2, 5, 4, 8\].*accepted are f32, bf16, f16 and f64"),
        ({"k": ROWS > 0}, r"k is bool\[2, 5, 4, 8\].*accepted are the dtype of q, f32"),
        ({"sink": np.ones(4, bool)}, r"sink is bool\[4\].*accepted are f32"),
        ({"alibi": np.ones(4, bool)}, r"alibi is bool\[4\]"),
        ({"seqused_k": np.ones(2, bool)}, r"seqused_k is bool\[2\].*accepted are i32"),
        ({"q": PACKED, "k": PACKED, "v": PACKED, "cu_seqlens_q": ENDS},
         r"k is f32\[10, 4, 8\].*\[total, heads, head_dim\] with cu_seqlens_k, which is not"),
        ({"q": PACKED, "k": PACKED, "v": PACKED},
         r"q is f32\[10, 4, 8\].*\[total, heads, head_dim\] with cu_seqlens_q, which is not"),
    ],
    ids=lambda given: ",".join(given) if isinstance(given, dict) else "",
)  # fmt: skip
def test_names(arguments, message, made):
    arguments = {"q": ROWS, "k": ROWS, "v": ROWS, **arguments}
    with pytest.raises(attn.InvalidArgument, match=message):
        attn.attention(**{name: made(x) for name, x in arguments.items()})


def test_an_array_as_score():
    with pytest.raises(attn.InvalidArgument, match="score is an array of bool .3, 4.; accepted as"):
        attn.attention(ROWS, ROWS, ROWS, score=np.ones((3, 4), bool))


@pytest.mark.parametrize("queries", [60, 120])
def test_heads_before_rows(queries):
    """[batch, heads, seqlen, head_dim]: the lengths, taken for heads, do not fit one another."""
    q = np.zeros((1, 8, queries, 4), np.float32)
    k = np.zeros((1, 4, 100, 4), np.float32)
    with pytest.raises(attn.InvalidArgument, match="100 heads; accepted .* and layout='bhsd'"):
        attn.attention(q, k, k)
    assert attn.attention(q, k, k, layout="bhsd").shape == q.shape
    rows = np.zeros((1, 300, 6, 4), np.float32)  # likely heads: nothing is guessed
    with pytest.raises(attn.InvalidArgument) as error:
        attn.attention(rows, rows[:, :, :4], rows[:, :, :4])
    assert "bhsd" not in str(error.value)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_torch_script():
    torch = pytest.importorskip("torch")
    import attn.torch

    class Module(torch.nn.Module):
        def forward(self, q):
            return attn.torch.attention(q, q, q)

    for given in (attn.torch.attention, attn.torch.scaled_dot_product_attention, Module()):
        with pytest.raises(attn.Unsupported, match="accepted are torch.jit.trace, torch.compile"):
            torch.jit.script(given)


@pytest.mark.parametrize("name", ["attn", "attn.torch"])
def test_torch_symbolic_trace(name):
    """torch.fx runs a module with Proxies, which have every attribute that they are asked for."""
    torch = pytest.importorskip("torch")
    attend = importlib.import_module(name).attention

    class Module(torch.nn.Module):
        def forward(self, q):
            return attend(q, q, q)

    with pytest.raises(TypeError, match="q is a Proxy; accepted are"):
        torch.fx.symbolic_trace(Module())


def test_long_values_are_shortened():
    hostile = "x" * 100_000
    several = [ROWS] * 3000
    for options, end in (
        ({"backend": hostile}, "'cuda', 'reference'"),
        ({"layout": hostile}, "'bhsd'"),
        ({"window": hostile}, "window is"),
        ({"threads": several}, "threads is"),
        ({"type_k": {hostile: hostile}}, "type_k is"),
        ({"mask": hostile}, "expected"),
    ):
        with pytest.raises(attn.Error) as caught:
            attn.attention(ROWS, ROWS, ROWS, **options)
        assert len(str(caught.value)) < 2100
        assert end in str(caught.value)


@pytest.mark.parametrize("made", [of_numpy, of_torch])
@pytest.mark.parametrize("name", ["return_lse", "return_max_logit", "causal", "deterministic"])
def test_text_is_no_flag(name, made):
    x = made(ROWS)
    attention = (
        attn.attention if made is of_numpy else importlib.import_module("attn.torch").attention
    )
    with pytest.raises(attn.InvalidArgument, match=f"{name} is 'no'; accepted is True or False"):
        attention(x, x, x, **{name: "no"})
    assert len(attention(x, x, x, return_max_logit=1)) == 2
