#include "cuda/heuristics/backward_portable.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace attn::cuda {
namespace {

using device::Gradient;

struct Sm80Shape {
  int head_dim;                  // up to this, of the larger of Q K's and V's
  int block_m, block_n, stages;  // 16 rows a warp
  int spill_bytes;               // accepted, at most, under any of tests/cuda/kernels_backward.txt
  std::string_view reason;
};

// A thread holds 16 rows / 32 threads of each gradient: half a head_dim of registers, and as much
// of S and dP as block_n. Shared memory is at most 99 KB, what the smallest of these GPUs gives to
// a block.
constexpr std::array kSm80DeterministicShapes{
    Sm80Shape{64, 128, 64, 2, 12, "16 rows a warp; 64 KB, two blocks of columns in flight"},
    Sm80Shape{128, 128, 32, 2, 88,
              "16 rows a warp: dK and dV take 128 registers, so 32 columns; 96 KB"},
    Sm80Shape{256, 64, 32, 1, 8, "16 rows a warp: one gradient takes 128 registers; 96 KB"},
};

// A thread holds block_n / 2 numbers of S, of dP and of each gradient of elements; Q, dO, K and V
// of a tile come together.
constexpr std::array kSm80BuffersShapes{
    Sm80Shape{64, 128, 64, 2, 0, "16 rows a warp; 96 KB, two tiles in flight"},
    Sm80Shape{
        128, 64, 64, 1, 56,
        "16 rows a warp; 64 KB, so that two blocks of threads share a multiprocessor and load "
        "beside each other's products; three would spill 400 bytes"},
    Sm80Shape{256, 64, 32, 1, 0, "as 128 with half of the keys; 96 KB"},
};
constexpr int kMostOfBoth = 256;  // head_dim + head_dim_v: 128 registers

// A thread of backward_simt holds block_m / 8 rows of 4 of each 64 columns: at most 128 registers.
constexpr int kSimtRows = 64, kSimtRowsOfWide = 32, kSimtWide = 128, kSimtColumns = 64;
constexpr int kSimtWarps = 4;

void set_simt_shape(BackwardConfig& config) {
  const bool no_gradient = config.gradient == Gradient::buffers || config.gradient == Gradient::ds;
  const int width = config.gradient == Gradient::dv ? config.head_dim_v
                    : no_gradient                   ? 0
                                                    : config.head_dim;
  config.block_m = width > kSimtWide ? kSimtRowsOfWide : kSimtRows;
  config.block_n = kSimtColumns;
  config.warps = kSimtWarps;
  config.stages = 1;
  config.reason =
      "float32 arithmetic without tensor cores; each gradient has a pass of its own, so "
      "that nothing is added in memory";
}

}  // namespace

void set_backward_shape(BackwardConfig& config) {
  if (is_scalar(config.kernel)) return set_simt_shape(config);
  const int widest = std::max(config.head_dim, config.head_dim_v);
  const auto& shapes =
      config.kernel == BackwardKernel::sm80_buffers ? kSm80BuffersShapes : kSm80DeterministicShapes;
  const auto* shape =
      std::ranges::find_if(shapes, [&](const Sm80Shape& row) { return widest <= row.head_dim; });
  config.block_m = shape->block_m;
  config.block_n = shape->block_n;
  config.warps = shape->block_m / 16;
  config.stages = shape->stages;
  config.reason = shape->reason;
  config.allowed_spill_bytes = shape->spill_bytes;
}

bool holds_dk_and_dv(BackwardKernel kernel, const Problem& p) {
  return kernel == BackwardKernel::sm80_deterministic && p.head_dim + p.head_dim_v <= kMostOfBoth;
}

}  // namespace attn::cuda
