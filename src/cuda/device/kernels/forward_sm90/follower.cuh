// Behind the consumers of the Hopper forward kernel, under a mask and where references are judged
// late: a warp that looks at each tile once it is stored. What it seldom does would cost the
// consumers registers.
#pragma once

#include "kernels/forward_sm90/tiles.cuh"
#include "softmax/visible_row.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Follower : ForwardSm90Tiles<C, Expressions> {
  using Base = ForwardSm90Tiles<C, Expressions>;
  using Base::barrier, Base::e, Base::get, Base::p;
  using typename Base::Layout, typename Base::TileRing, typename Base::Work;

  __device__ __forceinline__ void again(int slot) const {
    const Work w = get(slot);
    const QueryTile<C> tile{w.sequence, w.head, w.split, w.row0, w.begin, w.end};
#pragma unroll 1
    for (int warp = 0; warp < 4 * C::kConsumers; ++warp) {
      if (load_shared_byte(this->flag_address(slot, warp)) != 0) {
        write_visible_rows<C, Base::kJudgesLate>(p, e, tile, w.row0 + 16 * warp, 16);
      }
    }
  }

  // Rows of O that a hidden key made NaN are computed again; then the tile's place is free.
  __device__ __forceinline__ void follow_tiles() const {
    for (unsigned tiles = 0;; ++tiles) {
      const int slot = TileRing::stage(tiles);
      this->template wait_full<TileRing>(Layout::kFullTile, tiles);
      if (!Base::is_tile(get(slot))) return;
      this->template wait_full<TileRing>(Layout::kStoredTile, tiles);
      if (this->has_flags(slot)) again(slot);
      __syncwarp();
      this->arrive(Layout::kEmptyTile, slot);
    }
  }
};

}  // namespace attn::device
