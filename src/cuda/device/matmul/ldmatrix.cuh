// Rung 8, ldmatrix: cp_async loads each register of an operand by itself. ldmatrix fills four of a
// warp at once, transposed where neighbours along k do not lie together, and the operands of the
// next 16 steps are loaded while this product runs. Expected: 1.3 to 2 times. Measured: 1.8 times
// (266 TFLOP/s). What is left: the first operands of a tile are waited for, and shared memory is as
// busy as the tensor cores.
//
// Tile: 128 x 128 x 32, 256 threads, four stages. Takes what vector_loads takes.
#pragma once

#include "device.cuh"
#include "matmul/cp_async.cuh"

namespace attn::device {

template <class C>
ATTN_DEVICE void load_fragments(unsigned a, unsigned b, int step, Fragments& f) {
  using Ring = MmaRing<C>;
  // Lanes 0 to 7 give the rows of the first 8 x 8 matrix, and so on. Of A the four are rows 0 to 7,
  // 8 to 15, and the same of the later 8 steps.
  const int in = Ring::lane() % 8, second = Ring::lane() / 8 % 2 * 8, third = Ring::lane() / 16 * 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = Ring::row() + 16 * i;
    if constexpr (C::kStepsTogetherA) {
      load_matrices(f.a[i], Ring::TileA::address(a, row + in + second, step + third));
    } else {
      load_matrices_transposed(f.a[i], Ring::TileA::address(a, row + second, step + in + third));
    }
  }
  // The four matrices of B are: 8 columns, the later 8 steps of these, and the same of the next 8
  // columns.
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    const int column = Ring::column() + 8 * j;
    unsigned r[4];
    if constexpr (C::kStepsTogetherB) {
      load_matrices(r, Ring::TileB::address(b, column + in + third, step + second));
    } else {
      load_matrices_transposed(r, Ring::TileB::address(b, column + third, step + in + second));
    }
    f.b[j][0] = r[0];
    f.b[j][1] = r[1];
    f.b[j + 1][0] = r[2];
    f.b[j + 1][1] = r[3];
  }
}

template <class C>
ATTN_DEVICE void matmul_ldmatrix(const MatmulParams& p) {
  using Ring = MmaRing<C>;
  extern __shared__ __align__(1024) char memory[];
  const MatmulTile t = matmul_tile(p, static_cast<int>(blockIdx.x), Ring::kSide, Ring::kSide);
  if (!has_tile<C>(p, t)) return;
  float sum[4][4][4] = {};
  Ring::for_each_tile(p, t, shared_address(memory), [&](unsigned a, unsigned b) {
    Fragments f[2];
    load_fragments<C>(a, b, 0, f[0]);
#pragma unroll
    for (int l = 0; l < Ring::kDepth; l += 16) {
      if (l + 16 < Ring::kDepth) load_fragments<C>(a, b, l + 16, f[(l / 16 + 1) % 2]);
      multiply_fragments<typename C::Element>(f[l / 16 % 2], sum);
    }
  });
  store_warp_tile<C>(p, t, sum);
}

}  // namespace attn::device
