// What score warpgroups of the Hopper backward kernel do in a step, whichever schedule they have:
// S becomes P, beside dP = dO V^T (FlashAttention-2, algorithm 2, lines 11 to 13).
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/dq_stage.cuh"
#include "kernels/backward_sm90/score_products.cuh"

namespace attn::device {

template <class C, class Expressions, class Slope>
struct BackwardSm90ScoreStep {
  using Tiles = BackwardSm90Tiles<C>;
  using Layout = typename Tiles::Layout;
  using Element = typename Tiles::Element;
  using Order = typename Layout::Order;
  using Scores = BackwardSm90Scores<C, Expressions, Slope>;
  using Products = BackwardSm90ScoreProducts<C>;
  using State = BackwardSm90State<C>;

  const Tiles& tiles;
  Scores scores;
  Products products;
  BackwardSm90DqStage<C> dq_stage;

  // The offsets of P and of dS of step n.
  static ATTN_DEVICE int p_at(unsigned n) {
    return Layout::kPAt + Tiles::ScoreRing::stage(n) * Layout::kP;
  }
  static ATTN_DEVICE int ds_at(unsigned n) {
    return Layout::kSAt + Tiles::ScoreRing::stage(n) * Layout::kP;
  }

  // Where dropout is drawn here, what the steps of a tile begin with.
  ATTN_DEVICE void begin_tile(State& c) const {
    if constexpr (C::kDropout && !BackwardSm90KeptBits<C>::kAhead) {
      c.random = dropout_of_warp<C::kRngState>(tiles.p);
    }
  }
  // S is done: gives Q back, and makes the tanh that the score is made of. The mask comes next.
  ATTN_DEVICE void take_s(State& c, unsigned n) const {
    pin(c.s);
    tiles.q_ring().release(n);
    if constexpr (Slope::kIsOfTanh) scores.take_tanh(c);
  }
  // Hands P of S on to the warpgroup of dV. dP is asked for in between.
  ATTN_DEVICE void hand_over_p(State& c, unsigned n) const {
    scores.exponentiate(c, n, p_at(n), [&](int k) {
      if (k == Products::kLateProduct) products.issue_dp(c);
    });
    tiles.p_ring().fill(n);
  }
  // Waits for dP and gives dO back.
  ATTN_DEVICE void take_dp(State& c, unsigned n) const {
    wgmma_wait<0>();
    pin(c.dp);
    tiles.o_ring().release(n);
  }
};

}  // namespace attn::device
