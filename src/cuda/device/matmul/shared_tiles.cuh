// Rung 3, shared_tiles: coalesced loads fetch each number once for every row or column that needs
// it. Here a block of threads copies 32 x 32 of A and of B to shared memory and uses each number 32
// times: a thirty-second of the bytes from L2. Expected: 1.5 to 2 times. Measured: 5.4 times (8.0
// TFLOP/s). Now shared memory is the limit: two loads from it for a multiplication.
//
// Tile: 32 x 32 x 32, 256 threads, four elements of C each.
#pragma once

#include "device.cuh"
#include "matmul/common.cuh"

namespace attn::device {

template <class C>
struct SharedTiles {
  static constexpr int kSide = 32, kPadded = kSide + 1, kThreads = 256;
  static constexpr int kBytes = 2 * kSide * kPadded * 4;
};

template <class C>
ATTN_DEVICE void matmul_shared_tiles(const MatmulParams& p) {
  using L = SharedTiles<C>;
  using S = Scalar<typename C::Element>;
  extern __shared__ __align__(1024) char memory[];
  float* const a = reinterpret_cast<float*>(memory);  // [row][step]
  float* const b = a + L::kSide * L::kPadded;         // [step][column]
  const MatmulTile t = matmul_tile(p, static_cast<int>(blockIdx.x), L::kSide, L::kSide);
  const int x = static_cast<int>(threadIdx.x % 32), y = static_cast<int>(threadIdx.x / 32);
  float sum[4] = {};
  for (int step = 0; step < p.k; step += L::kSide) {
#pragma unroll
    for (int i = 0; i < L::kSide; i += 8) {
      // Threads of a warp take what lies together in memory.
      const int row = C::kStepsTogetherA ? y + i : x, l = C::kStepsTogetherA ? x : y + i;
      a[row * L::kPadded + l] = S::from(load_a<C>(p, t.batch, t.row + row, step + l));
      const int column = C::kStepsTogetherB ? y + i : x, m = C::kStepsTogetherB ? x : y + i;
      b[m * L::kPadded + column] = S::from(load_b<C>(p, t.batch, step + m, t.column + column));
    }
    __syncthreads();
#pragma unroll
    for (int l = 0; l < L::kSide; ++l) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[i] = fmaf(a[(y + 8 * i) * L::kPadded + l], b[l * L::kPadded + x], sum[i]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) store_c<C>(p, t.batch, t.row + y + 8 * i, t.column + x, sum[i]);
}

}  // namespace attn::device
