// The layers of a Llama decoder without its attention: embedding, norms and products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "model_file.hpp"

namespace generate {

// C <- activation(A W^T), or C += A W^T, with the weights W [out, in] of a file.
class Linear {
 public:
  Linear() = default;
  // Weights are read where they lie in the file, and stored anew where `dtype` asks for another
  // type.
  Linear(const StoredTensor& weight, std::optional<attn::DType> dtype);

  // Rows a [rows, in] and c [rows, out]. Plans at the first call with as many rows.
  void set(const attn::Tensor& a, const attn::Tensor& c,
           attn::Activation activation = attn::Activation::none);
  void add(const attn::Tensor& a, const attn::Tensor& c);

 private:
  attn::MatmulProblem describe(const attn::Tensor& a, const attn::Tensor& c,
                               attn::Activation activation) const;
  void run(attn::MatmulProblem problem, const attn::Tensor& a, const attn::Tensor& c);

  std::vector<std::byte> stored_{};
  attn::Tensor weight_{};  // [out, in], or bytes of blocks in the place of in
  attn::BlockFormat format_ = attn::BlockFormat::none;
  std::map<std::int64_t, attn::MatmulPlan> plans_{};
};

struct Config {
  int layers, dim, heads, heads_k, head_dim, dim_inner, rope_dims, vocabulary;
  float epsilon;
  attn::RopePairs rope_pairs;
};

// Of the rows of a step. The tensors are f32: q and o [rows, heads, head_dim], k and v [rows,
// heads_k, head_dim].
struct Activations {
  std::vector<float> x{};  // [rows, dim], what layers add to
  std::vector<float> normed{}, gate{}, up{};
  std::vector<float> store_q{}, store_k{}, store_v{}, store_o{};
  attn::Tensor q{}, k{}, v{}, o{};
};

class Model {
 public:
  // Throws std::runtime_error, where the file is no such model, or has tensors that it lacks.
  // The file must outlive the model.
  Model(ModelFile& file, std::optional<attn::DType> weights);

  const Config& config() const { return config_; }
  // f32 [rope_dims / 2]: radians that pairs of Q and K turn by from position to position.
  attn::Tensor inv_freq() const;
  // What follows is valid until the next call.
  Activations& embed(const std::vector<std::int32_t>& tokens);
  void project(int layer, Activations& x);  // x.x to x.q, x.k, x.v
  void finish(int layer, Activations& x);   // x.o to x.x
  // [rows, vocabulary], of these rows.
  const std::vector<float>& logits(const Activations& x, const std::vector<std::int32_t>& rows);

 private:
  struct Layer {
    std::vector<float> norm_attention{}, norm_inner{};
    Linear q{}, k{}, v{}, o{}, gate{}, up{}, down{};
  };
  Config config_{};
  const StoredTensor* embedding_ = nullptr;
  std::vector<float> inv_freq_{}, norm_{};
  std::vector<Layer> layers_{};
  Linear output_{};
  Activations activations_{};
  std::vector<float> last_{}, logits_{};
};

}  // namespace generate
