// A warp behind the consumers of the Hopper forward kernel, under a mask and where references are
// judged late, that looks at each tile once it is stored. What it seldom does would cost the
// consumers registers.
#pragma once

#include "device.cuh"
#include "kernels/forward_sm90/tiles.cuh"
#include "softmax/visible_row.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Follower {
  using Tiles = ForwardSm90Tiles<C, Expressions>;

  const Tiles& tiles;

  ATTN_DEVICE void again(int slot) const {
    const typename Tiles::Work w = tiles.get(slot);
    const QueryTile<C> tile{w.sequence, w.head, w.split, w.row0, w.begin, w.end};
#pragma unroll 1
    for (int warp = 0; warp < 4 * C::kConsumers; ++warp) {
      if (load_shared_byte(tiles.flag_address(slot, warp)) != 0) {
        write_visible_rows(tiles.p, tiles.e, tile, w.row0 + 16 * warp, 16);
      }
    }
  }

  // Waits until tile n is stored. Computes again rows of O that a hidden key made NaN, or has the
  // tile computed again first, as they may be lost; then the tile's place is free.
  ATTN_DEVICE void follow(unsigned n) const {
    const auto ring = tiles.tile_ring();
    const int slot = ring.place(n);
    tiles.stored_ring().wait(n);
    if (tiles.has_flags(slot)) {
      if (Tiles::kJudgesLate && tiles.trusts_references() != 0) {
        tiles.add_lost(slot);
      } else if constexpr (C::kHidesKeys) {
        again(slot);
      }
    }
    __syncwarp();
    ring.release(n);
  }
  ATTN_DEVICE void follow_tiles() const {
    const auto ring = tiles.tile_ring();
    for (unsigned n = 0;; ++n) {
      ring.wait(n);
      if (!Tiles::is_tile(tiles.get(ring.place(n)))) return;
      follow(n);
    }
  }
};

}  // namespace attn::device
