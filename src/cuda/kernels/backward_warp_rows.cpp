#include "cuda/kernels/backward_warp_rows.hpp"

#include <algorithm>

#include "core/ceil_div.hpp"

namespace attn::cuda {

const WarpRowsShape& warp_rows_shape(std::span<const WarpRowsShape> shapes,
                                     const BackwardFeatures& f) {
  const int widest = std::max(f.head_dim, f.head_dim_v);
  return *std::ranges::find_if(
      shapes, [&](const WarpRowsShape& shape) { return widest <= shape.head_dim; });
}

BackwardTiling warp_rows_tiling(const WarpRowsShape& shape, std::int64_t shared_bytes) {
  return {.block_m = shape.block_m,
          .block_n = shape.block_n,
          .warps = shape.block_m / 16,
          .stages = shape.stages,
          .shared_bytes = shared_bytes,
          .reason = shape.reason,
          .spill_bytes = shape.spill_bytes};
}

std::int64_t warp_rows_row_bytes(int head_dim) { return core::ceil_div(head_dim, 16) * 32; }

}  // namespace attn::cuda
