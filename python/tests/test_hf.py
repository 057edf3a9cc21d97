"""attn.hf against transformers' "eager" attention, in small random models, on CPU and GPU."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import attn.hf  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
DECODERS = {
    "Llama": {},
    "Mistral": {"sliding_window": 5},
    "Gemma2": {
        "sliding_window": 5,
        "attn_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "GptOss": {
        "sliding_window": 5,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Qwen3": {},
}


@pytest.fixture(autouse=True)
def _registered():
    attn.hf.register()


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
        ),
    ]
)
def device(request):
    return request.param


def on_device_of(model, inputs):
    return {n: x.to(model.device) if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}


def decoder(name, device):
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**SIZES, **DECODERS[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.to(device)


def tokens(padding, length=13):
    torch.manual_seed(2)
    ids = torch.randint(1, 99, (2, length))
    mask = torch.ones_like(ids)
    if padding == "left":
        mask[1, :4] = 0
    elif padding == "right":
        mask[1, -4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def results(model, implementation, **inputs):
    model.set_attn_implementation(implementation)
    model.zero_grad()
    out = model(**inputs)
    logits = out.logits if hasattr(out, "logits") else out.last_hidden_state
    seen = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    if seen is not None and seen.shape[1] == logits.shape[1]:
        logits = logits * seen[..., None]  # rows of padding may hold anything
    logits.square().mean().backward()
    return logits.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def in_float64(model, inputs):
    """The results of "eager", or None where it has none: rows of padding alone are NaN there, and
    GPT-OSS multiplies its experts in float32.
    """
    if model.config.model_type == "gpt_oss":
        return None
    wide = {
        name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in inputs.items()
    }
    logits, gradients = results(copy.deepcopy(model).double(), "eager", **wide)
    return (logits, gradients) if logits.isfinite().all() else None


def assert_same(model, **inputs):
    """The error rule: at most twice the distance of "eager" from itself in float64. Without that,
    1e-5 of the largest number from "eager".
    """
    inputs = on_device_of(model, inputs)
    eager, eager_gradients = results(model, "eager", **inputs)
    ours, gradients = results(model, "attn", **inputs)
    assert gradients.keys() == eager_gradients.keys()
    found = torch.cat([g.flatten() for g in gradients.values()])
    theirs = torch.cat([g.flatten() for g in eager_gradients.values()])
    exact = in_float64(model, inputs)
    if exact is None:
        for x, y in ((ours, eager), (found, theirs)):
            assert (x - y).abs().max() <= 1e-5 * y.abs().max()
        return
    wanted = torch.cat([exact[1][name].flatten() for name in gradients])
    for x, y, z in ((ours, eager, exact[0]), (found, theirs, wanted)):
        assert (x - z).norm() <= 2 * (y - z).norm() + 2**-23 * z.norm()


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name, padding, device):
    assert_same(decoder(name, device), **tokens(padding), use_cache=False)


def assert_generates_same(model, **options):
    options = on_device_of(model, options)
    found = {}
    for implementation in ("eager", "attn"):
        model.set_attn_implementation(implementation)
        found[implementation] = model.generate(
            **options,
            max_new_tokens=12,
            do_sample=False,
            disable_compile=True,
            output_logits=True,
            return_dict_in_generate=True,
        )
    assert torch.equal(found["attn"].sequences, found["eager"].sequences)
    for ours, eager in zip(found["attn"].logits, found["eager"].logits, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_generate(name, cache, padding, device):
    assert_generates_same(decoder(name, device), **tokens(padding), cache_implementation=cache)


@pytest.mark.parametrize("name", DECODERS)
def test_a_static_cache_is_filled_in_chunks(name, device):
    """The cache raises its length in place between making a mask and reading it."""
    model = decoder(name, device)
    ids = on_device_of(model, tokens("none"))["input_ids"]
    found = {}
    for implementation in ("eager", "attn"):
        model.set_attn_implementation(implementation)
        cache = transformers.StaticCache(config=model.config, max_cache_len=ids.shape[1] + 3)
        with torch.no_grad():
            found[implementation] = [
                model(chunk, past_key_values=cache).logits for chunk in ids.split(4, dim=1)
            ]
    for ours, eager in zip(found["attn"], found["eager"], strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DECODERS)
def test_continuous_batching(name, device):
    """Prompts in chunks of 16 tokens and steps of others in one batch, as each has it alone."""
    pytest.importorskip("psutil", reason="continuous batching on a CPU needs psutil")
    model = decoder(name, device)
    prompts = [list(range(1, 9)), list(range(20, 23)), list(range(40, 60)), list(range(70, 82))]
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    model.set_attn_implementation("eager")
    wanted = [
        model.generate(torch.tensor([p], device=device), **options)[0, len(p) :].tolist()
        for p in prompts
    ]
    attn.hf.set_paged(model)
    sizes = {"num_blocks": 16, "max_batch_tokens": 16}
    known = transformers.ContinuousBatchingConfig.__dataclass_fields__
    sizes["page_size" if "page_size" in known else "block_size"] = 32
    found = model.generate_batch(
        prompts,
        generation_config=transformers.GenerationConfig(**options),
        continuous_batching_config=transformers.ContinuousBatchingConfig(**sizes),
        progress_bar=False,
    )
    ids = sorted(found, key=lambda name: int(name.rpartition("_")[2]))
    assert [found[i].generated_tokens for i in ids] == wanted


def test_paged_without_its_cache_is_refused(device):
    model = decoder("Llama", device)
    attn.hf.set_paged(model)
    with pytest.raises(attn.InvalidArgument, match="without the cache of continuous batching"):
        model(**on_device_of(model, tokens("none")), use_cache=False)
    assert_same(model, **tokens("none"), use_cache=False)


def test_packed_sequences(device):
    places = torch.cat([torch.arange(5), torch.arange(8)])[None].repeat(2, 1)
    inputs = tokens("none")
    del inputs["attention_mask"]
    assert_same(decoder("Llama", device), **inputs, position_ids=places, use_cache=False)


@pytest.mark.parametrize("padding", ["none", "right"])
def test_bert(padding, device):
    torch.manual_seed(1)
    sizes = {k: v for k, v in SIZES.items() if k not in ("num_key_value_heads", "head_dim")}
    config = transformers.BertConfig(**sizes)
    model = transformers.BertModel(config, add_pooling_layer=False).eval().to(device)
    assert_same(model, **tokens(padding))


@pytest.mark.parametrize("padding", ["none", "right"])
def test_t5_position_bias(padding, device):
    torch.manual_seed(1)
    config = transformers.T5Config(
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config).eval().to(device)
    inputs = tokens(padding)
    assert_same(model, **inputs, decoder_input_ids=inputs["input_ids"][:, :7], use_cache=False)
    assert_generates_same(model, **inputs)


def test_whisper_cross_attention(device):
    torch.manual_seed(1)
    config = transformers.WhisperConfig(
        vocab_size=99, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8,
        max_source_positions=20, max_target_positions=20, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval().to(device)
    features = torch.randn(2, 8, 40)
    ids = torch.randint(1, 99, (2, 7))
    assert_same(model, input_features=features, decoder_input_ids=ids, use_cache=False)
    assert_generates_same(model, input_features=features)


def test_a_mask_of_numbers_of_float64(device):
    """A ready made one, in a model of float64, which GPUs do not take."""
    if device == "cuda":
        model = decoder("Qwen3", device).double()
        model.set_attn_implementation("attn")
        with pytest.raises(attn.Unsupported, match="dtype is f64"):
            model(**on_device_of(model, tokens("left")))
        return
    model = decoder("Qwen3", device).double()
    inputs = on_device_of(model, tokens("left"))
    seen = torch.ones(13, 13, dtype=torch.bool, device=device).tril()
    seen = seen & inputs.pop("attention_mask").bool()[:, None, None]
    mask = torch.zeros(seen.shape, dtype=torch.float64, device=device)
    inputs["attention_mask"] = mask.masked_fill(~seen, torch.finfo(torch.float64).min)
    outs = []
    for implementation in ("sdpa", "attn"):
        model.set_attn_implementation(implementation)
        outs.append(model(**inputs).logits[seen.diagonal(0, 2, 3)[:, 0]])
    torch.testing.assert_close(*outs, rtol=1e-6, atol=1e-6)
