// The score warpgroup where two blocks of threads share a tile of keys: each computes P and dS of
// its half of the keys, sends dS to the other, and computes its half of dQ's columns from dS of
// both halves.
//
// dQ of a step is computed beside the exponentials of the next, so that nobody waits for the
// other's dS as it is sent:
//
//   products    [S1][dQ0   ]      [dP1  ]        [S2][dQ1   ]
//   this group       [P1          ][stage dQ0][dS1, sent]  [P2
//
// No deadlock: dS(n) needs the other's dQ(n - 1), and dQ(n) the other's dS(n). Neither leaves
// before both are at the end, since an arrival must not reach shared memory that is gone.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/score_step.cuh"
#include "kernels/backward_sm90/seen_sums.cuh"
#include "tile/matrix_descriptor.cuh"

namespace attn::device {

template <class C, class Expressions, class Slope>
struct BackwardSm90PairScoreGroup : BackwardSm90ScoreStep<C, Expressions, Slope> {
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
  static constexpr int kHalf = Layout::kOwnPieces / 2;  // pieces of dQ staged before dS

  // The offset of dS of step n: that of this block of threads, or of the other.
  static ATTN_DEVICE int ds_at(unsigned n, bool other) {
    return other ? Layout::kOtherSAt + Tiles::ScoreRing::stage(n) * Layout::kP : Step::ds_at(n);
  }
  // Hands this warp's 16 rows of dS over, to dK's warpgroup and to the other block of threads.
  // kFullOther gets an arrival of each warp of its own block, and the bytes of the other's.
  ATTN_DEVICE void hand_over_ds(unsigned n) const {
    constexpr unsigned kBytes = 16 * 128;
    fence_proxy_async();
    __syncwarp();
    if (elect_one()) {
      const unsigned at = tiles.shared + kBytes * static_cast<unsigned>(scores.warp());
      const unsigned ready = tiles.other_ring().full(n);
      bulk_send(cluster_address(at + static_cast<unsigned>(ds_at(n, true)), 1 - tiles.rank),
                at + static_cast<unsigned>(ds_at(n, false)), kBytes,
                cluster_address(ready, 1 - tiles.rank));
      mbarrier_arrive_expect(ready, kBytes);
      mbarrier_arrive(tiles.ds_ring().full(n));
    }
  }
  // Tells the other block of threads that its dS was read.
  ATTN_DEVICE void give_back_other(unsigned n) const {
    __syncwarp();
    if (elect_one()) {
      mbarrier_arrive_cluster(cluster_address(tiles.other_ring().empty(n), 1 - tiles.rank));
    }
  }
  // The place of dS here is free when dK's warpgroup has read dS of the step before, and the other
  // block of threads, which the copy engine read it for.
  ATTN_DEVICE void wait_for_places(unsigned n) const {
    tiles.ds_ring().wait_empty(n);
    tiles.other_ring().wait_empty(n);
  }

