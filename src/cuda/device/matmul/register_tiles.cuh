// Rung 4, register_tiles: a thread of shared_tiles loads five numbers from shared memory for four
// multiplications. Here it holds 8 x 8 elements of C in registers and loads 16 numbers for 64.
// Expected: 3 to 4 times. Measured: 2.9 times (23 TFLOP/s). What is left is instructions: numbers
// come from memory one at a time.
//
// Tile: 128 x 128 x 16, 256 threads.
#pragma once

#include "device.cuh"
#include "matmul/common.cuh"

namespace attn::device {

struct RegisterTiles {
  static constexpr int kSide = 128, kDepth = 16, kPadded = kSide + 4, kThreads = 256;
  static constexpr int kBytes = 2 * kDepth * kPadded * 4;
};

// sum[i][j] += the products of the tiles a [step][row] and b [step][column]: rows 4 y + i and that
// + 64, columns likewise of x.
ATTN_DEVICE void multiply_registers(const float* a, const float* b, int y, int x,
                                    float (&sum)[8][8]) {
#pragma unroll 4
  for (int l = 0; l < RegisterTiles::kDepth; ++l) {
    float u[8], v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      u[i] = a[l * RegisterTiles::kPadded + 4 * y + i % 4 + i / 4 * 64];
      v[i] = b[l * RegisterTiles::kPadded + 4 * x + i % 4 + i / 4 * 64];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(u[i], v[j], sum[i][j]);
    }
  }
}

template <class C>
ATTN_DEVICE void store_registers(const MatmulParams& p, const MatmulTile& t, int y, int x,
                                 const float (&sum)[8][8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      store_c<C>(p, t.batch, t.row + 4 * y + i % 4 + i / 4 * 64,
                 t.column + 4 * x + j % 4 + j / 4 * 64, sum[i][j]);
    }
  }
}

template <class C>
ATTN_DEVICE void matmul_register_tiles(const MatmulParams& p) {
  using L = RegisterTiles;
  using S = Scalar<typename C::Element>;
  extern __shared__ __align__(1024) char memory[];
  float* const a = reinterpret_cast<float*>(memory);  // [step][row]
  float* const b = a + L::kDepth * L::kPadded;        // [step][column]
  const MatmulTile t = matmul_tile(p, static_cast<int>(blockIdx.x), L::kSide, L::kSide);
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  float sum[8][8] = {};
  for (int step = 0; step < p.k; step += L::kDepth) {
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < L::kSide * L::kDepth; i += L::kThreads) {
      const int row = C::kStepsTogetherA ? i / L::kDepth : i % L::kSide;
      const int l = C::kStepsTogetherA ? i % L::kDepth : i / L::kSide;
      a[l * L::kPadded + row] = S::from(load_a<C>(p, t.batch, t.row + row, step + l));
      const int column = C::kStepsTogetherB ? i / L::kDepth : i % L::kSide;
      const int m = C::kStepsTogetherB ? i % L::kDepth : i / L::kSide;
      b[m * L::kPadded + column] = S::from(load_b<C>(p, t.batch, step + m, t.column + column));
    }
    __syncthreads();
    multiply_registers(a, b, y, x, sum);
    __syncthreads();
  }
  store_registers<C>(p, t, y, x, sum);
}

}  // namespace attn::device
