"""Tensors of classes that say themselves what they are: understood, asked, or refused by name.

What such a class keeps in memory may be another thing than its numbers, or nothing.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import attn  # noqa: E402
import attn.torch  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def doubled(kind, arguments):
    return pytree.tree_map(
        lambda x: x.as_subclass(torch.Tensor) * 2 if isinstance(x, kind) else x, arguments
    )


class ByFunction(torch.Tensor):
    """Stands for twice its memory where a function of attn is called."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if "attn" in str(func):
            args, kwargs = doubled(cls, (args, kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


class ByDispatch(torch.Tensor):
    """Stands for twice its memory."""

    @staticmethod
    def __new__(cls, t):
        made = torch.Tensor._make_subclass(cls, t)
        made.means = t * 2
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = pytree.tree_map(
            lambda x: x.means if isinstance(x, cls) else x, (args, kwargs or {})
        )
        return func(*plain[0], **plain[1])


KINDS = {
    "function": lambda t: t.as_subclass(ByFunction),
    "dispatch": ByDispatch,
}
TENSORS = {
    "q": torch.randn(2, 6, 2, 8),
    "k": torch.randn(2, 6, 2, 8),
    "v": torch.randn(2, 6, 2, 8),
    "bias": torch.randn(6, 6),
    "sink": torch.randn(2),
    "alibi": torch.rand(2),
    "seqused_k": torch.tensor([2, 3], dtype=torch.int32),
    "w": torch.randn(6),
    "captured": torch.randn(6),
}
QKV = {name: TENSORS[name] for name in ("q", "k", "v")}


def call(function, name, tensor):
    if name == "captured":
        return function(**QKV, score=lambda s: s.score + tensor[s.key])
    if name == "w":
        return function(**QKV, score=attn.Formula("score + w[key]", w=tensor))
    return function(**{**QKV, name: tensor})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TENSORS)
def test_a_class_is_asked_or_its_tensor_refused(name, kind):
    tensor = KINDS[kind](TENSORS[name])
    says = f"is a .*whose class says by __torch_{kind}__"
    with pytest.raises(attn.InvalidArgument, match=says):
        call(attn.attention, name, tensor)
    if name not in QKV and kind == "dispatch":  # PyTorch asks no class within a list
        with pytest.raises(attn.InvalidArgument, match=says):
            call(attn.torch.attention, name, tensor)
        return
    found = call(attn.torch.attention, name, tensor)
    wanted = call(attn.torch.attention, name, TENSORS[name] * 2)
    torch.testing.assert_close(found.as_subclass(torch.Tensor), wanted)


def test_a_class_that_does_not_take_the_operators():
    class Refuses(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if "attn" in str(func):
                return NotImplemented
            return super().__torch_function__(func, types, args, kwargs)

    with pytest.raises(attn.InvalidArgument, match="k is a Refuses, whose class does not take"):
        attn.torch.attention(QKV["q"], QKV["k"].as_subclass(Refuses), QKV["v"])


BIASES = {"upper left": causal_upper_left, "lower right": causal_lower_right}


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("lengths", [(5, 5), (4, 9), (9, 4), (1, 7)], ids=str)
@pytest.mark.parametrize("bias", BIASES)
def test_causal_biases_of_pytorch(bias, lengths, is_compiled):
    n, m = lengths
    mask = BIASES[bias](n, m)
    seen = mask._materialize()
    q, k, v = (torch.randn(2, 3, s, 8, requires_grad=True) for s in (n, m, m))

    def attend(q, k, v):
        return attn.torch.scaled_dot_product_attention(q, k, v, mask, scale=0.3)

    if is_compiled:
        torch._dynamo.reset()
        attend = torch.compile(attend, backend="aot_eager", fullgraph=True)
    found = attend(q, k, v)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = F.scaled_dot_product_attention(q, k, v, seen, scale=0.3)
    wanted = torch.where(seen.any(-1)[:, None], wanted, 0.0)  # rows without keys are 0
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (found, wanted)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs.nan_to_num(), rtol=1e-5, atol=1e-5)


def test_causal_biases_elsewhere_are_refused():
    q, bias = QKV["q"], causal_lower_right(6, 6)
    heads_first = q.transpose(1, 2)
    says = "is a CausalBias, which has no memory; accepted are causal=True"
    for function in (attn.attention, attn.torch.attention):
        for name in ("mask", "bias", "sink"):
            with pytest.raises(attn.InvalidArgument, match=f"{name} {says}"):
                function(q, q, q, **{name: bias})
    with pytest.raises(attn.InvalidArgument, match=says):
        attn.torch.attention(q, q, q, score=lambda s: s.score + bias[0, s.query, s.key])
    sdpa = attn.torch.scaled_dot_product_attention
    with pytest.raises(attn.InvalidArgument, match="CausalBias of 6 queries and 6 keys; accepted"):
        sdpa(heads_first, heads_first[:, :, :4], heads_first[:, :, :4], bias)
    with pytest.raises(attn.InvalidArgument, match="attn_mask is given and is_causal=True"):
        sdpa(heads_first, heads_first, heads_first, bias, is_causal=True)


def test_masks_without_strides_are_refused():
    q = QKV["q"].transpose(1, 2)
    for mask in (
        torch.ones(6, 6).to_sparse(),
        torch.nested.nested_tensor([torch.ones(6, 6)]),
    ):
        with pytest.raises(attn.InvalidArgument, match="attn_mask is a Tensor of layout"):
            attn.torch.scaled_dot_product_attention(q, q, q, mask)
