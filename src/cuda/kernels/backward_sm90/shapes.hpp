// Tile shapes of the Hopper backward kernel: data with a reason beside each row.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "attn/problem.hpp"
#include "cuda/kernels/condition.hpp"

namespace attn::cuda {

struct BackwardSm90Shape {
  int head_dim;      // up to this, of the larger of Q K's and V's
  int keys;          // of a tile
  int score_groups;  // 1 or 2; 2 where one warpgroup keeps dV and dK: at most 128 sums a thread,
                     // so up to 64 columns, or 128 with 64 keys
  int stages_q, stages_o, stages_p;
  int producer_registers, score_registers, gradient_registers;
  int spill_bytes;  // accepted, at most, under any of tests/cuda/kernels_backward.txt
  std::string_view reason;
  int piece_columns, stages_dq;  // of the pieces in which dQ is staged; places for them
  int l2_megabytes = 20;         // of Q, dO and dQ of the heads whose tiles are dealt together
  int cluster = 1;               // blocks of threads that share a tile, 1 or 2
  Condition when = Condition::always;
};

// The shape that a problem gets: the first that is wide enough, whose tiles its heads may share,
// and whose `when` holds. Heads have up to 256 columns.
const BackwardSm90Shape& backward_sm90_shape(const Problem& problem);

// `shape` with the parts that `text` names: b<blocks of threads of a tile> c<score warpgroups>
// n<keys> q<places of Q> o<places of dO> p<places of P and of dS> w<columns of a staged piece of
// dQ> g<places of these> r<registers of a producer> x<of a score thread> l<megabytes of the heads
// whose tiles are dealt together>. Gradient threads get the registers that are left. Throws
// Error(invalid_argument) naming the part and what is accepted.
BackwardSm90Shape with_parts(BackwardSm90Shape shape, std::string_view text);

// Why a shape cannot run with the heads of a problem; empty where it can.
std::string obstacle_of(const BackwardSm90Shape& shape, const Problem& problem);

}  // namespace attn::cuda
