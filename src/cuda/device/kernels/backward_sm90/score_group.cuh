// The warpgroup of the Hopper backward kernel that computes P and dS of 64 queries, hands them on
// in shared memory, and stages dQ = dS K to be added to memory.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/score_step.cuh"
#include "kernels/backward_sm90/seen_sums.cuh"

namespace attn::device {

template <class C, class Expressions, class Slope>
struct BackwardSm90ScoreGroup : BackwardSm90ScoreStep<C, Expressions, Slope> {
  using Step = BackwardSm90ScoreStep<C, Expressions, Slope>;
  using Tiles = typename Step::Tiles;
  using Layout = typename Tiles::Layout;
  using Element = typename Tiles::Element;
  using Order = typename Layout::Order;
  using State = typename Step::State;
  using Step::dq_stage;
  using Step::products;
  using Step::scores;
  using Step::tiles;
  static constexpr unsigned kGroups = C::kScoreGroups;
  // dS is handed over when S of the next step was issued, so that dK does not hold up dQ and S, for
  // which the chain of one score warpgroup waits.
  static constexpr bool kHandOverLate = kGroups == 1;
  // When a place for dS is waited for: two score warpgroups, of which each has one, do it when they
  // need it.
  static constexpr bool kWaitLate = C::kStagesP == 1 || kGroups > 1;

  // Whatever step n waits for, and its LSE and D: done while dQ of the step before is computed,
  // when there is time.
  ATTN_DEVICE void prepare(State& c, unsigned n) const {
    tiles.q_ring().wait(n);
    c.flags = tiles.step_flags(n);
    c.q = uniform(tiles.descriptor(Layout::kQAt + Tiles::QueryRing::stage(n) * Layout::kQ, 0));
    c.d_o = tiles.descriptor(Layout::kOAt + Tiles::OutputRing::stage(n) * Layout::kO, 0);
    c.lse = scores.load_rows(Layout::kLseAt, Tiles::QueryRing::stage(n));
    tiles.o_ring().wait(n);
    c.d = scores.load_d(Tiles::OutputRing::stage(n));
    tiles.p_ring().wait_empty(n);
    if constexpr (!kWaitLate) tiles.ds_ring().wait_empty(n);
  }

  // dQ is complete and goes to its place; where it is not finite and some of it is hidden, it is
  // computed again, of the keys alone that the queries see.
  template <int kPart, int kCount>
  ATTN_DEVICE void stage_dq(const float (&dq)[kCount], bool mixed, unsigned n) const {
    if (mixed && __any_sync(~0u, zero_if_finite(dq) != 0)) {
      const unsigned ds = tiles.shared + static_cast<unsigned>(Step::ds_at(n));
      float again[kCount] = {};
      add_seen<Element, Tiles::kKeys>(
          again,
          [&](int i, int key) {
            return panel_element<Element>(ds, Layout::kRowPanel, scores.first_row() + 8 * i, key);
          },
          tiles.shared + static_cast<unsigned>(Layout::kKAt), Layout::kKeyPanel,
          kPart * Order::kMostColumns);
      dq_stage.template put<kPart>(again, n);
    } else {
      dq_stage.template put<kPart>(dq, n);
    }
  }
  // Makes and stages all parts of dQ from kPart on. The first part is made elsewhere, since it
  // takes the place of the rest of the state.
  template <int kPart>
  ATTN_DEVICE void finish_dq(State& c, bool mixed, unsigned n) const {
    if constexpr (kPart < Order::kParts) {
      float dq[Order::columns(kPart) / 2];
      products.template issue_dq<kPart>(dq, c);
      dq_stage.wait_for_place(n, kPart * Order::kPartPieces);
      wgmma_wait<0>();
      pin(dq);
      stage_dq<kPart>(dq, mixed, n);
      finish_dq<kPart + 1>(c, mixed, n);
    }
  }

