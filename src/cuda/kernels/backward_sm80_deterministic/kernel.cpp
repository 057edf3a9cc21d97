#include "cuda/kernels/backward_sm80_deterministic/kernel.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/ceil_div.hpp"
#include "cuda/kernels/backward_launches.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

struct Shape {
  int head_dim;                  // up to this, of the larger of Q K's and V's
  int block_m, block_n, stages;  // 16 rows a warp
  int spill_bytes;               // accepted, at most, under any of tests/cuda/kernels_backward.txt
  std::string_view reason;
};

// A thread holds 16 rows / 32 threads of each gradient: half a head_dim of registers, and as much
// of S and dP as block_n. Shared memory is at most 99 KB, what the smallest of these GPUs gives to
// a block.
constexpr std::array kShapes{
    Shape{64, 128, 64, 2, 12, "16 rows a warp; 64 KB, two blocks of columns in flight"},
    Shape{128, 128, 32, 2, 88,
          "16 rows a warp: dK and dV take 128 registers, so 32 columns; 96 KB"},
    Shape{256, 64, 32, 1, 8, "16 rows a warp: one gradient takes 128 registers; 96 KB"},
};

constexpr int kMostOfBoth = 256;  // head_dim + head_dim_v of one launch of dK and dV: 128 registers

// BackwardSm80DeterministicLayout
std::int64_t shared_bytes(const BackwardFeatures& f, const Shape& s, Gradient gradient) {
  const auto row = [](int head_dim) { return core::ceil_div(std::int64_t{head_dim}, 16) * 32; };
  const std::int64_t row1 = row(f.head_dim), row2 = row(f.head_dim_v);
  const std::int64_t rows = s.block_m * (row1 + (gradient == Gradient::dv ? 0 : row2));
  return rows + std::int64_t{s.stages} * s.block_n * (row1 + row2);
}

}  // namespace

BackwardChoice choose_backward_sm80_deterministic(const BackwardRequest& request) {
  if (std::string why = tensor_core_obstacle(request.problem, request.tensors); !why.empty()) {
    return BackwardChoice::refused(std::move(why));
  }
  const BackwardFeatures& f = request.features;
  const int widest = std::max(f.head_dim, f.head_dim_v);
  const Shape& shape =
      *std::ranges::find_if(kShapes, [&](const Shape& row) { return widest <= row.head_dim; });
  return {.tiling = {.block_m = shape.block_m,
                     .block_n = shape.block_n,
                     .warps = shape.block_m / 16,
                     .stages = shape.stages,
                     .shared_bytes = shared_bytes(f, shape, request.gradient),
                     .reason = shape.reason,
                     .spill_bytes = shape.spill_bytes}};
}

std::vector<Gradient> backward_sm80_deterministic_launches(const Problem& p,
                                                           const AskedGradients& asked) {
  return launch_each(asked, p.head_dim + p.head_dim_v <= kMostOfBoth);
}

}  // namespace attn::cuda
