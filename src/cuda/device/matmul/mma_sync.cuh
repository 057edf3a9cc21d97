// Rung 6, mma_sync: FMAs are the limit of vector_loads. A warp's mma.sync multiplies 16 x 16 by 16
// x 8 in one instruction, 16-bit numbers with sums in float. Expected: 4 times vector_loads.
// Measured: 0.71 times vector_loads (28 TFLOP/s), for the reason that follows. Operands come
// through registers one number at a time and nothing is copied while tensor cores work, so they
// wait most of the time; and this rung takes any strides.
//
// Tile: 128 x 128 x 32, 256 threads.
#pragma once

#include "device.cuh"
#include "matmul/warp_tiles.cuh"

namespace attn::device {

struct MmaSync : WarpTiles {
  // Rows of 80 bytes: what eight rows hold at one place lies in different banks.
  static constexpr int kPadded = kDepth + 8;
  static constexpr int kBytes = 2 * kSide * kPadded * 2;
};

// Loads two neighbours along k of a row of [row][step].
ATTN_DEVICE unsigned load_pair(const unsigned short* tile, int row, int step) {
  return *reinterpret_cast<const unsigned*>(tile + row * MmaSync::kPadded + step);
}

template <class C>
ATTN_DEVICE void matmul_mma_sync(const MatmulParams& p) {
  using L = MmaSync;
  extern __shared__ __align__(1024) char memory[];
  auto* const a = reinterpret_cast<unsigned short*>(memory);  // [row][step]
  unsigned short* const b = a + L::kSide * L::kPadded;        // [column][step]
  const MatmulTile t = matmul_tile(p, static_cast<int>(blockIdx.x), L::kSide, L::kSide);
  const int in_quad = L::lane() % 4 * 2, quad = L::lane() / 4;
  float sum[4][4][4] = {};
  for (int step = 0; step < p.k; step += L::kDepth) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < L::kSide * L::kDepth; i += L::kThreads) {
      const int row = C::kStepsTogetherA ? i / L::kDepth : i % L::kSide;
      const int l = C::kStepsTogetherA ? i % L::kDepth : i / L::kSide;
      a[row * L::kPadded + l] = load_a<C>(p, t.batch, t.row + row, step + l);
      const int column = C::kStepsTogetherB ? i / L::kDepth : i % L::kSide;
      const int m = C::kStepsTogetherB ? i % L::kDepth : i / L::kSide;
      b[column * L::kPadded + m] = load_b<C>(p, t.batch, step + m, t.column + column);
    }
    __syncthreads();
#pragma unroll
    for (int l = 0; l < L::kDepth; l += 16) {
      Fragments f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          f.a[i][r] = load_pair(a, L::row() + 16 * i + quad + r % 2 * 8, l + in_quad + r / 2 * 8);
        }
        f.b[i][0] = load_pair(b, L::column() + 8 * i + quad, l + in_quad);
        f.b[i][1] = load_pair(b, L::column() + 8 * i + quad, l + in_quad + 8);
      }
      multiply_fragments<typename C::Element>(f, sum);
    }
    __syncthreads();
  }
  store_warp_tile<C>(p, t, sum);
}

}  // namespace attn::device
