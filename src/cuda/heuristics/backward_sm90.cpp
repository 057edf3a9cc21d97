#include "cuda/heuristics/backward_sm90.hpp"

#include <algorithm>
#include <array>

#include "core/tensor/size.hpp"

namespace attn::cuda {
namespace {

constexpr int kQueries = 64;       // rows of one product of a warpgroup
constexpr int kWarps = 16;         // producers, scores, dV, dK
constexpr int kPartColumns = 128;  // of dQ, of one product

// Bytes of spills that are accepted: those of the thread that makes steps, which is ahead of all
// others, and of two kinds of loops with products, the scores of pairs (140 bytes stored in all,
// 220 with ALiBi and dropout) and, with dropout, dV and dK at head size 128. The most is loaded
// with dQ in order.
constexpr int kStepSpills = 508;

// Where tiles take turns though nobody asks for it: up to so many tiles of keys, dense, without
// dropout, and from so many tiles in all on, with which the multiprocessors of an H200 are filled
// 15 times. A pass in order writes and reads 8 bytes an element of dQ less, which is more there
// than turns cost: 1 to 6 % at n 512, nothing at 1024 (bench/results/h200-backward-builds.txt).
// With dropout, score warpgroups would draw its bits. Sequences of other lengths may have fewer
// tiles than are counted.
constexpr std::int64_t kFewKeyTiles = 4, kManyTiles = 2048;

}  // namespace

// Bounds: 227 KB of shared memory = K, V (keys x head_dim), Q, dO, P, dS in their rings and one dQ
// of up to 128 columns in float32; 512 registers = producers + scores + 2 gradients, in multiples
// of 8. The assembler wants 24 registers beside the accumulators of products in flight, else it
// serialises them: a gradient thread holds keys * head_dim / 128 sums, a score thread S and dP, and
// dQ with dS as its operand.
std::span<const BackwardSm90Shape> backward_sm90_shapes() {
  static constexpr std::array<BackwardSm90Shape, 5> kShapes{{
      {64, 128, 2, 4, 4, 2, 24, 160, 168, kStepSpills,
       "two warpgroups for scores, which set the time, and one for dV and dK, 64 registers each; "
       "four places for Q and dO; 196 KB; 32 columns a piece of dQ: 1 % slower",
       64, 2},
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
  return kShapes;
}

bool is_faster_in_order(const BackwardConfig& c, const Problem& p, const BackwardSm90Shape& shape) {
  if (c.packed_q || c.packed_k || c.used_q || c.used_k || c.dropout) return false;
  const core::Size tiles = core::divide_up(p.seqlen_k, shape.keys) * p.heads_k * p.batch;
  return p.seqlen_k <= kFewKeyTiles * shape.keys && tiles * shape.cluster >= kManyTiles;
}

bool may_share_tiles(const Problem& p) { return p.head_dim == 256 && p.head_dim_v == 256; }

const BackwardSm90Shape* backward_sm90_shape(const Problem& p) {
  const std::int64_t widest = std::max(p.head_dim, p.head_dim_v);
  for (const BackwardSm90Shape& row : backward_sm90_shapes()) {
    if (widest > row.head_dim || (row.cluster > 1 && !may_share_tiles(p))) continue;
    return &row;
  }
  return nullptr;
}

void set_backward_sm90(BackwardConfig& config, const Problem& p, const BackwardSm90Shape& shape) {
  config.block_m = shape.keys;
  config.block_n = kQueries;
  config.warps = kWarps;
  config.score_groups = shape.score_groups;
  config.cluster = shape.cluster;
  config.l2_megabytes = shape.l2_megabytes;
  config.stages = shape.stages_q;
  config.stages_o = shape.stages_o;
  config.stages_p = shape.stages_p;
  // A turn is of one piece (schedule/dq_turns.cuh), or of all that one of a pair adds in a step.
  const bool whole = config.ordered && shape.cluster == 1;
  config.piece_columns = whole ? kPartColumns : shape.piece_columns;
  config.stages_dq = whole ? shape.score_groups : shape.stages_dq;
  config.producer_registers = shape.producer_registers;
  config.score_registers = shape.score_registers;
  config.gradient_registers = shape.gradient_registers;
  config.reason = shape.reason;
  config.allowed_spill_bytes = shape.spill_bytes;
  config.longest_first = !p.mask.empty();
  config.mask_heads = expr::depends_on(p.mask, expr::Op::head);
  config.mask_batches = expr::depends_on(p.mask, expr::Op::batch) || config.packed_q ||
                        config.packed_k || config.used_q || config.used_k;
}

}  // namespace attn::cuda
