// A folder of Hugging Face in the names of GGUF: config.json and the tensors. The tokenizer is in
// hugging_face_tokenizer.cpp.
#include "hugging_face.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace generate {
namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// Of a tensor, "" of one that nobody needs.
std::string gguf_name(const std::string& name) {
  constexpr std::pair<const char*, const char*> kWhole[] = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"}};
  constexpr std::pair<const char*, const char*> kOfLayers[] = {
      {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.q_proj", "attn_q"},   {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},   {"self_attn.o_proj", "attn_output"},
      {"mlp.gate_proj", "ffn_gate"},    {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  for (const auto& [theirs, ours] : kWhole) {
    if (name == theirs) return ours;
  }
  const std::string layers = "model.layers.";
  const std::size_t end = name.find('.', layers.size());
  if (!name.starts_with(layers) || end == name.npos) return name;
  const std::string layer = name.substr(layers.size(), end - layers.size());
  const std::string part = name.substr(end + 1);
  if (part == "self_attn.rotary_emb.inv_freq") return "";  // old files have these frequencies
  for (const auto& [theirs, ours] : kOfLayers) {
    if (part == std::string(theirs) + ".weight") return "blk." + layer + "." + ours + ".weight";
  }
  return name;
}

// What frequencies are divided by in Llama 3.1 and later: those of long waves by `factor`, those of
// short ones by 1, and a mean between.
void add_llama3_factors(const Json& rope, double base, std::int64_t dims, ModelContents& to) {
  const double factor = number(rope, "factor"), low = number(rope, "low_freq_factor");
  const double high = number(rope, "high_freq_factor");
  const double context = number(rope, "original_max_position_embeddings");
  if (!(factor >= 1 && low > 0 && high > low && context > 0)) {
    fail("rope_scaling has factors " + std::to_string(factor) + ", " + std::to_string(low) +
         " and " + std::to_string(high) + "; accepted are at least 1, above 0, and a larger one");
  }
  const std::int64_t pairs = dims / 2;
  auto bytes = std::make_unique<std::byte[]>(static_cast<std::size_t>(pairs) * sizeof(float));
  auto* const divisors = reinterpret_cast<float*>(bytes.get());
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double wave = 2 * std::numbers::pi *
                        std::pow(base, 2 * static_cast<double>(i) / static_cast<double>(dims));
    const double smooth = std::clamp((context / wave - low) / (high - low), 0.0, 1.0);
    divisors[i] = static_cast<float>(1 / ((1 - smooth) / factor + smooth));
  }
  to.tensors["rope_freqs.weight"] = {"rope_freqs.weight", Storage::f32, {pairs}, bytes.get()};
  to.bytes.push_back(std::move(bytes));
}

void read_rope(const Json& config, std::int64_t dims, ModelContents& to) {
  // Newer files have all of it in rope_parameters.
  const char* const name = has(config, "rope_parameters") ? "rope_parameters" : "rope_scaling";
  const Json none = Json::object();
  const Json& rope = has(config, name) ? member(config, name) : none;
  const double base = number(has(rope, "rope_theta") ? rope : config, "rope_theta", 10000);
  to.values.insert_or_assign("llama.rope.freq_base", base);
  to.values.insert_or_assign("llama.rope.dimension_count", static_cast<double>(dims));
  to.values.insert_or_assign("llama.rope.halves", 1.0);
  const std::string type =
      has(rope, "rope_type") ? text(rope, "rope_type") : text(rope, "type", "default");
  if (type == "linear") {
    to.values.insert_or_assign("llama.rope.scaling.type", type);
    to.values.insert_or_assign("llama.rope.scaling.factor", number(rope, "factor"));
  } else if (type == "llama3") {
    add_llama3_factors(rope, base, dims, to);
  } else if (type != "default") {
    fail(std::string(name) + " has type " + type + "; accepted are default, linear and llama3");
  }
}

void read_config(const Json& config, ModelContents& to) {
  const std::string& type = text(config, "model_type");
  if (type != "llama") fail("model_type is " + type + "; accepted is llama");
  const std::string activation = text(config, "hidden_act", "silu");
  if (activation != "silu") fail("hidden_act is " + activation + "; accepted is silu");
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    if (flag(config, bias, false)) fail(std::string(bias) + " is true; accepted is false");
  }
  const auto size = [&](const char* key) {
    const std::int64_t x = integer_below(member(config, key), std::int64_t{1} << 31, key);
    if (x == 0) fail(std::string(key) + " is 0; accepted are integers from 1");
    return x;
  };
  const std::int64_t heads = size("num_attention_heads"), dim = size("hidden_size");
  const std::int64_t head_dim = has(config, "head_dim") ? size("head_dim") : dim / heads;
  to.values.insert_or_assign("general.architecture", "llama");
  for (const auto& [key, value] :
       {std::pair{"llama.block_count", size("num_hidden_layers")},
        std::pair{"llama.embedding_length", dim},
        std::pair{"llama.feed_forward_length", size("intermediate_size")},
        std::pair{"llama.attention.head_count", heads},
        std::pair{"llama.attention.head_count_kv",
                  has(config, "num_key_value_heads") ? size("num_key_value_heads") : heads},
        std::pair{"llama.attention.key_length", head_dim}}) {
    to.values.insert_or_assign(key, static_cast<double>(value));
  }
  to.values.insert_or_assign("llama.attention.layer_norm_rms_epsilon",
                             number(config, "rms_norm_eps", 1e-6));
  read_rope(config, head_dim, to);
}

}  // namespace

ModelContents read_hugging_face(const std::string& folder) {
  ModelContents stored = read_safetensors(folder), all;
  all.bytes = std::move(stored.bytes);
  for (auto& [theirs, tensor] : stored.tensors) {
    tensor.name = gguf_name(theirs);
    if (!tensor.name.empty()) all.tensors[tensor.name] = tensor;
  }
  const auto embedding = all.tensors.find("token_embd.weight");
  if (embedding == all.tensors.end()) fail("it has no tensor model.embed_tokens.weight");
  const std::int64_t vocabulary = embedding->second.shape[0];
  const std::filesystem::path in(folder);
  const Json config = read_json(in / "config.json");
  try {
    read_config(config, all);
    read_ends(config, vocabulary, all);
  } catch (const std::runtime_error& error) {
    fail(std::string("config.json: ") + error.what());
  }
  try {
    read_tokenizer(read_json(in / "tokenizer.json"), vocabulary, all);
  } catch (const std::runtime_error& error) {
    fail(std::string("tokenizer.json: ") + error.what());
  }
  return all;
}

}  // namespace generate
