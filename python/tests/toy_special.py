"""Model types whose default configuration is not shrunk by rule, or that take other inputs.

`CONFIGURATIONS` has what their configuration class is given, in place of a shrunk default;
`INPUTS` makes the arguments of `forward` of a model with its configuration.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

LENGTH = 13
TEXT: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "top_k_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
_RESNET: dict[str, Any] = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 16, 32, 64],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage4"],
}
_DETECTOR: dict[str, Any] = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": _RESNET,
    "num_queries": 4,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "dropout": 0.0,
}
_DOTS: dict[str, Any] = {
    **TEXT,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "layer_types": ["indexed_attention", "sliding_attention"] * 2,
    "sliding_window_size": 5,
    "moe_intermediate_size": 48,
    "shared_experts_intermediate_size": 48,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 32,
    "index_topk": 4,
    "index_head_dim": 32,
    "index_n_heads": 4,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 32,
    "swa_qk_nope_head_dim": 16,
    "swa_v_head_dim": 16,
}
_CODEC: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "encoder_hidden_size": 8,
    "quantization_dim": 128,
    "activation_dropout": 0.0,
    "semantic_model_config": {
        "model_type": "wav2vec2-bert",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "feature_projection_input_dim": 16,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "conformer_conv_dropout": 0.0,
        "feat_proj_dropout": 0.0,
        "layerdrop": 0.0,
        "apply_spec_augment": False,
    },
}
_SIDE = 128  # of a frame
_FRAMES: dict[str, Any] = {
    "image_size": _SIDE,
    "vision_config": {
        "backbone_config": {"model_type": "sam2_hiera_det_model", "image_size": [_SIDE, _SIDE]},
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
    },
    "prompt_encoder_config": {"image_size": _SIDE},
}
# A word for each code of an image, as tokenizers name them.
_IMAGE_WORDS = {f"IMGIMG{chr(ord('A') + code)}Z": 20 + code for code in range(10)}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "chameleon": {**TEXT, "vocabulary_map": {"<image>": 4, **_IMAGE_WORDS}},
    "conditional_detr": _DETECTOR,
    "detr": _DETECTOR,
    "decision_transformer": {
        "state_dim": 5,
        "act_dim": 3,
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 48,
        "max_ep_len": 64,
        "n_positions": 64,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "diffusion_gemma": {
        "text_config": {
            **TEXT,
            **_EXPERTS,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 5,
        },
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 64,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "position_embedding_size": 64,
        },
        "canvas_length": 6,
    },
    "dots3_note": {
        "text_config": _DOTS,
        "vision_config": {
            "hidden_size": 64,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "patch_size": 8,
            "mlp_layer_types": ["dense", "dense"],
            "adapter_in_dim": 64,
            "adapter_out_dim": 64,
        },
        "audio_config": {
            "hidden_size": 64,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "feature_size": 16,
            "downsample_hidden_size": 16,
            "adapter_input_size": 64,
            "adapter_out_dim": 64,
        },
    },
    "dots3_note_text": _DOTS,
    "edgetam_video": {
        **_FRAMES,
        "memory_attention_rope_feat_sizes": [8, 8],
        "memory_attention_rope_k_sizes": [2, 2],
        "perceiver_resampler_num_latents": 4,
        "perceiver_resampler_num_latents_2d": 4,
    },
    "fun_asr_nano": {
        "adaptor_config": {
            "hidden_size": 64,
            "intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        },
        "audio_config": {
            "model_type": "fun_asr_nano_encoder",
            "num_mel_bins": 16,
            "hidden_size": 64,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_timestamp_prediction_layers": 1,
            "num_attention_heads": 4,
        },
        "text_config": {"model_type": "qwen3", **TEXT},
        "audio_token_id": 4,
    },
    "hrm_text": {**TEXT, "head_dim": 16, "num_hidden_layers": 1, "H_cycles": 2, "L_cycles": 2},
    "maskformer": {
        "backbone_config": {
            "model_type": "swin",
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1, 1, 1],
            "num_heads": [2, 2, 2, 2],
            "window_size": 4,
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
        "decoder_config": {"model_type": "detr", **_DETECTOR},
        "fpn_feature_size": 64,
        "mask_feature_size": 64,
    },
    "neucodec": {**_CODEC, "output_sampling_rate": 24000},
    "sam3_tracker_video": {
        "image_size": 112,
        "vision_config": {
            "backbone_config": {
                "model_type": "sam3_vit_model",
                "hidden_size": 64,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 112,
                "pretrain_image_size": 112,
                "window_size": 4,
                "global_attn_indexes": [1],
            },
            "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
        },
        "prompt_encoder_config": {"image_size": 112},
        "memory_attention_rope_feat_sizes": [8, 8],
    },
    "sapiens2": {
        "image_size": 32,
        "patch_size": 8,
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_attention_heads": 2,
        "num_first_full_attention_layers": 1,
        "num_last_full_attention_layers": 1,
    },
    "sam2_video": {**_FRAMES, "memory_attention_rope_feat_sizes": [8, 8]},
    "step3p7": {
        "text_config": {
            **TEXT,
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "sliding_window": 5,
            "num_sliding_attention_heads": 4,
            "moe_intermediate_size": 48,
            "n_routed_experts": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "share_expert_dim": 48,
        },
        "vision_config": {
            "hidden_size": 64,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 8,
        },
        "image_token_id": 4,
    },
    "xcodec2": _CODEC,
    "zamba": {
        **{n: v for n, v in TEXT.items() if n != "head_dim"},
        "num_key_value_heads": 4,
        "num_hidden_layers": 8,
        "attn_layer_period": 3,
        "attn_layer_offset": 2,
        "use_mamba_kernels": False,
        "mamba_dt_rank": 4,
    },
    "zamba2": {
        **{n: v for n, v in TEXT.items() if n != "head_dim"},
        "num_key_value_heads": 4,
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "n_mamba_heads": 8,
        "mamba_d_state": 16,
        "chunk_size": 8,
        "use_mamba_kernels": False,
    },
}


def _ids(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(20, 90, (2, length))


def _text(length: int = LENGTH) -> dict[str, Any]:
    return {"input_ids": _ids(length), "attention_mask": torch.ones(2, length, dtype=torch.long)}


def _decision_transformer(model: Any, config: Any) -> dict[str, Any]:
    return {
        "states": torch.randn(2, LENGTH, config.state_dim),
        "actions": torch.randn(2, LENGTH, config.act_dim),
        "rewards": torch.randn(2, LENGTH, 1),
        "returns_to_go": torch.randn(2, LENGTH, 1),
        "timesteps": torch.arange(LENGTH).expand(2, LENGTH),
        "attention_mask": torch.ones(2, LENGTH),
    }


def _dia(model: Any, config: Any) -> dict[str, Any]:
    channels = config.decoder_config.num_channels
    return {**_text(), "decoder_input_ids": torch.randint(5, 30, (2, 7, channels))}


def _audio(config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[1, 30:] = 0
    return torch.randn(2, 40, config.input_size), mask


def _fun_asr_encoder(model: Any, config: Any) -> dict[str, Any]:
    features, mask = _audio(config)
    return {"input_features": features, "input_features_mask": mask}


def _idefics(model: Any, config: Any) -> dict[str, Any]:
    size = config.vision_config.image_size
    return {
        **_text(),
        "pixel_values": torch.randn(2, 1, 3, size, size),
        "image_attention_mask": torch.ones(2, LENGTH, 1, dtype=torch.long),
    }


def _kosmos2(model: Any, config: Any) -> dict[str, Any]:
    size, images = config.vision_config.image_size, config.latent_query_num
    given = _text(images + 9)
    places = torch.zeros(2, images + 9, dtype=torch.long)
    places[:, 2 : 2 + images] = 1
    return {
        "pixel_values": torch.randn(2, 3, size, size),
        **given,
        "image_embeds_position_mask": places,
    }


def _muse_assistant(model: Any, config: Any) -> dict[str, Any]:
    width = config.hidden_size * len(config.target_layer_ids)
    return {
        "noise_embeds": torch.randn(2, config.block_size, config.hidden_size),
        "context_hidden_states": torch.randn(2, LENGTH, width),
        # Its own masks count the queries alone as keys, which "eager" does not take.
        "attention_mask": {"full_attention": None, "sliding_attention": None},
    }


def _pix2struct(model: Any, config: Any) -> dict[str, Any]:
    patch = config.vision_config.patch_embed_hidden_size
    places = torch.arange(1, 17).float().view(1, 16, 1).expand(2, 16, 2)
    mask = torch.ones(2, 16)
    mask[1, 12:] = 0
    return {
        "flattened_patches": torch.cat([places, torch.randn(2, 16, patch)], dim=2),
        "attention_mask": mask,
        "decoder_input_ids": _ids(7),
    }


def _line_of_text(model: Any, config: Any) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 96, 160)}


def _low_line_of_text(model: Any, config: Any) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 48, 160)}


def _codec(model: Any, config: Any) -> dict[str, Any]:
    features = config.semantic_model_config.feature_projection_input_dim
    return {
        "input_values": torch.randn(2, 1, 6400),
        "input_features": torch.randn(2, 20, features),
    }


def _canvas(model: Any, config: Any) -> dict[str, Any]:
    canvas = config.canvas_length
    return {
        **_text(),
        "decoder_input_ids": _ids(canvas),
        "decoder_attention_mask": torch.ones(2, LENGTH + canvas, dtype=torch.long),
    }


def _image(model: Any, config: Any) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 64, 64)}


def _times(model: Any, config: Any) -> dict[str, Any]:
    length = 4 * config.patch_length
    padding = torch.zeros(2, length, dtype=torch.long)
    padding[1, : config.patch_length] = 1
    given = {"past_values": torch.randn(2, length), "past_values_padding": padding}
    return given | ({"freq": torch.tensor([[0], [1]])} if config.model_type == "timesfm" else {})


def _video(folder: str, session: str) -> Callable[[Any], Any]:
    """Two frames, of which the second attends to what is remembered of the first."""

    def run(model: Any) -> Any:
        module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
        size = model.config.image_size
        made = getattr(module, session)(
            torch.randn(2, 3, size, size), size, size, dtype=next(model.parameters()).dtype
        )
        index = made.obj_id_to_idx(1)
        point = {"point_coords": torch.full((1, 1, 1, 2), size / 2.0)}
        point["point_labels"] = torch.ones(1, 1, 1, dtype=torch.int32)
        made.add_point_inputs(index, 0, point)
        made.obj_with_new_inputs = [1]
        return [model(inference_session=made, frame_idx=frame).pred_masks for frame in (0, 1)]

    return run


# The class of a model that no table of tasks names: the parts that have attention are in it alone.
CLASSES = {
    "pp_ocrv5_mobile_rec": "PPOCRV5MobileRecForTextRecognition",
    "pp_ocrv5_server_rec": "PPOCRV5ServerRecForTextRecognition",
    "pp_ocrv6_small_rec": "PPOCRV6SmallRecForTextRecognition",
}
# In place of a call of `forward`; these run without gradients.
RUNS: dict[str, Callable[[Any], Any]] = {
    "edgetam_video": _video("edgetam_video", "EdgeTamVideoInferenceSession"),
    "sam2_video": _video("sam2_video", "Sam2VideoInferenceSession"),
    "sam3_tracker_video": _video("sam3_tracker_video", "Sam3TrackerVideoInferenceSession"),
}
INPUTS: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    **{kind: lambda model, config: {} for kind in RUNS},
    "blt": lambda model, config: {**_text(), "use_cache": False},
    "conditional_detr": _image,
    "decision_transformer": _decision_transformer,
    "detr": _image,
    "dia": _dia,
    "diffusion_gemma": _canvas,
    "fun_asr_nano_encoder": _fun_asr_encoder,
    "idefics": _idefics,
    "kosmos-2": _kosmos2,
    "maskformer": _image,
    "muse_glimmer_assistant": _muse_assistant,
    "neucodec": _codec,
    "pix2struct": _pix2struct,
    "pp_ocrv5_mobile_rec": _line_of_text,
    "pp_ocrv5_server_rec": _low_line_of_text,
    "pp_ocrv6_small_rec": _low_line_of_text,
    "timesfm": _times,
    "timesfm2_5": _times,
    "xcodec2": _codec,
}
