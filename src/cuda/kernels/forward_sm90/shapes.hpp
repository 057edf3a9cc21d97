// Tile shapes of the Hopper forward kernel: data with a reason beside each row.
#pragma once

#include <span>
#include <string_view>

#include "cuda/kernels/condition.hpp"

namespace attn::cuda {

struct ForwardSm90Shape {
  int head_dim;  // up to this, of the larger of Q K's and V's
  Condition when;
  int warpgroups;  // that compute, 64 rows each
  int block_n;
  int stages_k, stages_v, stages_q;
  bool take_turns;
  bool drops_by_product;  // dropout: a multiplication takes half the clocks of an `and`
  int producer_registers, consumer_registers;
  int spill_bytes;  // accepted, at most, under any of tests/cuda/kernels.txt
  std::string_view reason;
  int transposers = 0;  // of 8-bit floats: warps that transpose V in shared memory; 0: a kernel
                        // ahead
};

// Registers that a block of threads is launched with, of one thread of each warpgroup together: a
// thread gets a multiple of 8. Who asks setmaxnreg for more than the others gave back waits for
// ever. Example: three warpgroups get 168 each, 504; 32 for the producer leave 236 for each of two
// consumers, so 232.
constexpr int warpgroup_registers(int consumers) {
  return 65536 / (128 * (consumers + 1)) / 8 * 8 * (consumers + 1);
}

// Bytes that the warps of the producer's warpgroup spill beside, where one of them looks at stored
// tiles (device/kernels/forward_sm90/follower.cuh): they wait most of their time, and no loop with
// products has any of these. The most is loaded where a tile's keys lie in pages: 252 bytes under
// b4_sq16_sk4096_hq8_hk2_d64_paged16_causal_bf16, of which 52 are in the row of its shape.
inline constexpr int kForwardSm90FollowerSpills = 200;

// `shape` with the parts that `text` names: wg<warpgroups> n<keys> s<stages of K and V>
// k<stages of K> q<stages of Q> p<registers of the producer> turns noturns, with float8 (the
// shape is of forward_sm90_float8) also ahead and within. Consumers get the registers that are
// left. Throws Error(invalid_argument) naming the part and what is accepted.
ForwardSm90Shape with_parts(ForwardSm90Shape shape, std::string_view text, bool float8 = false);

// Shapes in order: a problem gets the first that its head size fits and whose `when` holds.
std::span<const ForwardSm90Shape> forward_sm90_shapes();

}  // namespace attn::cuda
