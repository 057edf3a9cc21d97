// The places in shared memory through which dQ leaves a score warpgroup of the Hopper backward
// kernel, piece by piece, to be added to memory by a producer.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "kernels/backward_sm90/tiles.cuh"

namespace attn::device {

template <class C>
struct BackwardSm90DqStage {
  using Tiles = BackwardSm90Tiles<C>;
  using Layout = typename Tiles::Layout;
  using Order = typename Layout::Order;

  const Tiles& tiles;

  // Waits until the place of a piece of step n is free.
  ATTN_DEVICE void wait_for_place(unsigned n, int piece) const {
    tiles.staged_ring().wait_empty(n * Layout::kOwnPieces + static_cast<unsigned>(piece));
  }
  // Puts a part of dQ to its places, piece by piece; the place of the first is waited for already.
  template <int kPart, int kCount>
  ATTN_DEVICE void put(const float (&dq)[kCount], unsigned n) const {
    constexpr int kWords = Order::kPieceWords, kPieces = divide_up<kWords>(kCount / 4);
    put_pieces<kPart, 0, kPieces>(dq, n);
  }
  // Puts the pieces of the part from kFirst on, before kEnd.
  template <int kPart, int kFirst, int kEnd, int kCount>
  ATTN_DEVICE void put_pieces(const float (&dq)[kCount], unsigned n) const {
    constexpr int kWords = Order::kPieceWords;
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      const int piece = kPart * Order::kPartPieces + i;
      if (i > 0) wait_for_place(n, piece);
      const unsigned use = n * Layout::kOwnPieces + static_cast<unsigned>(piece);
      const int stage = Tiles::StagedRing::stage(use);
      const unsigned to =
          tiles.shared + static_cast<unsigned>(Layout::kStagedAt + stage * Layout::kStaged +
                                               4 * Order::thread_at(tiles.thread, piece));
#pragma unroll
      for (int j = kWords * i; j < kCount / 4 && j < kWords * (i + 1); ++j) {
        const float* const x = &dq[4 * j];
        store_shared(to + static_cast<unsigned>(4 * Order::kWord * (j - kWords * i)),
                     {__float_as_int(x[0]), __float_as_int(x[1]), __float_as_int(x[2]),
                      __float_as_int(x[3])});
      }
      tiles.staged_ring().fill(use);
    }
  }
  // Tells whoever adds dQ that step n is the end.
  ATTN_DEVICE void finish(unsigned n) const {
    wait_for_place(n, 0);
    tiles.staged_ring().fill(n * Layout::kOwnPieces);
  }
};

}  // namespace attn::device
