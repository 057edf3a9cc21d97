// Rung 12, persistent: blocks of warp_specialised end with every tile, and their stores and the
// first loads of the next block are nobody's to hide. Here a block stays on its multiprocessor and
// takes one tile after the other: the producer fills the ring for the next while the last products
// and stores of this one run, and C goes through 8 KB panels of shared memory to the copy engine,
// which writes them while the next tile is multiplied. Tiles are dealt in groups of rows, so that
// those at work share A and B in L2. Expected: 1.05 to 1.15 times. Measured: 1.13 times (787
// TFLOP/s; cuBLAS 782).
//
// Tile: by the table of src/cuda/matmul/matmul_sm90.cpp, 128 x 256 x 64 for large products,
// with a producer and a warpgroup for each 64 rows. Reads of C also kStoresBoxes: C goes by the
// copy engine, which takes 16-bit elements in rows of multiples of 16 bytes; else each thread
// stores what it holds.
#pragma once

#include "device.cuh"
#include "matmul/warp_specialised.cuh"
#include "tile/staged_rows.cuh"

namespace attn::device {

template <class C>
struct Persistent {
  using Ring = HopperRing<C>;
  // Two panels of 64 rows and columns for each warpgroup, behind the ring.
  static constexpr int kStaging = (Ring::kBytes + 1023) / 1024 * 1024;
  static constexpr int kBytes = kStaging + (C::kStoresBoxes ? C::kGroups * 2 * Ring::kPanel : 0);

  // Panels go in pairs: both are staged, then the engine is told once that they are there.
  static ATTN_DEVICE void store_boxes(const MatmulParams& p, const MatmulMaps& maps,
                                      const MatmulTile& t, int group, unsigned staging,
                                      float (&sum)[C::kColumns / 2]) {
    constexpr int kPanels = C::kColumns / 64;
    constexpr float kOne[2] = {1, 1};
    const int warp_row = static_cast<int>(threadIdx.x % 128 / 32) * 16;
    const int first = t.row + 64 * group + warp_row;
    const auto place = [&](int panel) {
      return staging + static_cast<unsigned>((2 * group + panel % 2) * Ring::kPanel);
    };
#pragma unroll
    for (int pair = 0; pair < kPanels; pair += 2) {
      if (elect_one()) bulk_wait_read<0>();
      __syncwarp();
#pragma unroll
      for (int panel = pair; panel < min(pair + 2, kPanels); ++panel) {
        float part[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          const int row = first + static_cast<int>(threadIdx.x % 32 / 4) + i / 2 % 2 * 8;
          const int column =
              t.column + 64 * panel + static_cast<int>(threadIdx.x % 4) * 2 + i / 4 * 8 + i % 2;
          // Only a bias is read from where C may have no element.
          const bool inside = C::kBias == 0 || (row < p.m && column < p.n);
          part[i] = inside ? finished<C>(p, row, column, sum[32 * panel + i]) : 0.f;
        }
        stage_rows<Output<C>, 64>(part, kOne, place(panel), Ring::kPanel, warp_row);
      }
      fence_proxy_async();
      __syncwarp();
      if (elect_one()) {
#pragma unroll
        for (int panel = pair; panel < min(pair + 2, kPanels); ++panel) {
          if (first < p.m && t.column + 64 * panel < p.n) {
            tma_store_4d(maps.c, place(panel) + static_cast<unsigned>(warp_row * 128),
                         t.column + 64 * panel, first, t.batch, 0);
          }
        }
        bulk_commit();
      }
    }
    // What is less than a panel goes to memory as it is.
    constexpr int kRest = C::kColumns / 2 - 32 * kPanels;
    if constexpr (kRest > 0) {
      float rest[kRest];
#pragma unroll
      for (int i = 0; i < kRest; ++i) rest[i] = sum[32 * kPanels + i];
      for_each_pair(rest, [&](int row, int column, float x, float y) {
        store_pair<C>(p, t.batch, t.row + 64 * group + row, t.column + 64 * kPanels + column, x, y);
      });
    }
  }
  // The end of a tile, by the way that C takes.
  static ATTN_DEVICE void store(const MatmulParams& p, const MatmulMaps& maps, const MatmulTile& t,
                                int group, const Ring& ring, float (&sum)[C::kColumns / 2]) {
    if constexpr (C::kStoresBoxes) {
      store_boxes(p, maps, t, group, ring.shared + kStaging, sum);
    } else {
      for_each_pair(sum, [&](int row, int column, float x, float y) {
        store_pair<C>(p, t.batch, t.row + 64 * group + row, t.column + column, x, y);
      });
    }
  }
  // Shared memory is read before the block ends.
  static ATTN_DEVICE void finish_stores() {
    if constexpr (C::kStoresBoxes) {
      if (elect_one()) bulk_wait_read();
    }
  }
};

// Tiles of a block: the blocks of a cluster, where they have the same B, work on rows below each
// other, and p.m_tiles counts the rows of a cluster.
template <class C>
ATTN_DEVICE MatmulTile persistent_tile(const MatmulParams& p, int index) {
  constexpr int kRows = HopperRing<C>::kRows;
  MatmulTile t = matmul_tile(p, index, kRows * C::kMulticast, C::kColumns);
  if constexpr (C::kMulticast > 1) t.row += static_cast<int>(cluster_rank()) * kRows;
  return t;
}

// The order in which columns of tiles are dealt that have unlike many blocks of a masked B: in each
// group of rows by how many, from the most to the fewest and in the next group back, so that
// blocks of threads that are dealt tiles in turn get tiles of about one length; the last group ends
// with the fewest. Up to 32 columns, one a lane: others stay where they are. By all threads of a
// warp, as are its functions.
template <class C>
struct ColumnOrder {
  static constexpr bool kSorts = C::kMasked == 2 && C::kMulticast == 1;
  int column = 0;  // of this lane's place

