// What the rungs with mma.sync share: eight warps of a block have 64 x 32 elements of a 128 x 128
// tile of C each, as 4 x 4 products of m16n8k16 (ptx/mma.cuh).
#pragma once

#include "device.cuh"
#include "matmul/common.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"

namespace attn::device {

struct WarpTiles {
  static constexpr int kSide = 128, kDepth = 32, kThreads = 256;
  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  // The first row and column of the warp, in the tile.
  static ATTN_DEVICE int row() { return static_cast<int>(threadIdx.x / 128) * 64; }
  static ATTN_DEVICE int column() { return static_cast<int>(threadIdx.x / 32 % 4) * 32; }
};

// Operands of 16 steps: of A four registers for each 16 rows, of B two for each 8 columns.
struct Fragments {
  unsigned a[4][4], b[4][2];
};

template <class Element>
ATTN_DEVICE void multiply_fragments(const Fragments& f, float (&sum)[4][4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) multiply(Element{}, sum[i][j], f.a[i], f.b[j][0], f.b[j][1]);
  }
}

template <class C>
ATTN_DEVICE void store_warp_tile(const MatmulParams& p, const MatmulTile& t,
                                 const float (&sum)[4][4][4]) {
  const int row = t.row + WarpTiles::row() + WarpTiles::lane() / 4;
  const int column = t.column + WarpTiles::column() + WarpTiles::lane() % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        store_c<C>(p, t.batch, row + 16 * i + r / 2 * 8, column + 8 * j + r % 2, sum[i][j][r]);
      }
    }
  }
}

}  // namespace attn::device
