// What the kernels for sm_80 share that give each warp 16 rows of a gradient (backward_sm80_buffers
// and backward_sm80_deterministic): a row of their tables of shapes, and the choice it makes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

struct WarpRowsShape {
  int head_dim;                  // up to this, of the larger of Q K's and V's
  int block_m, block_n, stages;  // block_m: 16 rows a warp
  int spill_bytes;               // accepted, at most, under any of tests/cuda/kernels_backward.txt
  std::string_view reason;
};

// The first row that is wide enough; `shapes` are sorted, and the last takes every head size.
const WarpRowsShape& warp_rows_shape(std::span<const WarpRowsShape> shapes,
                                     const BackwardFeatures& features);
BackwardTiling warp_rows_tiling(const WarpRowsShape& shape, std::int64_t shared_bytes);

// Bytes of a row of shared memory: whole pieces of 16 elements of two bytes. 72 elements: 160.
std::int64_t warp_rows_row_bytes(int head_dim);

}  // namespace attn::cuda
