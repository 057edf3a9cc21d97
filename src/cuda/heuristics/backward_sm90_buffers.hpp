// Tile shapes of the Hopper kernel of a bias's gradient: data with a reason beside each row.
#pragma once

#include <string_view>

#include "attn/problem.hpp"
#include "cuda/heuristics/backward_config.hpp"

namespace attn::cuda {

struct BackwardSm90BuffersShape {
  int head_dim;       // up to this, of the larger of Q K's and V's
  int queries, keys;  // of a tile; 64 queries for each score warpgroup
  int part_keys;      // keys whose S and dP a thread holds at a time
  int stages;         // places for two operands of a product
  int producer_registers, score_registers;
  int spill_bytes;  // accepted, at most, under any of tests/cuda/kernels_backward*.txt
  std::string_view reason;
};

// The shape that a problem gets; null where backward_sm80_buffers is to take it.
const BackwardSm90BuffersShape* backward_sm90_buffers_shape(const Problem& problem);
// Sets a shape in a configuration of backward_sm90_buffers.
void set_backward_sm90_buffers(BackwardConfig& config, const BackwardSm90BuffersShape& shape);

}  // namespace attn::cuda