  // Whether step n, of the other score warpgroup, is the last of its tile.
  ATTN_DEVICE bool is_last(unsigned n) const {
    tiles.wait_for_step(n);
    return Tiles::is(tiles.step_flags(n), BackwardStep::kLast);
  }

  // dQ of the last step of a tile, with which K and V are given back.
  ATTN_DEVICE void end_tile(State& c, unsigned n, bool mixed) const {
    if constexpr (kGroups == 1) tiles.v_ring().release(0);
    products.template issue_dq<0>(c.dq, c);
    dq_stage.wait_for_place(n, 0);
    wgmma_wait<0>();
    pin(c.dq);
    // K is read no more, but where dQ of a mixed step is not finite.
    const bool early = kGroups == 1 && Order::kParts == 1 && !mixed;
    if (early) tiles.k_ring().release(0);
    stage_dq<0>(c.dq, mixed, n);
    finish_dq<1>(c, mixed, n);
    if (kGroups == 1 && !early) tiles.k_ring().release(0);
  }
  // Issues dQ of step n, and S of the next step of the tile.
  ATTN_DEVICE void turn_to_next(State& c, unsigned n, bool mixed) const {
    products.template issue_dq<0>(c.dq, c);
    dq_stage.wait_for_place(n, 0);
    if constexpr (Order::kParts == 1) prepare(c, n + kGroups);
    // There is no room for S beside dQ with its operand in registers.
    wgmma_wait<0>();
    pin(c.dq);
    if constexpr (Order::kParts == 1) {
      products.issue_s(c);
      if (kHandOverLate) tiles.ds_ring().fill(n);
      stage_dq<0>(c.dq, mixed, n);
    } else {
      stage_dq<0>(c.dq, mixed, n);
      finish_dq<1>(c, mixed, n);
      prepare(c, n + kGroups);
      products.issue_s(c);
      if (kHandOverLate) tiles.ds_ring().fill(n);
    }
  }

  // Takes steps `group`, `group` + kGroups, ...: S -> P, dP -> dS, and dQ beside S of the next.
  ATTN_DEVICE void run(unsigned group) const {
    unsigned n = group;
    unsigned ended = kGroups > 1 && group > 0 && is_last(0) ? 1 : 0;  // before that of step n
    while (true) {
      tiles.q_ring().wait(n);
      if (Tiles::is(tiles.step_flags(n), BackwardStep::kEnd)) break;
      State c;
      this->begin_tile(c);
      // The order matters: the tile before may be a single step of the other score warpgroup, so
      // that the parity of K's barrier alone could mean K of two tiles ago. dO of this step was
      // asked for when the tile before had been given back, whose K was there by then.
      prepare(c, n);
      tiles.k_ring().wait(ended);
      products.issue_s(c);
      tiles.v_ring().wait(ended);
      while (true) {
        const bool mixed = Tiles::is(c.flags, BackwardStep::kMixed);
        // The next step of this warpgroup is of another tile.
        bool last = Tiles::is(c.flags, BackwardStep::kLast);
        if (last) ++ended;
        if constexpr (kGroups > 1) {
          if (is_last(n + 1)) {
            last = true;
            ++ended;
          }
        }
        wgmma_wait<0>();
        this->take_s(c, n);
        if (mixed) scores.apply_mask(c, n);
        c.d_o = uniform(c.d_o);  // asked for where it is used, so that it is scalar
        this->hand_over_p(c, n);
        this->take_dp(c, n);
        if constexpr (kWaitLate) tiles.ds_ring().wait_empty(n);
        scores.differentiate(c, mixed, Step::ds_at(n));
        if (!kHandOverLate || last) tiles.ds_ring().fill(n);
        if (last) {
          end_tile(c, n, mixed);
          n += kGroups;
          break;
        }
        turn_to_next(c, n, mixed);
        n += kGroups;
      }
    }
    if (kGroups > 1 && n > 0 && Tiles::is(tiles.step_flags(n - 1), BackwardStep::kEnd)) return;
    dq_stage.finish(n);
  }
};

}  // namespace attn::device
