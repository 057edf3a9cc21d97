"""Writes a model of llama.py as a folder of Hugging Face: config.json, tokenizer.json, safetensors."""
import json

import numpy as np

import gguf
from llama import SentencePiece

NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
OF_LAYERS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
             "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj"}
DTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def llama3_factors(base, dims, rope):
    """What Llama 3.1 divides frequencies by, as its makers say it: by wavelengths."""
    factors = []
    for i in range(dims // 2):
        wave = 2 * np.pi * base ** (2 * i / dims)
        low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
        high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
        if wave < high:
            factors.append(1.0)
        elif wave > low:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def _tensors(model):
    for name, (array, kind) in model.tensors.items():
        name = name.removesuffix(".weight")
        if name == "rope_freqs":
            continue
        if name.startswith("blk."):
            _, layer, part = name.split(".")
            if part in ("attn_q", "attn_k"):
                # The pairs of a head are rows 2 i and 2 i + 1 in GGUF, i and i + half here.
                heads = array.reshape(-1, model.head_dim // 2, 2, array.shape[1])
                array = np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(array.shape)
            name = f"model.layers.{layer}.{OF_LAYERS[part]}"
        else:
            name = NAMES[name]
        yield name + ".weight", gguf.store(array, kind)[0].tobytes(), DTYPES[kind], array.shape


def safetensors(tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, stored, dtype, shape in sorted(tensors, key=lambda t: t[2] != "F32"):  # wide ones first
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(stored)]}
        data += stored
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _config(model, rope, new):
    values = model.values
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
              "num_hidden_layers": model.layers, "hidden_size": values["llama.embedding_length"],
              "intermediate_size": values["llama.feed_forward_length"], "num_attention_heads": model.heads,
              "num_key_value_heads": model.heads_k, "head_dim": model.head_dim, "rms_norm_eps": 1e-5,
              "vocab_size": len(model.tokenizer.tokens), "attention_bias": False,
              "tie_word_embeddings": "output.weight" not in model.tensors}
    end = values["tokenizer.ggml.eos_token_id"]
    if new:
        return config | {"rope_parameters": {"rope_theta": 500.0, **(rope or {"rope_type": "default"})},
                         "eos_token_id": [end]}
    return config | {"rope_theta": 500.0, "rope_scaling": rope, "eos_token_id": end}


def _tokenizer(tokenizer):
    ids = {token: i for i, token in enumerate(tokenizer.tokens)}
    added = lambda first, last: [{"id": i, "content": tokenizer.tokens[i], "special": True}  # noqa: E731
                                 for i in range(first, last)]
    if isinstance(tokenizer, SentencePiece):
        pieces = tokenizer.tokens[259:]
        merges = [[p[:i], p[i:]] for p in pieces for i in range(1, len(p)) if p[:i] in ids and p[i:] in ids]
        blank = [{"type": "Prepend", "prepend": "\u2581"},
                 {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
        single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        return {"added_tokens": added(0, 3), "normalizer": {"type": "Sequence", "normalizers": blank},
                "pre_tokenizer": None, "post_processor": {"type": "TemplateProcessing", "single": single},
                "model": {"type": "BPE", "byte_fallback": True, "vocab": ids, "merges": merges}}
    n = len(ids)
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": tokenizer.pre != "llama-bpe"}
    before = {"gpt2": [], "smollm": [{"type": "Digits", "individual_digits": True}],
              "llama-bpe": [{"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}]}
    split = [*before[tokenizer.pre], bytes_of]
    return {"added_tokens": added(n - 2, n), "normalizer": None, "post_processor": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": split} if split[1:] else bytes_of,
            "model": {"type": "BPE", "merges": [" ".join(m) for m in tokenizer.merges],
                      "vocab": {token: i for token, i in ids.items() if i < n - 2}}}


def write(folder, model, *, rope=None, shards=1, new=False):
    """rope: rope_scaling of config.json. new: names of newer versions of transformers."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    tensors = list(_tensors(model))
    files = {"model.safetensors": tensors}
    if shards > 1:
        files = {f"model-{i + 1:05}-of-{shards:05}.safetensors": tensors[i::shards] for i in range(shards)}
        of = {t[0]: name for name, some in files.items() for t in some}
        index = {"metadata": {}, "weight_map": of}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, some in files.items():
        (folder / name).write_bytes(safetensors(some))
    (folder / "config.json").write_text(json.dumps(_config(model, rope, new)))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(model.tokenizer), ensure_ascii=new))
