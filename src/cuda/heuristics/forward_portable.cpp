#include "cuda/heuristics/forward_portable.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "cuda/heuristics/forward_tiles.hpp"

namespace attn::cuda {
namespace {

struct Sm80Shape {
  int head_dim;  // up to this, of the larger of Q K's and V's
  int block_m, block_n, warps, stages;
  int spill_bytes;  // accepted, at most, under any of tests/cuda/kernels.txt
  std::string_view reason;
};

// Registers of a thread hold O (block_m / warps * head_dim_v / 32), S likewise over block_n, and
// operands: 160 of both leave enough for any mask and score and dropout. Shared memory is at most
// 99 KB, what the smallest of these GPUs gives to a block.
constexpr std::array kSm80Shapes{
    Sm80Shape{64, 128, 64, 4, 2, 0,
              "32 rows a warp halve the traffic of K and V; 48 KB, two blocks of "
              "threads a multiprocessor"},
    Sm80Shape{96, 128, 32, 4, 2, 0,
              "32 rows a warp; 64 keys would take 160 registers and dropout does "
              "not fit beside them; 48 KB"},
    Sm80Shape{128, 128, 32, 4, 2, 24, "32 rows a warp, so 32 keys: O takes 128 registers; 64 KB"},
    Sm80Shape{192, 128, 64, 8, 1, 0, "16 rows a warp: O takes 96 registers; 96 KB"},
    Sm80Shape{256, 64, 64, 4, 1, 8,
              "16 rows a warp: O takes 128 registers; 96 KB; on an H200 a quarter faster than "
              "128 rows x 32 keys, as two blocks of threads share a multiprocessor"},
};
// Shapes for up to 64 rows of Q, as in decoding: these wait for K and V, so more bytes are in
// flight.
constexpr int kFewRows = 64;
constexpr std::array kSm80FewRowsShapes{
    Sm80Shape{128, kFewRows, 64, 4, 2, 0, "few rows; 80 KB, two tiles of K and V in flight"},
    Sm80Shape{256, kFewRows, 64, 4, 1, 0, "few rows; 96 KB"},
};

std::span<const Sm80Shape> sm80_shapes(const Problem& p) {
  if (p.seqlen_q * (p.heads_q / p.heads_k) <= kFewRows) return kSm80FewRowsShapes;
  return kSm80Shapes;
}

constexpr int kSimtThreads = 128, kSimtBlockN = 64;

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
    const auto shapes = sm80_shapes(p);
    const auto shape = std::find_if(shapes.begin(), shapes.end(),
                                    [&](const Sm80Shape& s) { return widest <= s.head_dim; });
    if (shape == shapes.end()) return false;
    config.block_m = shape->block_m;
    config.block_n = shape->block_n;
    config.warps = shape->warps;
    config.stages = shape->stages;
    config.reason = shape->reason;
    config.allowed_spill_bytes = shape->spill_bytes;
  }
  config.group = packed_group(p, config.block_m, config.block_m);
  return true;
}

}  // namespace attn::cuda
