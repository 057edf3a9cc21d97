// What all warps of the Hopper backward kernel share: which tiles a block of threads works on,
// which blocks of queries a tile sees, and rings of barriers.
#pragma once

#include "backward_sm90/layout.cuh"
#include "ptx.cuh"
#include "ptx/warpgroup.cuh"

namespace attn::device {

// Which place of a ring use n has, and the parity of its phase: a counter is all there is to keep.
template <int kStages>
struct Ring {
  static __device__ __forceinline__ int stage(unsigned n) { return static_cast<int>(n % kStages); }
  static __device__ __forceinline__ unsigned parity(unsigned n) { return n / kStages & 1; }
};

template <class C>
struct BackwardSm90Tiles {
  using Layout = BackwardSm90Layout<C>;
  const BackwardParams& p;
  const BackwardMaps& maps;
  unsigned shared;

  // kBlockN keys of a head, and the blocks of queries that see some of them.
  struct Tile {
    int pair, key_block;  // pair: batch * heads + head
    int first, count;     // blocks of queries: those from `first` on, wrapping to `least`
    int least;
  };
  __device__ __forceinline__ Tile tile_at(int index) const {
    const int together = p.heads_at_once * p.key_blocks;
    const int group = index / together, inside = index % together;
    const int group_first = group * p.heads_at_once;
    const int group_heads = min(p.heads_at_once, p.batch * p.heads - group_first);
    Tile t;
    if constexpr (C::kCausal) {  // the longest first
      t.key_block = inside / group_heads;
      t.pair = group_first + inside % group_heads;
    } else {
      t.pair = group_first + inside / p.key_blocks;
      t.key_block = inside % p.key_blocks;
    }
    t.least = C::kCausal ? t.key_block * C::kBlockN / C::kBlockM : 0;
    t.first = C::kCausal ? t.least
                         : static_cast<int>(static_cast<unsigned>(t.key_block * p.skew) %
                                            static_cast<unsigned>(p.query_blocks));
    t.count = p.query_blocks - t.least;
    return t;
  }
  __device__ __forceinline__ int next_block(const Tile& t, int block) const {
    return block + 1 == p.query_blocks ? t.least : block + 1;
  }
  // Calls f(tile) for each tile of this block of threads.
  template <class F>
  __device__ __forceinline__ void for_each_tile(F f) const {
    int mine = static_cast<int>(blockIdx.x) * p.most_tiles;
    // Said to be unknown, so that the compiler does not work out the first tile before warpgroups
    // part.
    asm volatile("" : "+r"(mine));
    for (const int* at = p.tiles + mine; *at >= 0; ++at) f(tile_at(uniform(*at)));
  }

  __device__ __forceinline__ void wait(int at, int stage, unsigned parity) const {
    const unsigned barrier = shared + static_cast<unsigned>(at + 8 * stage);
    if constexpr (C::kBounded) {
      wait_or_trap(barrier, parity, p.stuck);
    } else {
      mbarrier_wait(barrier, parity);
    }
  }
  // Low word of the descriptor of the tile at a place (ptx/wgmma.cuh), whose panels `leading` bytes
  // apart matter where the product runs along its columns. Warps agree on the place, so no thread
  // is asked.
  __device__ __forceinline__ unsigned descriptor(int at, int leading) const {
    return (shared + static_cast<unsigned>(at)) >> 4 | static_cast<unsigned>(leading) >> 4 << 16;
  }
  // One arrival a warp.
  __device__ __forceinline__ void arrive(int at, int stage) const {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared + static_cast<unsigned>(at + 8 * stage));
  }
};

}  // namespace attn::device
