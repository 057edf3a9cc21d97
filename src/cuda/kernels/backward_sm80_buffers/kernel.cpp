#include "cuda/kernels/backward_sm80_buffers/kernel.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/ceil_div.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

struct Shape {
  int head_dim;                  // up to this, of the larger of Q K's and V's
  int block_m, block_n, stages;  // 16 rows a warp
  int spill_bytes;               // accepted, at most, under any of tests/cuda/kernels_backward.txt
  std::string_view reason;
};

// A thread holds block_n / 2 numbers of S, of dP and of each gradient of elements; Q, dO, K and V
// of a tile come together.
constexpr std::array kShapes{
    Shape{64, 128, 64, 2, 0, "16 rows a warp; 96 KB, two tiles in flight"},
    Shape{128, 64, 64, 1, 56,
          "16 rows a warp; 64 KB, so that two blocks of threads share a multiprocessor and load "
          "beside each other's products; three would spill 400 bytes"},
    Shape{256, 64, 32, 1, 0, "as 128 with half of the keys; 96 KB"},
};

// BackwardSm80BuffersLayout
std::int64_t shared_bytes(const BackwardFeatures& f, const Shape& s) {
  const auto row = [](int head_dim) { return core::ceil_div(std::int64_t{head_dim}, 16) * 32; };
  return std::int64_t{s.stages} * (s.block_m + s.block_n) * (row(f.head_dim) + row(f.head_dim_v));
}

}  // namespace

BackwardChoice choose_backward_sm80_buffers(const BackwardRequest& request) {
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
                     .shared_bytes = shared_bytes(f, shape),
                     .reason = shape.reason,
                     .spill_bytes = shape.spill_bytes}};
}

}  // namespace attn::cuda
