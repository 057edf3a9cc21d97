// Tile shapes of the Hopper backward kernel: data with a reason beside each row.
#pragma once

#include <span>
#include <string_view>

#include "attn/problem.hpp"
#include "cuda/heuristics/backward_config.hpp"

namespace attn::cuda {

struct BackwardSm90Shape {
  int head_dim;      // up to this, of the larger of Q K's and V's
  int keys;          // of a tile
  int score_groups;  // 1 or 2; 2 where dV and dK fit into one warpgroup: up to 64 columns
  int stages_q, stages_o, stages_p;
  int producer_registers, score_registers, gradient_registers;
  int spill_bytes;  // accepted, at most, under any of tests/cuda/kernels_backward.txt
  std::string_view reason;
  int piece_columns, stages_dq;  // of the pieces in which dQ is staged; places for them
  int l2_megabytes = 20;         // of Q, dO and dQ of the heads whose tiles are dealt together
  int cluster = 1;               // blocks of threads that share a tile, 1 or 2
};

// Whether two blocks of threads may share a tile.
bool may_share_tiles(const Problem& problem);
// Shapes in order of head_dim: a problem gets the first that is wide enough and that it may have
// (may_share_tiles).
std::span<const BackwardSm90Shape> backward_sm90_shapes();
// The shape that a problem gets; null where there is none.
const BackwardSm90Shape* backward_sm90_shape(const Problem& problem);

// Whether tiles of a shape take turns to add to dQ though nobody asks for it, as that is faster.
// Reads of config: packed_q, packed_k, used_q, used_k, dropout.
bool is_faster_in_order(const BackwardConfig& config, const Problem& problem,
                        const BackwardSm90Shape& shape);

// Sets a shape and the features of backward_sm90 in a configuration.
void set_backward_sm90(BackwardConfig& config, const Problem& problem,
                       const BackwardSm90Shape& shape);

}  // namespace attn::cuda
