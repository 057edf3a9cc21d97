// What the warpgroups of the Hopper backward kernel that keep dV, or dK, know of a step: the rows
// and scores that are multiplied, dO and P, or Q and dS.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/seen_sums.cuh"
#include "kernels/backward_sm90/tiles.cuh"

namespace attn::device {

template <class C, bool kOfV>
struct BackwardSm90GradientSide {
  using Tiles = BackwardSm90Tiles<C>;
  using Layout = typename Tiles::Layout;
  using Element = typename Tiles::Element;
  using G = BackwardSide<C, kOfV>;
  using RowRing = typename G::RowRing;
  using ScoreRing = typename Tiles::ScoreRing;
  static constexpr int kBarrier = kOfV ? 1 : 2;

  const Tiles& tiles;

  ATTN_DEVICE RowRing row_ring() const { return {tiles.shared, G::kFullRows, G::kEmptyRows}; }
  ATTN_DEVICE ScoreRing score_ring() const {
    return {tiles.shared, G::kFullScores, G::kEmptyScores};
  }
  // Where these lie, from `shared` on.
  static ATTN_DEVICE int scores_at(unsigned n) {
    return G::kScoresAt + ScoreRing::stage(n) * Layout::kP;
  }
  static ATTN_DEVICE int rows_at(unsigned n) {
    return G::kRowsAt + RowRing::stage(n) * G::kRowsBytes;
  }

  // The flags of step n, when its rows are there.
  ATTN_DEVICE int wait_for_rows(unsigned n) const {
    row_ring().wait(n);
    return tiles.step_flags(n);
  }
  // Whether a row of step n has what a product would spread to keys that do not see it.
  ATTN_DEVICE bool is_special(unsigned n, int flags) const {
    bool special = false;
    if (Tiles::is(flags, BackwardStep::kMixed)) {
      const unsigned rows = tiles.shared + static_cast<unsigned>(rows_at(n));
      int used = Tiles::kQueries;
      if constexpr (C::kPackedQ || C::kUsedQ) {
        const BackwardStep s = tiles.step(n);
        used = s.length_q - s.query0;
      }
      special = barrier_or(kBarrier, 128,
                           any_special<Element, Tiles::kQueries>(rows, G::kRowsBytes, used));
    }
    return special;
  }
  ATTN_DEVICE void wait_for_scores(unsigned n) const { score_ring().wait(n); }
  ATTN_DEVICE void release(unsigned n) const {
    score_ring().release(n);
    row_ring().release(n);
  }
  // What finished sums are multiplied by.
  ATTN_DEVICE float factor() const {
    const bool drops = C::kDropout && (kOfV || C::kScalesLate);
    return (kOfV ? 1.f : tiles.p.scale) * (drops ? tiles.p.dropout_scale : 1.f);
  }
};

}  // namespace attn::device
