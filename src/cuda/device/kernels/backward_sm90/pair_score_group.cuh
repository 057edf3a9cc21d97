// The score warpgroup where two blocks of threads share a tile of keys: each computes P and dS of
// its half of the keys, sends dS to the other, and computes its half of dQ's columns from dS of
// both halves.
//
// dQ of a step is computed beside the exponentials of the next, so that nobody waits for the
// other's dS as it is sent:
//
//   products    [S1][dQ0   ]      [dP1  ]        [S2][dQ1   ]
//   this group       [P1          ][stage dQ0][dS1, sent]  [P2
#pragma once

#include "kernels/backward_sm90/score_group.cuh"

namespace attn::device {

template <class C, class Expressions, class Slope>
struct BackwardSm90PairScoreGroup : BackwardSm90ScoreGroup<C, Expressions, Slope> {
  using Base = BackwardSm90ScoreGroup<C, Expressions, Slope>;
  using Base::arrive, Base::barrier, Base::descriptor, Base::first_row, Base::kKeys, Base::rank;
  using Base::shared, Base::wait, Base::warp;
  using typename Base::Element, typename Base::Layout, typename Base::Order;
  using typename Base::OutputRing, typename Base::QueryRing, typename Base::ScoreRing;
  using typename Base::State;
  static constexpr int kHalf = Layout::kOwnPieces / 2;  // pieces of dQ staged before dS

