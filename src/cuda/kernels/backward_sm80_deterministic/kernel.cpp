#include "cuda/kernels/backward_sm80_deterministic/kernel.hpp"

#include <array>
#include <utility>

#include "cuda/kernels/backward_launches.hpp"
#include "cuda/kernels/backward_warp_rows.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

// A thread holds 16 rows / 32 threads of each gradient: half a head_dim of registers, and as much
// of S and dP as block_n. Shared memory is at most 99 KB, what the smallest of these GPUs gives to
// a block.
constexpr std::array kShapes{
    WarpRowsShape{64, 128, 64, 2, 12, "16 rows a warp; 64 KB, two blocks of columns in flight"},
    WarpRowsShape{128, 128, 32, 2, 88,
                  "16 rows a warp: dK and dV take 128 registers, so 32 columns; 96 KB"},
    WarpRowsShape{256, 64, 32, 1, 8, "16 rows a warp: one gradient takes 128 registers; 96 KB"},
};

constexpr int kMostOfBoth = 256;  // head_dim + head_dim_v of one launch of dK and dV: 128 registers

// BackwardSm80DeterministicLayout
std::int64_t shared_bytes(const BackwardFeatures& f, const WarpRowsShape& s, Gradient gradient) {
  const std::int64_t row1 = warp_rows_row_bytes(f.head_dim),
                     row2 = warp_rows_row_bytes(f.head_dim_v);
  const std::int64_t rows = s.block_m * (row1 + (gradient == Gradient::dv ? 0 : row2));
  return rows + std::int64_t{s.stages} * s.block_n * (row1 + row2);
}

}  // namespace

BackwardChoice choose_backward_sm80_deterministic(const BackwardRequest& request) {
  if (std::string why = tensor_core_obstacle(request.problem, request.tensors); !why.empty()) {
    return BackwardChoice::refused(std::move(why));
  }
  const BackwardFeatures& f = request.features;
  const WarpRowsShape& shape = warp_rows_shape(kShapes, f);
  return {.tiling = warp_rows_tiling(shape, shared_bytes(f, shape, request.gradient))};
}

std::vector<Gradient> backward_sm80_deterministic_launches(const Problem& p,
                                                           const AskedGradients& asked) {
  return launch_each(asked, p.head_dim + p.head_dim_v <= kMostOfBoth);
}

}  // namespace attn::cuda
