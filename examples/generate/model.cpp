#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <stdexcept>

namespace generate {
namespace {

Config read_config(const ModelFile& file) {
  const std::string& name = file.text("general.architecture");
  if (name != "llama") {
    throw std::runtime_error("general.architecture is " + name + "; accepted is llama");
  }
  Config c{};
  c.layers = file.integer("llama.block_count", 1);
  c.dim = file.integer("llama.embedding_length", 1);
  c.dim_inner = file.integer("llama.feed_forward_length", 1);
  c.heads = file.integer("llama.attention.head_count", 1);
  const auto or_else = [&](const std::string& key, int otherwise) {
    return file.has(key) ? file.integer(key, 1) : otherwise;
  };
  c.heads_k = or_else("llama.attention.head_count_kv", c.heads);
  c.head_dim = or_else("llama.attention.key_length", c.dim / c.heads);
  c.rope_dims = or_else("llama.rope.dimension_count", c.head_dim);
  c.vocabulary = static_cast<int>(file.texts("tokenizer.ggml.tokens").size());
  // Files of GGUF have the rows of Q and K in another order, in which pairs are neighbours.
  c.rope_pairs =
      file.has("llama.rope.halves") ? attn::RopePairs::halves : attn::RopePairs::interleaved;
  c.epsilon = static_cast<float>(file.number("llama.attention.layer_norm_rms_epsilon"));
  if (c.heads % c.heads_k != 0 || c.head_dim < 1 || c.head_dim > attn::kMaxHeadDim ||
      c.rope_dims % 2 != 0 || c.rope_dims > c.head_dim ||
      or_else("llama.attention.value_length", c.head_dim) != c.head_dim) {
    throw std::runtime_error(
        "its " + std::to_string(c.heads) + " heads of " + std::to_string(c.head_dim) + ", " +
        std::to_string(c.heads_k) + " of keys, " + std::to_string(c.rope_dims) +
        " dimensions that rotate, do not go together; accepted are heads that those of keys "
        "divide, head sizes up to " +
        std::to_string(attn::kMaxHeadDim) +
        ", the same of keys and values, and an even number that rotate");
  }
  if (or_else("llama.expert_count", 1) != 1) {
    throw std::runtime_error("llama.expert_count is " +
                             std::to_string(or_else("llama.expert_count", 1)) + "; accepted is 1");
  }
  return c;
}

std::vector<float> read_vector(const StoredTensor& t) {
  std::vector<float> x(static_cast<std::size_t>(t.shape[0]));
  read_row(t, 0, x);
  return x;
}

std::vector<float> read_frequencies(ModelFile& file, const Config& c) {
  double factor = 1;
  if (file.has("llama.rope.scaling.type") && file.text("llama.rope.scaling.type") != "none") {
    if (file.text("llama.rope.scaling.type") != "linear") {
      throw std::runtime_error("llama.rope.scaling.type is " +
                               file.text("llama.rope.scaling.type") +
                               "; accepted are none and linear");
    }
    factor = file.number("llama.rope.scaling.factor");
  }
  const double base = file.number("llama.rope.freq_base", 10000);
  std::vector<float> of(static_cast<std::size_t>(c.rope_dims / 2)), divisors(of.size(), 1);
  if (file.has_tensor("rope_freqs.weight")) {
    divisors = read_vector(file.tensor("rope_freqs.weight", {c.rope_dims / 2}));
  }
  for (std::size_t i = 0; i < of.size(); ++i) {
    of[i] = static_cast<float>(std::pow(base, -2.0 * static_cast<double>(i) / c.rope_dims) /
                               (factor * double{divisors[i]}));
  }
  return of;
}

// RMSNorm (Zhang and Sennrich 2019) of each row.
void normalize(const std::vector<float>& x, const std::vector<float>& weight, float epsilon,
               std::vector<float>& y) {
  const std::size_t dim = weight.size();
  y.resize(x.size());
  for (std::size_t at = 0; at < x.size(); at += dim) {
    double sum = 0;
    for (std::size_t i = 0; i < dim; ++i) sum += double{x[at + i]} * double{x[at + i]};
    const auto scale =
        static_cast<float>(1 / std::sqrt(sum / static_cast<double>(dim) + double{epsilon}));
    for (std::size_t i = 0; i < dim; ++i) y[at + i] = x[at + i] * scale * weight[i];
  }
}

attn::Tensor matrix(const std::vector<float>& x, std::int64_t columns) {
  return attn::tensor(const_cast<float*>(x.data()), {std::ssize(x) / columns, columns});
}

}  // namespace

Linear::Linear(const StoredTensor& weight, std::optional<attn::DType> dtype) {
  const StorageInfo& has = info(weight.storage);
  const std::int64_t rows = weight.shape[0], columns = weight.shape[1];
  if (!dtype && has.format != attn::BlockFormat::none) {
    weight_ = attn::tensor(static_cast<const void*>(weight.data), attn::DType::u8,
                           {rows, attn::row_size(has.format, columns)});
    format_ = has.format;
    return;
  }
  const attn::DType type = dtype ? *dtype : attn::parse_dtype(has.name);
  if (attn::name(type) == has.name) {
    weight_ = attn::tensor(static_cast<const void*>(weight.data), type, {rows, columns});
    return;
  }
  stored_.resize(static_cast<std::size_t>(rows * columns) * attn::size_of(type));
  weight_ = attn::tensor(static_cast<void*>(stored_.data()), type, {rows, columns});
  const std::size_t bytes = static_cast<std::size_t>(columns) * attn::size_of(type);
  attn::default_executor()->parallel_for(rows, [&](std::int64_t row, int) {
    std::vector<float> wide(static_cast<std::size_t>(columns));
    read_row(weight, row, wide);
    void* to = stored_.data() + static_cast<std::size_t>(row) * bytes;
    attn::quantize(attn::tensor(wide.data(), {columns}), attn::parse_cache_type(attn::name(type)),
                   attn::tensor(to, type, {columns}));
  });
}

void Linear::set(const attn::Tensor& a, const attn::Tensor& c, attn::Activation activation) {
  run(describe(a, c, activation), a, c);
}

void Linear::add(const attn::Tensor& a, const attn::Tensor& c) {
  attn::MatmulProblem problem = describe(a, c, attn::Activation::none);
  problem.accumulate = true;
  run(problem, a, c);
}

attn::MatmulProblem Linear::describe(const attn::Tensor& a, const attn::Tensor& c,
                                     attn::Activation activation) const {
  attn::MatmulProblem problem =
      attn::describe({.a = a, .b = attn::transposed(weight_)}, c, activation);
  problem.format_b = format_;
  return problem;
}

void Linear::run(attn::MatmulProblem problem, const attn::Tensor& a, const attn::Tensor& c) {
  auto found = plans_.find(problem.m);
  if (found == plans_.end()) {
    if (plans_.size() == 64) plans_.clear();
    found = plans_.emplace(problem.m, attn::make_plan(problem)).first;
  }
  attn::matmul(found->second, {.a = a, .b = attn::transposed(weight_)}, c);
}

Model::Model(ModelFile& file, std::optional<attn::DType> weights) : config_(read_config(file)) {
  const Config& c = config_;
  const std::int64_t dim = c.dim, all = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t all_k = std::int64_t{c.heads_k} * c.head_dim;
  embedding_ = &file.tensor("token_embd.weight", {c.vocabulary, dim});
  norm_ = read_vector(file.tensor("output_norm.weight", {dim}));
  inv_freq_ = read_frequencies(file, c);
  const char* output = file.has_tensor("output.weight") ? "output.weight" : "token_embd.weight";
  output_ = Linear(file.tensor(output, {c.vocabulary, dim}), weights);
  for (int i = 0; i < c.layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    const auto linear = [&](const char* name, std::int64_t out, std::int64_t in) {
      return Linear(file.tensor(block + name + ".weight", {out, in}), weights);
    };
    Layer layer;
    layer.norm_attention = read_vector(file.tensor(block + "attn_norm.weight", {dim}));
    layer.norm_inner = read_vector(file.tensor(block + "ffn_norm.weight", {dim}));
    layer.q = linear("attn_q", all, dim);
    layer.k = linear("attn_k", all_k, dim);
    layer.v = linear("attn_v", all_k, dim);
    layer.o = linear("attn_output", dim, all);
    layer.gate = linear("ffn_gate", c.dim_inner, dim);
    layer.up = linear("ffn_up", c.dim_inner, dim);
    layer.down = linear("ffn_down", dim, c.dim_inner);
    layers_.push_back(std::move(layer));
  }
  for (const std::string& name : file.unused()) {
    throw std::runtime_error("tensor " + name + " is none of a Llama decoder's");
  }
}

attn::Tensor Model::inv_freq() const {
  return attn::tensor(inv_freq_.data(), {std::ssize(inv_freq_)});
}

Activations& Model::embed(const std::vector<std::int32_t>& tokens) {
  const Config& c = config_;
  Activations& x = activations_;
  const auto rows = static_cast<std::size_t>(tokens.size()), dim = std::size_t(c.dim);
  x.x.resize(rows * dim);
  for (std::size_t r = 0; r < rows; ++r) {
    read_row(*embedding_, tokens[r], std::span(x.x).subspan(r * dim, dim));
  }
  const auto make = [&](std::vector<float>& store, int heads) {
    store.resize(rows * std::size_t(heads) * std::size_t(c.head_dim));
    return attn::tensor(store.data(), {std::ssize(tokens), heads, c.head_dim});
  };
  x.q = make(x.store_q, c.heads);
  x.k = make(x.store_k, c.heads_k);
  x.v = make(x.store_v, c.heads_k);
  x.o = make(x.store_o, c.heads);
  return x;
}

void Model::project(int layer, Activations& x) {
  const Config& c = config_;
  Layer& l = layers_[static_cast<std::size_t>(layer)];
  normalize(x.x, l.norm_attention, c.epsilon, x.normed);
  const attn::Tensor in = matrix(x.normed, c.dim);
  l.q.set(in, matrix(x.store_q, std::int64_t{c.heads} * c.head_dim));
  l.k.set(in, matrix(x.store_k, std::int64_t{c.heads_k} * c.head_dim));
  l.v.set(in, matrix(x.store_v, std::int64_t{c.heads_k} * c.head_dim));
}

void Model::finish(int layer, Activations& x) {
  const Config& c = config_;
  Layer& l = layers_[static_cast<std::size_t>(layer)];
  l.o.add(matrix(x.store_o, std::int64_t{c.heads} * c.head_dim), matrix(x.x, c.dim));
  normalize(x.x, l.norm_inner, c.epsilon, x.normed);
  const attn::Tensor in = matrix(x.normed, c.dim);
  x.gate.resize(x.x.size() / std::size_t(c.dim) * std::size_t(c.dim_inner));
  x.up.resize(x.gate.size());
  l.gate.set(in, matrix(x.gate, c.dim_inner), attn::Activation::silu);
  l.up.set(in, matrix(x.up, c.dim_inner));
  for (std::size_t i = 0; i < x.up.size(); ++i) x.up[i] *= x.gate[i];
  l.down.add(matrix(x.up, c.dim_inner), matrix(x.x, c.dim));
}

const std::vector<float>& Model::logits(const Activations& x,
                                        const std::vector<std::int32_t>& rows) {
  std::vector<float> chosen;
  for (const std::int32_t row : rows) {
    const auto from = x.x.begin() + std::ptrdiff_t{row} * config_.dim;
    chosen.insert(chosen.end(), from, from + config_.dim);
  }
  normalize(chosen, norm_, config_.epsilon, last_);
  logits_.resize(rows.size() * static_cast<std::size_t>(config_.vocabulary));
  if (!rows.empty()) {
    output_.set(matrix(last_, std::ssize(last_) / std::ssize(rows)),
                matrix(logits_, config_.vocabulary));
  }
  return logits_;
}

}  // namespace generate
