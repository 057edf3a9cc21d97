#include "cuda/heuristics/backward_sm90_buffers.hpp"

#include <algorithm>
#include <array>

namespace attn::cuda {
namespace {

// A tile of 128 x 128 of shorter sequences would be empty for the most part.
constexpr std::int64_t kLeastLength = 96;

// Bytes of spills that are accepted: those of the producer, which is ahead of all others, and,
// where a thread keeps the bias, six words that it loads at the start of a step.
constexpr int kSpills = 48;

// Bounds: 227 KB of shared memory = places x (queries + keys) x 2 bytes x columns, rounded up to
// 64; of registers a launch gives each thread 168 where there are two score groups, 128 where there
// are three, and what the producer leaves of its own is theirs: 40 + 2 x 232 = 3 x 168. A thread
// holds keys / 2 sums, and part_keys / 2 of S and of dP.
constexpr std::array kShapes{
    BackwardSm90BuffersShape{
        64, 128, 128, 64, 6, 40, 232, kSpills,
        "as 128, with operands of three steps in flight; 192 KB; three warpgroups of 160 registers "
        "would spill 160 bytes in their loop"},
    BackwardSm90BuffersShape{
        128, 128, 128, 64, 3, 40, 232, kSpills,
        "two warpgroups of 64 x 128; operands of a step and a half are in flight; 192 KB; two "
        "blocks of threads that share Q and dO: 2 to 8 % slower passes"},
};

}  // namespace

const BackwardSm90BuffersShape* backward_sm90_buffers_shape(const Problem& p) {
  if (std::min(p.seqlen_q, p.seqlen_k) < kLeastLength || p.batch == 0) return nullptr;
  const std::int64_t widest = std::max(p.head_dim, p.head_dim_v);
  const auto* const row =
      std::ranges::find_if(kShapes, [&](const auto& shape) { return widest <= shape.head_dim; });
  return row == kShapes.end() ? nullptr : row;
}

void set_backward_sm90_buffers(BackwardConfig& config, const BackwardSm90BuffersShape& shape) {
  constexpr int kGroupRows = 64, kGroupWarps = 4;
  config.block_m = shape.queries;
  config.block_n = shape.keys;
  config.part_keys = shape.part_keys;
  config.warps = kGroupWarps * (1 + shape.queries / kGroupRows);
  config.stages = shape.stages;
  config.producer_registers = shape.producer_registers;
  config.score_registers = shape.score_registers;
  config.reason = shape.reason;
  config.allowed_spill_bytes = shape.spill_bytes;
}

}  // namespace attn::cuda
