// Inputs much like given ones, for measuring how far off standard attention may be.
#pragma once

#include <cstdint>

#include "attn/run.hpp"
#include "io/array.hpp"

namespace attn::command {

// Q, K, V and dO in memory of their own, each element a random part, 7/8 to 1, of the given one and
// rounded to its type; other tensors are the given ones. So zeros stay, nothing overflows, and
// scores stay about as large, but everything is rounded in another way. Example: of 1, 2, 3 one
// draw is 0.91, 1.98, 2.70.
class SimilarInputs {
 public:
  // Each `draw` is another one. What the tensors describe outlives the object.
  SimilarInputs(Inputs inputs, const OutputGradients& d_outputs, std::uint64_t draw);

  const Inputs& inputs() const noexcept { return inputs_; }
  const OutputGradients& d_outputs() const noexcept { return d_outputs_; }

 private:
  Inputs inputs_;
  OutputGradients d_outputs_;
  io::Array q_, k_, v_, prefix_k_, prefix_v_, d_o_;
};

}  // namespace attn::command
