"""attn.hf in models that do more with their mask than hand it back: toys of those that were wrong
in silence or crashed. `sweep_transformers.py` runs all.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.nn.attention.flex_attention import BlockMask, create_block_mask  # noqa: E402
from transformers import masking_utils  # noqa: E402

import attn  # noqa: E402
import attn.hf  # noqa: E402
import toy_models  # noqa: E402
from attn.hf.mask import Mask, make_mask  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def _registered():
    attn.hf.register()


def toy(kind, implementation):
    config = toy_models.configuration(kind)
    return toy_models.model_of(toy_models.class_of(config), config, implementation)


# What each does: a mask of its own, unless it is a BlockMask; a slice, and keys of an indexer;
# a sum; `ndim`; a mask of its blocks.
@pytest.mark.parametrize("kind", ["doge", "deepseek_v32", "beit", "gpt2", "bigbird_pegasus"])
def test_models_that_work_on_their_mask(kind):
    eager, ours = toy(kind, "eager"), toy(kind, "attn")
    inputs = toy_models.inputs_of(eager, eager.config, padded=True)
    found = {}
    for name, model in (("eager", eager), ("attn", ours)):
        with torch.no_grad():
            out = model(**inputs)
        out = out.logits if "logits" in out else out.last_hidden_state
        if out.shape[:2] == inputs.get("attention_mask", torch.zeros(0)).shape:
            out = out * inputs["attention_mask"][..., None]  # rows of padding may hold anything
        found[name] = [out]
        if kind in ("deepseek_v32", "gpt2"):
            found[name] += model.generate(
                **inputs, max_new_tokens=2, do_sample=False, disable_compile=True,
                cache_implementation="static", output_logits=True, return_dict_in_generate=True,
            ).logits  # fmt: skip
    for x, y in zip(found["attn"], found["eager"], strict=True):
        assert (x - y).abs().max() <= 1e-4 * y.abs().max()


REFUSED = {
    "deepseek_v4": r"attention_mask has shape \(2, 1, 13, 13\); accepted is \(2, 4, 13, 16\)",
    "inkling2_text": "sinks is given by Inkling2SlidingAttention; accepted is None",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_need_more_are_refused(kind):
    """Keys appended after the mask was made, and a sink for every query."""
    if kind not in toy_models.kinds():
        pytest.skip(f"this transformers has no {kind}")
    model = toy(kind, "attn")
    with pytest.raises(attn.Error, match=REFUSED[kind]):
        model(**toy_models.inputs_of(model, model.config, padded=False))


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_weights_are_refused(kind):
    model = toy(kind, "attn")
    with pytest.raises(attn.Unsupported, match="output_attentions is True; accepted is False"):
        model(**toy_models.inputs_of(model, model.config, padded=False), output_attentions=True)


SIZES = {"batch_size": 2, "q_length": 3, "kv_length": 5, "q_offset": 2}


def masks():
    padding = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]).bool()
    given = {
        **SIZES,
        "attention_mask": padding,
        "mask_function": masking_utils.causal_mask_function,
    }
    return make_mask(**given), masking_utils.eager_mask(**given)


USES = {
    "slice": lambda m: m[:, 0, :, :4],
    "sum": lambda m: torch.ones(2, 4, 3, 5) + m,
    "sum from the left": lambda m: m + 1.0,
    "sum from the right": lambda m: 1.0 + m,
    "in place": lambda m: torch.ones(2, 4, 3, 5).add_(m),
    "comparison": lambda m: m == 0,
    "negation": lambda m: ~(m < 0),
    "where": lambda m: torch.where(m == 0, m, m * 2),
    "cat": lambda m: torch.cat([m, torch.zeros(2, 1, 3, 1)], dim=-1),
    "pad": lambda m: torch.nn.functional.pad(m, (0, 2)),
    "method": lambda m: m.masked_fill(torch.ones(3, 5).bool(), 7.0),
    "device": lambda m: m.to("cpu", torch.float64),
    "numpy": lambda m: torch.from_numpy(m.numpy()),
    "elements": lambda m: torch.stack(list(m)),
}


@pytest.mark.parametrize("use", USES)
def test_a_mask_that_is_worked_on_is_that_of_eager(use):
    mask, tensor = masks()
    assert torch.equal(USES[use](mask), USES[use](tensor))
    assert torch.equal(mask.tensor, tensor)


def test_a_mask_takes_no_memory_before():
    mask, tensor = masks()
    assert (mask.shape, mask.ndim, mask.dtype) == (tensor.shape, tensor.ndim, tensor.dtype)
    assert mask.device == tensor.device
    assert repr(mask) == "attn mask of (2, 1, 3, 5)"
    assert not isinstance(mask, (torch.Tensor, BlockMask))
    assert mask.contiguous() is mask
    assert make_mask(**SIZES, attention_mask=mask) is mask
    assert mask.tensor is None


def call(**given):
    torch.manual_seed(1)
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 4, given.pop("keys", 5), 8)
    return attn.hf._attention(torch.nn.Identity(), q, k, k, given.pop("mask", None), **given)[0]


def test_a_mask_that_was_changed_in_place():
    mask, tensor = masks()
    for each in (mask, tensor):
        each[:, :, :, 3] = -torch.inf
    assert torch.equal(call(mask=mask), call(mask=tensor))
    assert not torch.equal(call(mask=mask), call(mask=masks()[0]))


def test_without_a_mask_all_is_seen():
    """Also in a layer that says it is causal, as BridgeTower's of images do, as with "eager"."""
    torch.manual_seed(1)
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 3, 8)
    exact = torch.softmax(q @ k.mT * 8**-0.5, -1) @ k
    layer = torch.nn.Identity()
    layer.is_causal = True
    found = attn.hf._attention(layer, q, k, k, None)[0].transpose(1, 2)
    torch.testing.assert_close(found, exact)


def test_other_arguments_are_refused():
    with pytest.raises(attn.InvalidArgument, match=r"attention_mask has shape \(2, 1, 3, 5\)"):
        call(mask=masks()[0], keys=6)
    with pytest.raises(attn.InvalidArgument, match=r"attention_mask has shape \(2, 1, 3, 9\)"):
        call(mask=torch.zeros(2, 1, 3, 9))
    with pytest.raises(attn.InvalidArgument, match=r"position_bias has shape \(1, 4, 3, 9\)"):
        call(position_bias=torch.zeros(1, 4, 3, 9))
    blocks = create_block_mask(lambda b, h, q, k: q >= k, 2, None, 3, 5, device="cpu")
    with pytest.raises(attn.InvalidArgument, match="attention_mask is a BlockMask; accepted are"):
        call(mask=blocks)
    with pytest.raises(attn.Unsupported, match="block_indices is given by Identity; accepted is"):
        call(block_indices=torch.zeros(2, 1, 3, 1).long())
    assert isinstance(masks()[0], Mask)
    call(position_ids=torch.arange(3)[None], output_hidden_states=True)
