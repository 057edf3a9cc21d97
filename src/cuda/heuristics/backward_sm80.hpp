// Tile shapes of backward_sm80, the portable backward kernel that adds dQ to memory.
#pragma once

#include <cstdint>
#include <string_view>

#include "attn/problem.hpp"
#include "cuda/heuristics/backward_config.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

struct BackwardSm80Shape {
  int head_dim;  // up to this, of the larger of Q K's and V's
  int queries, keys, warps, stages;
  int score_warps, key_warps, query_warps;  // BackwardConfig
  bool store_matrices;                      // on 9.0 and up
  int spill_bytes;  // accepted, at most, under any of tests/cuda/kernels_backward.txt
  std::string_view reason;
  int l2_megabytes = 20;  // of the heads whose tiles are dealt together
};

// The first row that holds the heads and fits the architecture; null where none does.
const BackwardSm80Shape* backward_sm80_shape(const Problem& problem, Arch arch);
// Sets the shape in a configuration whose features are set.
void set_backward_sm80(BackwardConfig& config, const Problem& problem,
                       const BackwardSm80Shape& shape);

}  // namespace attn::cuda