  ATTN_DEVICE explicit ColumnOrder(const MatmulParams& p) {
    if constexpr (!kSorts) return;
    if (p.n_tiles > 32) return;
    const int lane = static_cast<int>(threadIdx.x % 32);
    int blocks = -1;  // of a column that there is
    if (lane < p.n_tiles) {
      blocks = 0;
#pragma unroll 8
      for (int step = 0; step < p.k; step += C::kBlock) {
        blocks += has_block<C>(p, step, lane * C::kColumns);
      }
    }
    int rank = 0;
    for (int other = 0; other < 32; ++other) {
      const int theirs = __shfl_sync(0xffffffff, blocks, other);
      rank += theirs > blocks || (theirs == blocks && other < lane);
    }
    for (int other = 0; other < 32; ++other) {
      if (__shfl_sync(0xffffffff, rank, other) == lane) column = other;
    }
  }
  ATTN_DEVICE MatmulTile tile(const MatmulParams& p, int index) const {
    MatmulTile t = persistent_tile<C>(p, index);
    if constexpr (!kSorts) return t;
    if (p.n_tiles > 32) return t;
    const int rows = p.group * HopperRing<C>::kRows;
    const int groups_left = (p.m_tiles - 1) / p.group - t.row / rows;
    const int place = t.column / C::kColumns;
    const int from = groups_left % 2 == 0 ? place : p.n_tiles - 1 - place;
    t.column = __shfl_sync(0xffffffff, column, from) * C::kColumns;
    return t;
  }
};

template <class C>
ATTN_DEVICE void matmul_all_tiles(const MatmulParams& p, const MatmulMaps& maps) {
  using Kernel = Persistent<C>;
  const int tiles = p.batch * p.m_tiles * p.n_tiles;
  const int first = static_cast<int>(blockIdx.x) / C::kMulticast;
  const int blocks = static_cast<int>(gridDim.x) / C::kMulticast;
  // Before the block meets: the first load waits for it.
  const MatmulTile first_tile = persistent_tile<C>(p, first);
  // A mask may be what the kernel before this one in the stream writes.
  const auto begin = [&](const ColumnOrder<C>& order) {
    return ColumnOrder<C>::kSorts ? order.tile(p, first) : first_tile;
  };
  specialise<C>(
      maps,
      [&](const HopperRing<C>& ring) {
        RingPlace<C> place;
        const ColumnOrder<C> order(p);
        MatmulTile t = begin(order);
        for (int i = first;; t = order.tile(p, i)) {
          produce<C>(p, maps, ring, t, 0, p.k, place);
          if ((i += blocks) >= tiles) break;
        }
      },
      [&](const HopperRing<C>& ring, int group) {
        RingPlace<C> place;
        float sum[C::kColumns / 2];
        const ColumnOrder<C> order(p);
        MatmulTile t = begin(order);
        for (int i = first;; t = order.tile(p, i)) {
          consume<C>(p, ring, t, group, 0, p.k, place, sum);
          Kernel::store(p, maps, t, group, ring, sum);
          if ((i += blocks) >= tiles) break;
        }
        Kernel::finish_stores();
      });
}

// Calls f(tile) for those tiles of a masked C that are there, dealt to the blocks of threads in
// turn, so that each gets as many as any other. By all threads of a warp.
template <class C, class F>
ATTN_DEVICE void for_each_tile_there(const MatmulParams& p, F f) {
  const int tiles = p.batch * p.m_tiles * p.n_tiles;
  int next = static_cast<int>(blockIdx.x);  // of the tiles that are there
  int before = 0;                           // there before the word that is looked at
  constexpr int kWords = 8;  // of 32 tiles, whose bytes of the mask are read together
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int i = 0; i < tiles; i += 32 * kWords) {
    unsigned words = 0;  // lane w has the bits of word w
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const int mine = min(i + 32 * word + lane, tiles);
      const bool there = has_tile<C>(p, persistent_tile<C>(p, mine)) && mine < tiles;
      const unsigned all = __ballot_sync(0xffffffff, there);
      if (lane == word) words = all;
    }
    for (int word = 0; word < kWords; ++word) {
      const unsigned all = __shfl_sync(0xffffffff, words, word);
      for (; next < before + __popc(all); next += static_cast<int>(gridDim.x)) {
        unsigned bits = all;
        for (int skip = next - before; skip > 0; --skip) bits &= bits - 1;
        f(persistent_tile<C>(p, i + 32 * word + __ffs(static_cast<int>(bits)) - 1));
      }
      before += __popc(all);
    }
  }
}
template <class C>
ATTN_DEVICE void matmul_tiles_there(const MatmulParams& p, const MatmulMaps& maps) {
  using Kernel = Persistent<C>;
  specialise<C>(
      maps,
      [&](const HopperRing<C>& ring) {
        RingPlace<C> place;
        for_each_tile_there<C>(
            p, [&](const MatmulTile& t) { produce<C>(p, maps, ring, t, 0, p.k, place); });
      },
      [&](const HopperRing<C>& ring, int group) {
        RingPlace<C> place;
        float sum[C::kColumns / 2];
        for_each_tile_there<C>(p, [&](const MatmulTile& t) {
          consume<C>(p, ring, t, group, 0, p.k, place, sum);
          Kernel::store(p, maps, t, group, ring, sum);
        });
        Kernel::finish_stores();
      });
}

template <class C>
ATTN_DEVICE void matmul_persistent(const MatmulParams& p, const MatmulMaps& maps) {
  if constexpr (C::kMasked == 3) {
    matmul_tiles_there<C>(p, maps);
  } else {
    matmul_all_tiles<C>(p, maps);
  }
}

}  // namespace attn::device
