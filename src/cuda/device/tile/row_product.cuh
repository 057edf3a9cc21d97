// Products of a warp with 16 rows of a shared tile and kColumns rows of another one, which are the
// columns of the sums, in the order of tile/accumulator.cuh.
#pragma once

#include "device.cuh"
#include "ptx/mma.cuh"
#include "tile/shared_tile.cuh"

namespace attn::device {

// d <- A B^T. a, b: where this lane reads (row_operand, column_operand).
template <class Element, class Tile, int kColumns>
ATTN_DEVICE void multiply_rows(float (&d)[kColumns / 2], unsigned a, unsigned b) {
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) d[i] = 0;
#pragma unroll
  for (int step = 0; step < Tile::kChunks / 2; ++step) {
    unsigned of_a[4];
    load_matrices(of_a, Tile::further(a, 0, 2 * step));
#pragma unroll
    for (int j = 0; j < kColumns / 16; ++j) {
      unsigned of_b[4];
      load_matrices(of_b, Tile::further(b, 16 * j, 2 * step));
      multiply(Element{}, d + 8 * j, of_a, of_b[0], of_b[1]);
      multiply(Element{}, d + 8 * j + 4, of_a, of_b[2], of_b[3]);
    }
  }
}
// tile: the address of its first row; row: the first of the warp's 16.
template <class Tile>
ATTN_DEVICE unsigned row_operand(unsigned tile, int row) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return Tile::lane(tile, row + lane % 16, lane / 16);
}
template <class Tile>
ATTN_DEVICE unsigned column_operand(unsigned tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return Tile::lane(tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// f(x, row i of two, column) for each sum that the thread holds.
template <int kCount, class F>
ATTN_DEVICE void for_each_sum(float (&x)[kCount], F f) {
  const int pair = 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int c = 0; c < 2; ++c) f(x[4 * j + 2 * i + c], i, 8 * j + pair + c);
    }
  }
}

}  // namespace attn::device