  ATTN_DEVICE void issue_next_s(State& c, unsigned n) const {
    tiles.q_ring().wait(n);
    c.flags = tiles.step_flags(n);
    c.q = uniform(tiles.descriptor(Layout::kQAt + Tiles::QueryRing::stage(n) * Layout::kQ, 0));
    c.lse = scores.load_rows(Layout::kLseAt, Tiles::QueryRing::stage(n));
    products.issue_s(c);
  }
  ATTN_DEVICE void prepare_dp(State& c, unsigned n) const {
    tiles.o_ring().wait(n);
    c.d_o = uniform(tiles.descriptor(Layout::kOAt + Tiles::OutputRing::stage(n) * Layout::kO, 0));
    c.d = scores.load_d(Tiles::OutputRing::stage(n));
  }
  // The offset of K of this block of threads' own keys, in its columns of dQ.
  ATTN_DEVICE int own_k_at() const {
    return Layout::kKAt + static_cast<int>(tiles.rank) * Layout::kOwnPanels * Layout::kKeyPanel;
  }
  // Issues dQ of this block of threads' columns, from the keys of both, its own first.
  ATTN_DEVICE void issue_both_dq(State& c, unsigned n) const {
    tiles.ds_ring().wait(n);
    tiles.other_ring().wait(n);
    fence_proxy_async();
    const unsigned ds[2] = {uniform(tiles.descriptor(ds_at(n, false), 0)),
                            uniform(tiles.descriptor(ds_at(n, true), 0))};
    const unsigned keys[2] = {uniform(tiles.descriptor(own_k_at(), Layout::kKeyPanel)),
                              tiles.descriptor(Layout::kOtherKAt, Layout::kKeyPanel)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int step = 0; step < Tiles::kKeys / 16; ++step) {
        ProductST<Element, Order::columns(0)>::run(c.dq, ds[half] + descriptor_step(step * 32),
                                                   keys[half] + descriptor_step(step * 2048),
                                                   half > 0 || step > 0);
      }
    }
    wgmma_commit();
  }
  // Stages dQ as stage_dq does, but made of dS and K of both blocks of threads.
  ATTN_DEVICE void stage_both_dq(const float (&dq)[Order::columns(0) / 2], bool mixed,
                                 unsigned n) const {
    dq_stage.wait_for_place(n, 0);
    if (mixed && __any_sync(~0u, zero_if_finite(dq) != 0)) {
      float again[Order::columns(0) / 2] = {};
      const auto add = [&](bool other, int keys_at) {
        const unsigned ds = tiles.shared + static_cast<unsigned>(ds_at(n, other));
        add_seen<Element, Tiles::kKeys>(
            again,
            [&](int i, int key) {
              return panel_element<Element>(ds, Layout::kRowPanel, scores.first_row() + 8 * i, key);
            },
            tiles.shared + static_cast<unsigned>(keys_at), Layout::kKeyPanel, 0);
      };
      add(false, own_k_at());
      add(true, Layout::kOtherKAt);
      dq_stage.template put<0>(again, n);
    } else {
      dq_stage.template put<0>(dq, n);
    }
    give_back_other(n);
  }

  // The last dQ of a tile, whose K is given back.
  ATTN_DEVICE void end_tile(State& c, unsigned n, bool mixed) const {
    wgmma_wait<0>();
    pin(c.dq);
    if (!mixed) tiles.k_ring().release(0);  // read no more, but where dQ is not finite
    stage_both_dq(c.dq, mixed, n);
    if (mixed) tiles.k_ring().release(0);
  }

  ATTN_DEVICE void run() const {
    unsigned n = 0;
    unsigned ended = 0;  // before that of step n
    while (true) {
      tiles.q_ring().wait(n);
      if (Tiles::is(tiles.step_flags(n), BackwardStep::kEnd)) break;
      State c;
      this->begin_tile(c);
      tiles.k_ring().wait(ended);
      issue_next_s(c, n);
      wgmma_commit();  // in place of dQ of a step before
      tiles.v_ring().wait(ended++);
      bool first = true, mixed_before = false, mixed, last;
      while (true) {
        mixed = Tiles::is(c.flags, BackwardStep::kMixed);
        last = Tiles::is(c.flags, BackwardStep::kLast);
        wgmma_wait<1>();
        this->take_s(c, n);
        if (mixed) scores.apply_mask(c, n);
        tiles.p_ring().wait_empty(n);
        prepare_dp(c, n);
        this->hand_over_p(c, n);
        wgmma_wait<1>();
        pin(c.dq);
        const bool split = !first && !mixed_before;
        if (split) {
          give_back_other(n - 1);
          dq_stage.wait_for_place(n - 1, 0);
          dq_stage.template put_pieces<0, 0, kHalf>(c.dq, n - 1);
        } else if (!first) {
          stage_both_dq(c.dq, mixed_before, n - 1);
        }
        this->take_dp(c, n);
        if (last) tiles.v_ring().release(0);
        wait_for_places(n);
        scores.differentiate(c, mixed, ds_at(n, false));
        pin(c.dq);
        // The fence of what is sent would hold up S. A branch around S alone would make all
        // products wait for each other.
        const auto hand_over = [&] {
          hand_over_ds(n);
          if (split) dq_stage.template put_pieces<0, kHalf, Layout::kOwnPieces>(c.dq, n - 1);
        };
        if (last) {
          hand_over();
          wgmma_fence();
          issue_both_dq(c, n);
          break;
        }
        issue_next_s(c, n + 1);
        hand_over();
        issue_both_dq(c, n);
        first = false;
        mixed_before = mixed;
        ++n;
      }
      end_tile(c, n, mixed);
      ++n;
    }
    dq_stage.finish(n);
  }
};

}  // namespace attn::device
