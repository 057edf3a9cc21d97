// Rung 14, split_k: with fewer tiles of C than multiprocessors most of a GPU stands still, whatever
// a tile's kernel does: M 64, N 3072 are 12 tiles of 128 x 256 for 132. Here the blocks of a
// cluster share a tile and each takes a part of k. Then each block finishes a part of the tile's
// columns: the others write their sums of it into its shared memory, and it adds all parts in
// order. So there is one kernel, and no sum goes through memory. (Parts in memory and a second
// kernel took 26 us for 1024^3, where cuBLAS takes 6.) Expected: 3 to 6 times persistent at M 64, N
// 3072. Measured there: 6.7 us for 7.9 of persistent with 64 x 64 and 23.8 with 128 x 192: 1.2 and
// 3.6 times; cuBLAS takes 7.6.
//
// Tile: by the table of src/cuda/matmul/matmul_sm90.cpp, p.steps_per_split steps of k a block.
// Reads of C also kSplits, the blocks of a cluster, of which kColumns / 8 is a multiple.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "matmul/warp_specialised.cuh"

namespace attn::device {

template <class C>
struct SplitK {
  using Ring = HopperRing<C>;
  // Sums of a thread that each block finishes; a row of the inbox, behind the ring, is what a
  // thread of another block sent.
  static constexpr int kPart = C::kColumns / 2 / C::kSplits;
  static constexpr int kInbox = divide_up<128>(Ring::kBytes) * 128;
  static constexpr int kBytes = kInbox + (C::kSplits - 1) * C::kGroups * 128 * kPart * 4;

  // The address, in the inbox of block `to`, of four sums from block `from`; a thread reads what
  // the same thread of other blocks wrote.
  static ATTN_DEVICE unsigned place(const Ring& ring, int from, int to, int four) {
    const int slot = from < to ? from : from - 1;
    const int thread = static_cast<int>(threadIdx.x) - 128;
    return ring.shared + kInbox +
           static_cast<unsigned>(((slot * (kPart / 4) + four) * C::kGroups * 128 + thread) * 16);
  }
  static ATTN_DEVICE void send(const Ring& ring, int rank, const float (&sum)[C::kColumns / 2]) {
#pragma unroll
    for (int to = 0; to < C::kSplits; ++to) {
      if (to == rank) continue;
#pragma unroll
      for (int i = 0; i < kPart / 4; ++i) {
        const float* x = sum + to * kPart + 4 * i;
        const float four[4] = {x[0], x[1], x[2], x[3]};
        store_cluster(cluster_address(place(ring, rank, to, i), static_cast<unsigned>(to)), four);
      }
    }
  }
  // part <- the sums of all blocks, of the columns of this one.
  static ATTN_DEVICE void receive(const Ring& ring, int rank, const float (&sum)[C::kColumns / 2],
                                  float (&part)[kPart]) {
    float own[kPart];
#pragma unroll
    for (int to = 0; to < C::kSplits; ++to) {
      if (to != rank) continue;
#pragma unroll
      for (int i = 0; i < kPart; ++i) own[i] = sum[to * kPart + i];
    }
#pragma unroll
    for (int from = 0; from < C::kSplits; ++from) {
#pragma unroll
      for (int i = 0; i < kPart; i += 4) {
        float x[4] = {own[i], own[i + 1], own[i + 2], own[i + 3]};
        if (from != rank) {
          const Int4 words = load_shared(place(ring, from, rank, i / 4));
          x[0] = __int_as_float(words.x);
          x[1] = __int_as_float(words.y);
          x[2] = __int_as_float(words.z);
          x[3] = __int_as_float(words.w);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) part[i + j] = from == 0 ? x[j] : part[i + j] + x[j];
      }
    }
  }
};

template <class C>
ATTN_DEVICE void matmul_split_k(const MatmulParams& p, const MatmulMaps& maps) {
  using Kernel = SplitK<C>;
  const int rank = static_cast<int>(blockIdx.x) % C::kSplits;
  const MatmulTile t =
      matmul_tile(p, static_cast<int>(blockIdx.x) / C::kSplits, HopperRing<C>::kRows, C::kColumns);
  const int first = rank * p.steps_per_split, last = min(p.k, first + p.steps_per_split);
  specialise<C>(
      maps,
      [&](const HopperRing<C>& ring) {
        RingPlace<C> place;
        produce<C>(p, maps, ring, t, first, last, place);
      },
      [&](const HopperRing<C>& ring, int group) {
        RingPlace<C> place;
        float sum[C::kColumns / 2], part[Kernel::kPart];
        consume<C>(p, ring, t, group, first, last, place, sum);
        Kernel::send(ring, rank, sum);
        cluster_arrive();
        cluster_wait();
        Kernel::receive(ring, rank, sum, part);
        const int column = t.column + rank * (C::kColumns / C::kSplits);
        for_each_pair(part, [&](int row, int at, float x, float y) {
          store_pair<C>(p, t.batch, t.row + 64 * group + row, column + at, x, y);
        });
      });
}

}  // namespace attn::device