  // The offset of dS of step n: that of this block of threads, or of the other.
  static __device__ __forceinline__ int ds_at(unsigned n, bool other) {
    return (other ? Layout::kOtherSAt : Layout::kSAt) + ScoreRing::stage(n) * Layout::kP;
  }
  // Hands this warp's 16 rows of dS over, to dK's warpgroup and to the other block of threads.
  // kFullOther gets an arrival of each warp of its own block, and the bytes of the other's.
  __device__ __forceinline__ void hand_over_ds(unsigned n) const {
    constexpr unsigned kBytes = 16 * 128;
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      const int stage = ScoreRing::stage(n);
      const unsigned at = shared + kBytes * static_cast<unsigned>(warp());
      const unsigned ready = barrier(Layout::kFullOther, stage);
      bulk_send(cluster_address(at + static_cast<unsigned>(ds_at(n, true)), 1 - rank),
                at + static_cast<unsigned>(ds_at(n, false)), kBytes,
                cluster_address(ready, 1 - rank));
      mbarrier_arrive_expect(ready, kBytes);
      mbarrier_arrive(barrier(Layout::kFullS, stage));
    }
  }
  // Tells the other block of threads that its dS was read.
  __device__ __forceinline__ void give_back_other(unsigned n) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      mbarrier_arrive_cluster(
          cluster_address(barrier(Layout::kEmptyOther, ScoreRing::stage(n)), 1 - rank));
    }
  }
  // The place of dS here is free when dK's warpgroup has read dS of the step before, and the other
  // block of threads, which the copy engine read it for.
  __device__ __forceinline__ void wait_for_places(unsigned n) const {
    this->wait_for_place(n);
    wait(Layout::kEmptyOther, ScoreRing::stage(n), ScoreRing::parity(n) ^ 1);
  }

  __device__ __forceinline__ void issue_next_s(State& c, unsigned n) const {
    wait(Layout::kFullQ, QueryRing::stage(n), QueryRing::parity(n));
    c.flags = this->step_flags(n);
    c.q = uniform(descriptor(Layout::kQAt + QueryRing::stage(n) * Layout::kQ, 0));
    c.lse = this->load_rows(Layout::kLseAt, QueryRing::stage(n));
    this->issue_s(c);
  }
  __device__ __forceinline__ void prepare_dp(State& c, unsigned n) const {
    wait(Layout::kFullO, OutputRing::stage(n), OutputRing::parity(n));
    c.d_o = uniform(descriptor(Layout::kOAt + OutputRing::stage(n) * Layout::kO, 0));
    c.d = this->load_d(OutputRing::stage(n));
  }
  // The offset of K of this block of threads' own keys, in its columns of dQ.
  __device__ __forceinline__ int own_k_at() const {
    return Layout::kKAt + static_cast<int>(rank) * Layout::kOwnPanels * Layout::kKeyPanel;
  }
  // Issues dQ of this block of threads' columns, from the keys of both, its own first.
  __device__ __forceinline__ void issue_both_dq(State& c, unsigned n) const {
    wait(Layout::kFullS, ScoreRing::stage(n), ScoreRing::parity(n));
    wait(Layout::kFullOther, ScoreRing::stage(n), ScoreRing::parity(n));
    fence_proxy_async();
    const unsigned ds[2] = {uniform(descriptor(ds_at(n, false), 0)),
                            uniform(descriptor(ds_at(n, true), 0))};
    const unsigned keys[2] = {uniform(descriptor(own_k_at(), Layout::kKeyPanel)),
                              descriptor(Layout::kOtherKAt, Layout::kKeyPanel)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) {
        ProductST<Element, Order::columns(0)>::run(c.dq, ds[half] + ((step * 32) >> 4),
                                                   keys[half] + ((step * 2048) >> 4),
                                                   half > 0 || step > 0);
      }
    }
    wgmma_commit();
  }
  // Stages dQ as stage_dq does, but made of dS and K of both blocks of threads.
  __device__ __forceinline__ void stage_both_dq(const float (&dq)[Order::columns(0) / 2],
                                                bool mixed, unsigned n) const {
    this->wait_for_staging(n, 0);
    if (mixed && __any_sync(~0u, zero_if_finite(dq) != 0)) {
      float again[Order::columns(0) / 2] = {};
      const auto add = [&](bool other, int keys_at) {
        const unsigned ds = shared + static_cast<unsigned>(ds_at(n, other));
        add_seen<Element, kKeys>(
            again,
            [&](int i, int key) {
              return panel_element<Element>(ds, Layout::kRowPanel, first_row() + 8 * i, key);
            },
            shared + static_cast<unsigned>(keys_at), Layout::kKeyPanel, 0);
      };
      add(false, own_k_at());
      add(true, Layout::kOtherKAt);
      this->template put_dq<0>(again, n);
    } else {
      this->template put_dq<0>(dq, n);
    }
    give_back_other(n);
  }

  // Waits for dP, gives dO back, and V with that of a tile's last step.
  __device__ __forceinline__ void take_dp(State& c, unsigned n, bool last) const {
    wgmma_wait<0>();
    pin(c.dp);
    arrive(Layout::kEmptyO, OutputRing::stage(n));
    if (last) arrive(Layout::kEmptyV, 0);
    wait_for_places(n);
  }
  // The last dQ of a tile, whose K is given back.
  __device__ __forceinline__ void end_tile(State& c, unsigned n, bool mixed) const {
    wgmma_wait<0>();
    pin(c.dq);
    if (!mixed) arrive(Layout::kEmptyK, 0);  // read no more, but where dQ is not finite
    stage_both_dq(c.dq, mixed, n);
    if (mixed) arrive(Layout::kEmptyK, 0);
  }

  __device__ __forceinline__ void run() const {
    unsigned n = 0;
    unsigned tiles = 0;  // before that of step n
    while (true) {
      wait(Layout::kFullQ, QueryRing::stage(n), QueryRing::parity(n));
      if (this->is(this->step_flags(n), BackwardStep::kEnd)) break;
      State c;
      if constexpr (C::kDropout && !BackwardSm90KeptBits<C>::kAhead) {
        c.random = dropout_of_warp<C::kRngState>(this->p);
      }
      wait(Layout::kFullK, 0, tiles & 1);
      issue_next_s(c, n);
      wgmma_commit();  // in place of dQ of a step before
      wait(Layout::kFullV, 0, tiles++ & 1);
      bool first = true, mixed_before = false, mixed, last;
      while (true) {
        mixed = this->is(c.flags, BackwardStep::kMixed);
        last = this->is(c.flags, BackwardStep::kLast);
        wgmma_wait<1>();
        pin(c.s);
        arrive(Layout::kEmptyQ, QueryRing::stage(n));
        if constexpr (Slope::kIsOfTanh) this->take_tanh(c);
        if (mixed) this->apply_mask(c, n);
        wait(Layout::kEmptyP, ScoreRing::stage(n), ScoreRing::parity(n) ^ 1);
        prepare_dp(c, n);
        this->exponentiate(c, n, Layout::kPAt + ScoreRing::stage(n) * Layout::kP, [&](int k) {
          if (k == Base::kLateProduct) this->issue_dp(c);
        });
        arrive(Layout::kFullP, ScoreRing::stage(n));
        wgmma_wait<1>();
        pin(c.dq);
        const bool split = !first && !mixed_before;
        if (split) {
          give_back_other(n - 1);
          this->wait_for_staging(n - 1, 0);
          this->template put_pieces<0, 0, kHalf>(c.dq, n - 1);
        } else if (!first) {
          stage_both_dq(c.dq, mixed_before, n - 1);
        }
        take_dp(c, n, last);
        this->differentiate(c, mixed, ds_at(n, false));
        pin(c.dq);
        // The fence of what is sent would hold up S. A branch around S alone would make all
        // products wait for each other.
        const auto hand_over = [&] {
          hand_over_ds(n);
          if (split) this->template put_pieces<0, kHalf, Layout::kOwnPieces>(c.dq, n - 1);
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
    this->finish(n);
  }
};

}  // namespace attn::device
