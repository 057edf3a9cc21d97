// Rung 15, stream_k: 2.2 waves of tiles take as long as 3. Here whole waves are dealt as in
// persistent, all but one, and the steps of k of the tiles that are left are dealt evenly to all
// blocks, wherever tiles begin and end (Osama et al. 2023). A block that has the first steps of a
// tile writes its sums to memory and sets a flag; the one that has the last steps adds them, those
// of the nearest block first, and ends the tile. Expected: the share of the last wave that stood
// still, 1.3 times at 3072^3 (288 tiles for 132 blocks), less a few microseconds. Measured: 22
// us at 1024^3 where persistent takes 5.4, and 34 at M 64, N 3072, K 3072 where it takes 7.9:
// blocks wait for each other on the way, so the table takes it for nothing.
//
// A block works backwards through its steps, so that what others wait for is done first, and it
// waits for blocks with lower numbers only, which started before it.
//
// Tile: as persistent. p.partial: [block][64 x kGroups x kColumns] sums, p.flags: [block][kGroups],
// zero.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "matmul/persistent.cuh"
#include "ptx/flag.cuh"

namespace attn::device {

// Steps of k of a tile, in stages.
struct StreamPiece {
  int tile, first, last;
};

template <class C>
struct StreamK {
  using Ring = HopperRing<C>;
  static constexpr int kThreads = 128 * C::kGroups, kFours = C::kColumns / 8;

  const MatmulParams& p;
  int stages, blocks, block;  // stages of a tile
  ATTN_DEVICE explicit StreamK(const MatmulParams& params)
      : p(params),
        stages(divide_up<Ring::kDepth>(params.k)),
        blocks(static_cast<int>(gridDim.x)),
        block(static_cast<int>(blockIdx.x)) {}

  // The first stage of a block, of those of the tiles that are dealt by steps.
  ATTN_DEVICE long long begin(int of_block) const {
    const long long tiles = static_cast<long long>(p.batch) * p.m_tiles * p.n_tiles;
    return (tiles - p.whole_tiles) * stages * of_block / blocks;
  }
  // Calls f(piece) for all that this block does.
  template <class F>
  ATTN_DEVICE void for_each_piece(F f) const {
    const long long from = begin(block);
    for (long long to = begin(block + 1); to > from;) {
      const int tile = static_cast<int>((to - 1) / stages);
      const long long start = static_cast<long long>(tile) * stages;
      const long long first = max(from, start);
      f(StreamPiece{p.whole_tiles + tile, static_cast<int>(first - start),
                    static_cast<int>(to - start)});
      to = first;
    }
    for (int tile = block; tile < p.whole_tiles; tile += blocks) f(StreamPiece{tile, 0, stages});
  }
  ATTN_DEVICE MatmulTile tile(const StreamPiece& piece) const {
    return matmul_tile(p, piece.tile, Ring::kRows, C::kColumns);
  }

  // The place, among the partial sums of a block, of four sums of this thread.
  ATTN_DEVICE float* place(int of_block, int four) const {
    const long long at =
        (static_cast<long long>(of_block) * kFours + four) * kThreads + threadIdx.x - 128;
    return p.partial + 4 * at;
  }
  ATTN_DEVICE unsigned* flag(int of_block, int group) const {
    return p.flags + of_block * C::kGroups + group;
  }
  ATTN_DEVICE void write(int group, const float (&sum)[C::kColumns / 2]) const {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      *reinterpret_cast<Int4*>(place(block, i)) = {
          __float_as_int(sum[4 * i]), __float_as_int(sum[4 * i + 1]),
          __float_as_int(sum[4 * i + 2]), __float_as_int(sum[4 * i + 3])};
    }
    barrier_sync(1 + group, 128);
    if (threadIdx.x % 128 == 0) set_flag(flag(block, group));
  }
  // Adds what blocks before this one did of its tile.
  ATTN_DEVICE void add(const StreamPiece& piece, int group, float (&sum)[C::kColumns / 2]) const {
    const long long start = static_cast<long long>(piece.tile - p.whole_tiles) * stages;
    for (int other = block - 1; begin(other + 1) > start; --other) {
      if (begin(other) == begin(other + 1)) continue;
      if (threadIdx.x % 128 == 0) wait_for_flag(flag(other, group));
      barrier_sync(1 + group, 128);
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const Int4 words = *reinterpret_cast<const Int4*>(place(other, i));
        sum[4 * i] += __int_as_float(words.x);
        sum[4 * i + 1] += __int_as_float(words.y);
        sum[4 * i + 2] += __int_as_float(words.z);
        sum[4 * i + 3] += __int_as_float(words.w);
      }
    }
  }
};

template <class C>
ATTN_DEVICE void matmul_stream_k(const MatmulParams& p, const MatmulMaps& maps) {
  using Kernel = Persistent<C>;
  constexpr int kDepth = HopperRing<C>::kDepth;
  const StreamK<C> work(p);
  specialise<C>(
      maps,
      [&](const HopperRing<C>& ring) {
        RingPlace<C> place;
        work.for_each_piece([&](const StreamPiece& piece) {
          produce<C>(p, maps, ring, work.tile(piece), piece.first * kDepth, piece.last * kDepth,
                     place);
        });
      },
      [&](const HopperRing<C>& ring, int group) {
        RingPlace<C> place;
        float sum[C::kColumns / 2];
        work.for_each_piece([&](const StreamPiece& piece) {
          consume<C>(p, ring, work.tile(piece), group, piece.first * kDepth, piece.last * kDepth,
                     place, sum);
          if (piece.last < work.stages) return work.write(group, sum);
          if (piece.first > 0) work.add(piece, group, sum);
          Kernel::store(p, maps, work.tile(piece), group, ring, sum);
        });
        Kernel::finish_stores();
      });
}

}  // namespace attn::device
