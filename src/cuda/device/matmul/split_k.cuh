// Rung 12, split_k: with fewer tiles of C than multiprocessors most of a GPU stands still, whatever
// a tile's kernel does: M 64, N 3072 are 12 tiles of 128 x 256 for 132. Here k is cut in parts,
// each a tile's work of its own, whose sums go to memory in float; a second kernel adds them in
// order and ends as every rung does. Expected there: 3 to 6 times persistent. It costs 8 bytes a
// part for each element of C.
//
// Tile: as warp_specialised, with p.steps_per_split steps of k.
#pragma once

#include "matmul/warp_specialised.cuh"

namespace attn::device {

template <class C>
__device__ __forceinline__ void matmul_split_k(const MatmulParams& p, const MatmulMaps& maps) {
  const int split = static_cast<int>(blockIdx.x) % p.splits;
  const MatmulTile t =
      matmul_tile(p, static_cast<int>(blockIdx.x) / p.splits, HopperRing<C>::kRows, C::kColumns);
  const int first = split * p.steps_per_split, last = min(p.k, first + p.steps_per_split);
  specialise<C>(
      [&](const HopperRing<C>& ring) {
        RingPlace<C> place;
        produce<C>(p, maps, ring, t, first, last, place);
      },
      [&](const HopperRing<C>& ring, int group) {
        RingPlace<C> place;
        float sum[C::kColumns / 2];
        consume<C>(ring, group, first, last, place, sum);
        float* to = p.partial + (static_cast<long long>(split) * p.batch + t.batch) * p.m * p.n;
        ring.for_each_sum(sum, [&](int row, int column, float x) {
          const int i = t.row + 64 * group + row, j = t.column + column;
          if (i < p.m && j < p.n) to[static_cast<long long>(i) * p.n + j] = x;
        });
      });
}

}  // namespace attn::device
