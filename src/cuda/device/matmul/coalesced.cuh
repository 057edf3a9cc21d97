// Rung 2, coalesced: the naive kernel, but threads of a warp have neighbouring columns. A load of B
// (row-major) is one stretch of 128 bytes, that of A one number for all, and C is stored in lines.
// Expected: 4 to 8 times the naive kernel. Measured: 2.9 times (1.5 TFLOP/s). It still loads two
// numbers for each multiplication.
//
// Tile: 8 x 32, 256 threads.
#pragma once

#include "device.cuh"
#include "matmul/naive.cuh"

namespace attn::device {

template <class C>
ATTN_DEVICE void matmul_coalesced(const MatmulParams& p) {
  const MatmulTile t = matmul_tile(p, static_cast<int>(blockIdx.x), 8, 32);
  const int row = t.row + static_cast<int>(threadIdx.x / 32);
  const int column = t.column + static_cast<int>(threadIdx.x % 32);
  compute_element<C>(p, t.batch, row, column);
}

}  // namespace attn::device
