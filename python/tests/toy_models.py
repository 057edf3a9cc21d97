"""Small random models of every architecture of transformers, and inputs for them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from transformers.models.auto import configuration_auto, modeling_auto

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
    r".*head_dim|d_kv|d_head|kv_channels|.*lora_rank|query_pre_attn_scalar": 16,
    DEPTH: 2,
    r".*(num_experts_per_tok|top_?k|topk)(_experts)?|moe_topk": 2,
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
    "dory": {
        "num_hidden_layers": 3,
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
        "layer_types": None,
    },
    "dots3_note_text": {"swa_head_dim": 32},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128},
}
ABSENT = {
    "head_dim": 16,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "num_local_experts": 4,
}


def _size(name: str, value: int) -> int:
    for pattern, size in SIZES.items():
        if re.fullmatch(pattern, name):
            return min(size, value)
    if name.endswith("token_id") or name.endswith("token_index"):
        return value if value < VOCABULARY else 3 + sum(map(ord, name)) % 90
    return value


def shrunk(given: dict[str, Any], *, deep: bool = False) -> dict[str, Any]:
    """A configuration as a dict, with small sizes; lists of layers keep each kind of layer."""
    kinds = [
        list(dict.fromkeys(map(str, value)))
        for name, value in given.items()
        if isinstance(value, list) and name.endswith("types") and value
    ]
    layers = max([2, *map(len, kinds)])
    was = next((given[n] for n in ("num_hidden_layers", "n_layer", "num_layers") if n in given), 0)
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name in ("id2label", "label2id", "out_features", "out_indices", "stage_names"):
            continue
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            made[name] = shrunk(value, deep=deep)
        elif name == "mrope_section":
            made[name] = [4, 2, 2][: len(value)]
        elif isinstance(value, list) and value and len(value) == was and not deep:
            first = list(dict.fromkeys(map(str, value)))
            kept = [next(v for v in value if str(v) == text) for text in first]
            made[name] = (kept * layers)[:layers]
        elif value is None and name in ABSENT:
            made[name] = ABSENT[name]
        elif isinstance(value, int) and not isinstance(value, bool):
            is_depth = re.fullmatch(DEPTH, name)
            made[name] = value if deep and is_depth else _size(name, value)
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
    if "rope_type" in made:
        made.setdefault("mrope_section", [4, 2, 2])
    heads = given.get("num_attention_heads")
    if heads is not None and given.get("num_key_value_heads") == heads:
        made["num_key_value_heads"] = made["num_attention_heads"]
    return made


def configuration(kind: str) -> Any:
    """The default configuration of a model type, shrunk; as deep as it was if that is refused."""
    try:
        return _configuration(kind, deep=False)
    except Exception:
        return _configuration(kind, deep=True)


def _configuration(kind: str, *, deep: bool) -> Any:
    cls = configuration_auto.CONFIG_MAPPING[kind]
    given = shrunk(cls().to_dict(), deep=deep)
    for name in ("transformers_version", "model_type", "architectures"):
        given.pop(name, None)
    given.update(eos_token_id=None, pad_token_id=0, bos_token_id=1, **MORE.get(kind, {}))
    config = cls(**given)
    for part in (config, config.get_text_config(), config.get_text_config(decoder=True)):
        part.eos_token_id = None
        part.pad_token_id = 0
    if getattr(config, "is_encoder_decoder", False):
        config.decoder_start_token_id = 1
    return config


TASKS = (
    "CAUSAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "MASKED_LM",
    "",
)


def class_of(config: Any) -> type | None:
    """The model of a configuration: one with a head that generates, if there is one."""
    for task in TASKS:
        if task == "CAUSAL_LM" and not hasattr(config, "vocab_size"):
            continue  # of the text alone, whose configuration is another
        table = f"MODEL_FOR_{task}_MAPPING" if task else "MODEL_MAPPING"
        found = getattr(modeling_auto, table).get(type(config), None)
        if found is not None:
            return found[0] if isinstance(found, tuple) else found
    return None


def kinds() -> list[str]:
    """Model types that have a model, those that generate first."""
    tables = [
        getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES" if task else "MODEL_MAPPING_NAMES")
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
    wanted = inspect.signature(model.forward).parameters
    text = config.get_text_config()
    made: dict[str, torch.Tensor] = {}
    main = model.main_input_name
    ids = torch.randint(5, getattr(text, "vocab_size", None) or VOCABULARY, (2, LENGTH))
    if main == "input_ids" or ("input_ids" in wanted and main not in wanted):
        special = [v for n, v in vars(config).items() if n.endswith(("token_id", "token_index"))]
        for number in special:
            if isinstance(number, int):
                ids[ids == number] = 4
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
