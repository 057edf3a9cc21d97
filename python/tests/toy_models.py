"""Small random models of every architecture of transformers, and inputs for them."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.models.auto import configuration_auto, modeling_auto

import toy_special

VOCABULARY = 99
DEPTH = r"(.*_)?(num_|n_)?(hidden_)?(layers?|blocks|depth)(_num)?|num_(en|de)coder_layers"
LENGTH = 13
# Sizes by the end of their names, the first that matches; of default configurations larger ones.
SIZES = {
    r"(.*_)?vocab(_size.*)?": VOCABULARY,
    r"(num_)?(key_value|kv)_heads|num_kv_heads|.*num_key_value_heads|multi_query_group_num": 2,
    r"index_n_heads|index_topk|moe_num_experts": 4,
    r"index_head_dim": 32,
    r"moe_k": 2,
    r".*(attention|key|value|query)_heads|(n|num)_heads?|n_head|.*num_heads|.*attn_heads": 4,
    r"rotary_dim": 8,
    r".*n_groups": 2,
    r".*head_dim|d_kv|d_head|kv_channels|.*lora_rank|query_pre_attn_scalar": 16,
    DEPTH: 2,
    r".*(num_experts_per_tok(en)?|top_?k|topk)(_experts)?|moe_topk": 2,
    r"n_group|topk_group|num_expert_groups?": 1,
    r".*num_.*experts|n_routed_experts|num_local_experts|n_experts|num_routed_experts": 4,
    r".*(intermediate|ffn|mlp|ff|inner)_?(size|dim|hidden)?(_mlp)?|d_ff|n_inner": 48,
    r".*(hidden|embed|embedding|model|projection|proj)_(size|dim)|.*hidden_size.*|d_model": 64,
    r"n_embd|dim|emb_dim|embed_dim|hidden_dim|word_embed_proj_dim|output_dim": 64,
    r".*image_size": 32,
    r".*patch_size": 8,
    r".*sliding_window(_size)?|attention_chunk_size|local_attention|window_size": 5,
    r".*max.*position.*|n_positions|seq_length|context_length|n_ctx|max_seq_len|max_sequence.*": 64,
    r"num_mel_bins": 16,
    r".*codebook_size": 32,
}


# Where a configuration holds its sizes together.
MORE: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 16, "attn_layer_indices": [1]},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "dory": {
        "num_hidden_layers": 3,
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
        "layer_types": None,
    },
    "dots3_note_text": {"swa_head_dim": 32},
    "efficientloftr": {"hidden_size": 256},
    "esm": {"vocab_size": VOCABULARY},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "granitemoehybrid": {
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "layer_types": ["mamba", "attention"],
    },
    "granite_speech5_encoder": {"context_size": 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mistral4": {"head_dim": 32},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 7},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "exaone4_5_vision": {"window_size": 32},
    "qwen2_5_vl_vision": {"window_size": 32},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128},
}
for _detector in (
    "d_fine",
    "deimv2",
    "pp_doclayout_v3",
    "pp_doclayout_v4",
    "rf_detr",
    "rt_detr",
    "rt_detr_v2",
):
    MORE[_detector] = {"num_queries": 4}
for _codec in (
    "mimi",
    "mimi_encoder",
    "pocket_tts_audio_tokenizer",
    "pocket_tts_audio_tokenizer_encoder",
):
    MORE[_codec] = {"upsample_groups": 64}
# Their result is of a row that padding on the left leaves without keys.
POOLED_PADDING = ("pe_audio",)
ABSENT = {
    "head_dim": 16,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "n_shared_experts": 1,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}


def _size(name: str, value: int, whole: bool) -> int:
    if whole and not re.fullmatch(DEPTH, name):
        return value
    for pattern, size in SIZES.items():
        if re.fullmatch(pattern, name):
            return min(size, value)
    if name.endswith("token_id") or name.endswith("token_index"):
        return value if value < VOCABULARY else 3 + sum(map(ord, name)) % 90
    return value


def shrunk(given: dict[str, Any], *, deep: bool = False, whole: bool = False) -> dict[str, Any]:
    """A configuration as a dict, with small sizes; lists of layers keep each kind of layer.

    deep: as many layers as it has. whole: few layers, and all other sizes as they are.
    """
    kinds = [
        list(dict.fromkeys(map(str, value)))
        for name, value in given.items()
        if isinstance(value, list) and name.endswith("types") and value
    ]
    layers = max([2, *map(len, kinds)])
    was = next((given[n] for n in ("num_hidden_layers", "n_layer", "num_layers") if n in given), 0)
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name in ("id2label", "label2id"):
            continue
        if name in ("out_features", "out_indices", "stage_names") and not whole:
            continue
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            made[name] = shrunk(value, deep=deep, whole=whole)
        elif name == "mrope_section" and not whole:
            made[name] = [4, 2, 2][: len(value)]
        elif isinstance(value, list) and value and len(value) == was and not deep:
            first = list(dict.fromkeys(map(str, value)))
            kept = [next(v for v in value if str(v) == text) for text in first]
            made[name] = (kept * layers)[:layers]
        elif value is None and name in ABSENT:
            made[name] = ABSENT[name]
        elif isinstance(value, int) and not isinstance(value, bool):
            is_depth = re.fullmatch(DEPTH, name)
            made[name] = value if deep and is_depth else _size(name, value, whole)
            if not deep and name in ("num_hidden_layers", "n_layer", "num_layers"):
                made[name] = min(layers, value)
        elif (name.endswith("dropout") and isinstance(value, float)) or name in (
            "attn_pdrop",
            "resid_pdrop",
            "embd_pdrop",
        ):
            made[name] = 0.0
        else:
            made[name] = value
    if "qk_nope_head_dim" in made and "qk_rope_head_dim" in made:
        made["qk_head_dim"] = made["qk_nope_head_dim"] + made["qk_rope_head_dim"]
    if "rope_type" in made and not whole:
        made.setdefault("mrope_section", [4, 2, 2])
    heads = given.get("num_attention_heads")
    if heads is not None and given.get("num_key_value_heads") == heads:
        made["num_key_value_heads"] = made["num_attention_heads"]
    return made


def configuration(kind: str, **more: Any) -> Any:
    """The default configuration of a model type, shrunk; as deep as it was if that is refused."""
    if kind in toy_special.CONFIGURATIONS:
        given = copy.deepcopy(toy_special.CONFIGURATIONS[kind])
        return configuration_auto.CONFIG_MAPPING[kind](**given)
    try:
        return _configuration(kind, deep=False, more=more)
    except Exception:
        return _configuration(kind, deep=True, more=more)


# What some models need: a token that ends a text, or sizes as they were.
VARIANTS: tuple[dict[str, Any], ...] = ({}, {"eos_token_id": 2}, {"eos_token_id": 2, "whole": True})


def _set(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except Exception:  # of a type that the configuration does not take
        if value is None:
            setattr(config, name, 2)


def _configuration(kind: str, *, deep: bool, more: dict[str, Any]) -> Any:
    cls = configuration_auto.CONFIG_MAPPING[kind]
    given = shrunk(cls().to_dict(), deep=deep, whole=more.get("whole", False))
    for name in ("transformers_version", "model_type", "architectures"):
        given.pop(name, None)
    eos = more.get("eos_token_id")
    given.update(eos_token_id=eos, pad_token_id=0, bos_token_id=1, **MORE.get(kind, {}))
    try:
        config = cls(**given)
    except Exception as error:
        if "eos_token_id" not in str(error):
            raise
        config = cls(**{**given, "eos_token_id": 2})
    for part in {id(p): p for p in _texts(config)}.values():
        _set(part, "eos_token_id", eos)
        _set(part, "pad_token_id", 0)
    if getattr(config, "is_encoder_decoder", False):
        config.decoder_start_token_id = 1
    return config


def _texts(config: Any) -> list[Any]:
    """A configuration and those of the texts that it reads and writes."""
    found = [config]
    for ask in ({}, {"decoder": True}, {"encoder": True}):
        try:
            found.append(config.get_text_config(**ask))
        except ValueError:  # there are several
            continue
    return found


TASKS = (
    "CAUSAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "MASKED_LM",
    "",
    "PRETRAINING",
    "TEXT_TO_WAVEFORM",
    "IMAGE_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "CTC",
)


def class_of(config: Any) -> type | None:
    """The model of a configuration: one with a head that generates, if there is one."""
    return next(iter(classes_of(config)), None)


def classes_of(config: Any) -> list[type]:
    """The models of a configuration: those with a head that generates first."""
    if config.model_type in toy_special.CLASSES:
        return [getattr(transformers, toy_special.CLASSES[config.model_type])]
    every: list[type] = []
    for task in TASKS:
        if task == "CAUSAL_LM" and not hasattr(config, "vocab_size"):
            continue  # of the text alone, whose configuration is another
        table = f"MODEL_FOR_{task}_MAPPING" if task else "MODEL_MAPPING"
        found = getattr(modeling_auto, table, {}).get(type(config), None)
        if found is not None:
            every += found if isinstance(found, tuple) else (found,)
    return list(dict.fromkeys(every))


def kinds() -> list[str]:
    """Model types that have a model, those that generate first."""
    tables = [
        getattr(
            modeling_auto,
            f"MODEL_FOR_{task}_MAPPING_NAMES" if task else "MODEL_MAPPING_NAMES",
            {},
        )
        for task in TASKS
    ]
    return list(dict.fromkeys(kind for table in tables for kind in table))


def model_of(cls: Any, config: Any, implementation: str) -> Any:
    """With numbers that make attention uneven, the same for each implementation."""
    torch.manual_seed(1)
    model = cls._from_config(config, attn_implementation=implementation).eval().float()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * (1.5 / max(parameter[0].numel(), 1) ** 0.5))
            else:
                parameter.add_(0.1 * noise)
    return model


def images_of(config: Any) -> dict[str, torch.Tensor]:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 32)
    height, width = (size, size) if isinstance(size, int) else size[:2]
    return {"pixel_values": torch.randn(2, getattr(vision, "num_channels", 3), height, width)}


def inputs_of(model: Any, config: Any, padded: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    if config.model_type in toy_special.INPUTS:
        made = toy_special.INPUTS[config.model_type](model, config)
        for name, tensor in made.items():
            if padded and name.endswith("attention_mask") and isinstance(tensor, torch.Tensor):
                tensor[1, :4] = 0
        return made
    wanted = inspect.signature(model.forward).parameters
    text = _texts(config)[-1]
    made: dict[str, torch.Tensor] = {}
    main = model.main_input_name
    ids = torch.randint(5, getattr(text, "vocab_size", None) or VOCABULARY, (2, LENGTH))
    if main == "input_ids" or ("input_ids" in wanted and main not in wanted):
        special = [v for n, v in vars(config).items() if n.endswith(("token_id", "token_index"))]
        for number in special:
            if isinstance(number, int):
                ids[ids == number] = 4
        if isinstance(getattr(text, "eos_token_id", None), int):  # where some look for their result
            ids[:, -1] = text.eos_token_id
        made["input_ids"] = ids
        mask = torch.ones_like(ids)
        if padded:
            mask[1, :4] = 0
            ids[1, :4] = 0
        made["attention_mask"] = mask
    elif main == "pixel_values":
        made.update(images_of(config))
    elif main == "input_features":
        frames = 2 * getattr(config, "max_source_positions", 20)
        made[main] = torch.randn(2, getattr(config, "num_mel_bins", 16), frames)
    elif main == "input_values":
        made[main] = torch.randn(2, 4000)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in wanted:
        made["decoder_input_ids"] = ids[:, :7].clamp(min=1)
    return made


def more_inputs(
    model: Any, config: Any, given: dict[str, torch.Tensor]
) -> Iterator[dict[str, torch.Tensor]]:
    """Other inputs to try with a model that does not take `given`: what else it asks for."""
    torch.manual_seed(5)
    signature = inspect.signature(model.forward).parameters
    text = _texts(config)[-1]
    ids = torch.randint(5, getattr(text, "vocab_size", None) or VOCABULARY, (2, LENGTH))
    hidden = getattr(config, "hidden_size", None) or getattr(text, "hidden_size", 64)
    mels = getattr(getattr(config, "audio_config", config), "num_mel_bins", 16)
    images = images_of(config) if "pixel_values" in signature else {}
    known: dict[str, torch.Tensor] = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "decoder_input_ids": ids[:, :7],
        "qformer_input_ids": ids,
        "bbox": torch.tensor([1, 2, 30, 40]).expand(2, LENGTH, 4).contiguous(),
        "query_embeds": torch.randn(2, 8, hidden),
        "hidden_states": torch.randn(2, LENGTH, hidden),
        "inputs_embeds": torch.randn(2, LENGTH, hidden),
        "flattened_patches": torch.randn(2, 16, 770),
        "input_features_mask": torch.ones(2, 128, dtype=torch.long),
        "encoder_hidden_states": torch.randn(2, 8, getattr(config, "encoder_hidden_size", hidden)),
        **images,
    }
    needed = {
        n: known[n]
        for n, p in signature.items()
        if n in known and p.default is inspect.Parameter.empty
    }
    yield {**given, **images}
    if images and "input_ids" not in signature:  # a pair of images
        yield {"pixel_values": torch.rand(1, 2, 3, 64, 64)}
    yield {**given, **needed}
    if "query_embeds" in needed:
        yield {**needed, "encoder_hidden_states": known["encoder_hidden_states"]}
    yield {**given, **needed, **images}
    grids = [n for n in ("grid_thw", "image_grid_thw") if n in signature]
    if grids:  # two images of different sizes, as rows of patches
        channels = getattr(config, "in_channels", None) or getattr(config, "num_channels", 3)
        side = getattr(config, "patch_size", 8)
        made = {n: torch.tensor([[1, 4, 4], [1, 4, 8]]) for n in grids}
        if "merge_sizes" in signature:
            made["merge_sizes"] = torch.tensor([1, 1])
        for name in ("hidden_states", "pixel_values"):
            for shape in ((channels * side**2,), (2 * channels * side**2,), (channels, side, side)):
                if name in signature:
                    yield {name: torch.randn(48, *shape), **made}
    size = getattr(config, "image_size", 32)
    frames = (
        torch.randn(2, getattr(config, "num_frames", 8), 3, *[size] * 2) if size == 32 else None
    )
    for name in ("pixel_values", "pixel_values_videos"):
        if name in signature and frames is not None:
            yield {name: frames}
            yield {"input_ids": ids, name: frames}
    if hasattr(config, "feature_projection_input_dim"):
        yield {"input_features": torch.randn(2, 20, config.feature_projection_input_dim)}
    with_ids = {n: known[n] for n in ("input_ids", "attention_mask") if n in signature}
    for name in ("bbox", "flattened_patches", "qformer_input_ids", "decoder_input_ids"):
        if name in signature:
            yield {**given, **with_ids, **images, name: known[name]}
    yield {**given, **with_ids, **images}
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in signature:
        with_ids["decoder_input_ids"] = ids[:, :7]
    for name in ("input_values", "input_features", "audio_values"):
        each = getattr(config, "input_feat_per_channel", mels)
        shapes = ((2, 4000), (2, 1, 4032), (2, 128, mels), (2, mels, 128), (2, mels, 3000))
        for shape in (*shapes, (2, 1024, mels), (2, 128, each), (2, 128, hidden)):
            if name in signature and "input_features_mask" in signature:
                yield {
                    name: torch.randn(shape),
                    "input_features_mask": known["input_features_mask"],
                }
            elif name in signature:
                yield {name: torch.randn(shape)}
                yield {**with_ids, name: torch.randn(shape)}
