#include "cuda/kernels/backward_sm90/shapes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace attn::cuda {
namespace {

// Bytes of spills that are accepted: those of the thread that makes steps, which is ahead of all
// others, and of two kinds of loops with products, the scores of pairs (140 bytes stored in all,
// 220 with ALiBi and dropout) and, with dropout, dV and dK at head size 128. The most is loaded
// with dQ in order.
constexpr int kStepSpills = 508;

// Whether two blocks of threads may share a tile.
bool may_share_tiles(const Problem& p) { return p.head_dim == 256 && p.head_dim_v == 256; }

}  // namespace

// Bounds: 227 KB of shared memory = K, V (keys x head_dim), Q, dO, P, dS in their rings and one dQ
// of up to 128 columns in float32; 512 registers = producers + scores + 2 gradients, or with two
// warpgroups for scores producers + 2 scores + gradients, in multiples of 8. The assembler wants 24
// registers beside the accumulators of products in flight, else it serialises them: a gradient
// thread holds keys * head_dim / 128 sums, of both gradients where it keeps both, a score thread S
// and dP, and dQ with dS as its operand.
const BackwardSm90Shape& backward_sm90_shape(const Problem& p) {
  static constexpr std::array<BackwardSm90Shape, 7> kShapes{{
      {64, 64, 2, 4, 4, 2, 24, 160, 168, kStepSpills,
       "64 keys: the mask leaves out blocks of so many, and tiles of 128 would see half of what "
       "they compute, element by element; 4.4 times their speed with an eighth of the blocks at "
       "random",
       64, 2, 20, 1, Condition::key_blocks_of_64},
      {64, 128, 2, 4, 4, 2, 24, 160, 168, kStepSpills,
       "two warpgroups for scores, which set the time, and one for dV and dK, 64 registers each; "
       "four places for Q and dO; 196 KB; 32 columns a piece of dQ: 1 % slower",
       64, 2},
      {128, 64, 2, 4, 2, 2, 24, 160, 168, kStepSpills,
       "64 keys: the mask leaves out blocks of so many; two warpgroups for scores, four places for "
       "Q and two for dO: 0.79 of dense speed with an eighth of the blocks, where one warpgroup "
       "and three places had 0.69",
       128, 2, 20, 1, Condition::key_blocks_of_64},
      {96, 128, 1, 2, 2, 2, 40, 184, 144, kStepSpills,
       "as 128; dV and dK take 96 registers; 209 KB; not timed yet", 128, 1},
      {128, 128, 1, 2, 2, 2, 24, 168, 160, kStepSpills,
       "S once; scores, dV and dK have a warpgroup each; 225 KB; four pieces of 32 columns of dQ: "
       "1 to 10 % slower, a third place for Q instead of half of dQ's place: 18 %",
       128, 1},
      {256, 128, 1, 2, 1, 1, 24, 168, 160, kStepSpills,
       "two blocks of threads share 128 keys, so that each adds half of dQ; 224 KB; 1.2 times the "
       "next row; two places of dQ: 3 % slower",
       32, 3, 20, 2},
      {256, 64, 1, 2, 1, 2, 40, 152, 160, kStepSpills,
       "64 keys: dV and dK take 128 registers, and dQ comes in parts of 128 columns; 225 KB; "
       "pieces of 32 or 64 columns of dQ: 2 to 5 % slower; two places for dO, one for P and dS: 16 "
       "%",
       128, 1},
  }};
  const std::int64_t widest = std::max(p.head_dim, p.head_dim_v);
  return *std::ranges::find_if(kShapes, [&](const BackwardSm90Shape& row) {
    return widest <= row.head_dim && (row.cluster == 1 || may_share_tiles(p)) && holds(row.when, p);
  });
}

std::string obstacle_of(const BackwardSm90Shape& shape, const Problem& p) {
  const std::int64_t widest = std::max(p.head_dim, p.head_dim_v);
  constexpr int kLeastRegisters = 24;
  if (shape.gradient_registers < kLeastRegisters) {
    return fmt::format("the shape leaves {} registers for dV and dK; accepted are at least {}",
                       shape.gradient_registers, kLeastRegisters);
  }
  const std::int64_t most_of_two = shape.keys == 64 ? 128 : 64;  // columns, for 128 sums a thread
  if (shape.score_groups == 2 && (widest > most_of_two || shape.stages_q % 2 != 0 ||
                                  shape.stages_o % 2 != 0 || shape.stages_p != 2)) {
    return fmt::format(
        "the shape has c2_n{}_q{}_o{}_p{} and heads of {} columns; accepted with c2 are "
        "q2, q4, o2, o4, p2 and up to 64 columns, or 128 with n64",
        shape.keys, shape.stages_q, shape.stages_o, shape.stages_p, widest);
  }
  const std::int64_t pieces = (widest + shape.piece_columns - 1) / shape.piece_columns;
  if (shape.score_groups == 2 && shape.stages_dq < 2 * pieces) {
    return fmt::format(
        "the shape has c2_w{}_g{} and heads of {} columns; accepted with c2 are at least g{}",
        shape.piece_columns, shape.stages_dq, widest, 2 * pieces);
  }
  if (shape.keys / shape.cluster == 128 && widest > 128) {
    return fmt::format("the shape has n128 and heads of {} columns; accepted there is n64", widest);
  }
  if (shape.cluster > 1 && (shape.keys != 128 || shape.score_groups != 1 || !may_share_tiles(p))) {
    return fmt::format(
        "the shape has b{}_n{}_c{}, head_dim is {} and head_dim_v {}; accepted with b2 are n128, "
        "c1, 256 and 256",
        shape.cluster, shape.keys, shape.score_groups, p.head_dim, p.head_dim_v);
  }
  return {};
}

}  // namespace attn::cuda
