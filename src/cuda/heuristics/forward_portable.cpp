#include "cuda/heuristics/forward_portable.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace attn::cuda {
namespace {

struct Sm80Shape {
  int head_dim;  // up to this, of the larger of Q K's and V's
  int block_m, block_n, warps, stages;
  bool q_in_registers;
  std::string_view reason;
};

// Registers of a thread hold O (block_m / warps * head_dim_v / 32), S likewise over block_n, and
// operands; shared memory is at most 99 KB, what the smallest of these GPUs gives to a block.
constexpr std::array<Sm80Shape, 5> kSm80Shapes{{
    {64, 128, 64, 4, 2, false, "two blocks of threads a multiprocessor, 32 rows a warp"},
    {96, 128, 64, 4, 1, false, "one stage: 32 rows a warp leave no room for two in 99 KB twice"},
    {128, 128, 64, 4, 1, false, "32 rows a warp halve the traffic of K and V; 64 KB, two blocks of "
                                "threads a multiprocessor"},
    {192, 128, 32, 8, 1, false, "16 rows a warp: O takes 96 registers"},
    {256, 128, 32, 8, 1, false, "16 rows a warp: O takes 128 registers; 96 KB"},
}};

constexpr int kSimtThreads = 128, kSimtBlockN = 64, kSimtPiece = 64, kSimtPad = 4;

}  // namespace

bool shape_portable(ForwardConfig& config, const Problem& p, Arch) {
  const auto widest = static_cast<int>(std::max(p.head_dim, p.head_dim_v));
  if (config.kernel == ForwardKernel::simt) {
    config.block_m = widest > 128 ? 32 : 64;
    config.block_n = kSimtBlockN;
    config.warps = kSimtThreads / 32;
    config.stages = 1;
    config.reason = "float32 arithmetic without tensor cores";
  } else {
    const auto* shape = std::find_if(kSm80Shapes.begin(), kSm80Shapes.end(),
                                     [&](const Sm80Shape& s) { return widest <= s.head_dim; });
    if (shape == kSm80Shapes.end()) return false;
    config.block_m = shape->block_m;
    config.block_n = shape->block_n;
    config.warps = shape->warps;
    config.stages = shape->stages;
    config.q_in_registers = shape->q_in_registers;
    config.reason = shape->reason;
  }
  config.group = packed_group(p, config.block_m, config.block_m);
  return true;
}

std::int64_t forward_portable_shared_bytes(const ForwardConfig& c) noexcept {
  if (c.kernel == ForwardKernel::simt) {  // ForwardSimtLayout
    const std::int64_t rows = c.block_m + kSimtPad, slots = c.block_n + kSimtPad;
    return 4 * (c.head_dim * rows + c.block_n * rows + kSimtPiece * slots);
  }
  // ForwardSm80Layout: rows of whole steps of 16 columns.
  const std::int64_t row_k = (c.head_dim + 15) / 16 * 32, row_v = (c.head_dim_v + 15) / 16 * 32;
  return c.block_m * row_k + std::int64_t{c.stages} * c.block_n * (row_k + row_v);
}

}  // namespace attn::cuda
