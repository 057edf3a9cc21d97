// Rung 1, naive: a thread computes one element of C from a row of A and a column of B, where they
// lie. It lacks everything: threads of a warp have 32 different rows, so that a load of A
// (row-major) touches 32 cache lines for 32 numbers, and no number is used twice once it is loaded.
// Measured: 0.51 TFLOP/s, 272 ms (here and in the rungs below: bf16, 4096 x 4096 x 4096, one H100,
// 76e951c, docs/matmul.md).
//
// Tile: 32 x 8, 256 threads.
#pragma once

#include "device.cuh"
#include "matmul/common.cuh"

namespace attn::device {

// C_ij, unless a mask leaves it out.
template <class C>
ATTN_DEVICE void compute_element(const MatmulParams& p, int batch, int row, int column) {
  using S = Scalar<typename C::Element>;
  const MatmulTile one{batch, row, column};
  if (!has_tile<C>(p, one)) return;
  float sum = 0;
  for (int step = next_step<C>(p, one, 0); step < p.k; step = next_step<C>(p, one, step + 1)) {
    sum = fmaf(S::from(load_a<C>(p, batch, row, step)), S::from(load_b<C>(p, batch, step, column)),
               sum);
  }
  store_c<C>(p, batch, row, column, sum);
}

template <class C>
ATTN_DEVICE void matmul_naive(const MatmulParams& p) {
  const MatmulTile t = matmul_tile(p, static_cast<int>(blockIdx.x), 32, 8);
  const int row = t.row + static_cast<int>(threadIdx.x % 32);
  const int column = t.column + static_cast<int>(threadIdx.x / 32);
  compute_element<C>(p, t.batch, row, column);
}

}  // namespace attn::device
