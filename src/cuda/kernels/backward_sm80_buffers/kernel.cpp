#include "cuda/kernels/backward_sm80_buffers/kernel.hpp"

#include <array>
#include <utility>

#include "cuda/kernels/backward_warp_rows.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

// A thread holds block_n / 2 numbers of S, of dP and of each gradient of elements; Q, dO, K and V
// of a tile come together.
constexpr std::array kShapes{
    WarpRowsShape{64, 128, 64, 2, 0, "16 rows a warp; 96 KB, two tiles in flight"},
    WarpRowsShape{
        128, 64, 64, 1, 56,
        "16 rows a warp; 64 KB, so that two blocks of threads share a multiprocessor and load "
        "beside each other's products; three would spill 400 bytes"},
    WarpRowsShape{256, 64, 32, 1, 0, "as 128 with half of the keys; 96 KB"},
};

// BackwardSm80BuffersLayout
std::int64_t shared_bytes(const BackwardFeatures& f, const WarpRowsShape& s) {
  return std::int64_t{s.stages} * (s.block_m + s.block_n) *
         (warp_rows_row_bytes(f.head_dim) + warp_rows_row_bytes(f.head_dim_v));
}

}  // namespace

BackwardChoice choose_backward_sm80_buffers(const BackwardRequest& request) {
  if (std::string why = tensor_core_obstacle(request.problem, request.tensors); !why.empty()) {
    return BackwardChoice::refused(std::move(why));
  }
  const BackwardFeatures& f = request.features;
  const WarpRowsShape& shape = warp_rows_shape(kShapes, f);
  return {.tiling = warp_rows_tiling(shape, shared_bytes(f, shape))};
}

}  // namespace attn::cuda
