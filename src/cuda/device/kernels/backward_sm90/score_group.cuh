// The warpgroup of the Hopper backward kernel that computes P and dS of 64 queries, hands them on
// in shared memory, and stages dQ = dS K to be added to memory.
#pragma once

#include "kernels/backward_sm90/scores.cuh"
#include "kernels/backward_sm90/seen_sums.cuh"
#include "ptx/wgmma.cuh"
#include "tile/accumulator.cuh"

namespace attn::device {

template <class C, class Expressions, class Slope>
struct BackwardSm90ScoreGroup : BackwardSm90Scores<C, Expressions, Slope> {
  using Base = BackwardSm90Scores<C, Expressions, Slope>;
  using Base::arrive, Base::descriptor, Base::first_row, Base::kKeys, Base::kQueries, Base::shared;
  using Base::wait, Base::warp;
  using typename Base::Element, typename Base::Layout, typename Base::OutputRing;
  using typename Base::QueryRing, typename Base::ScoreRing, typename Base::StagedRing;
  using typename Base::State, typename Base::StepRing;
  using Order = typename Layout::Order;
  static constexpr unsigned kGroups = C::kScoreGroups;
  // dP is asked for in the middle of the exponentials, when S is done, so that issuing it does not
  // hold them up.
  static constexpr int kLateProduct = kKeys / 32;
  // dS is handed over when S of the next step was issued, so that dK does not hold up dQ and S, for
  // which the chain of one score warpgroup waits.
  static constexpr bool kHandOverLate = kGroups == 1;
  // When a place for dS is waited for: two score warpgroups, of which each has one, do it when they
  // need it.
  static constexpr bool kWaitLate = C::kStagesP == 1 || kGroups > 1;

  // Whatever step n waits for, and its LSE and D: done while dQ of the step before is computed,
  // when there is time.
  __device__ __forceinline__ void prepare(State& c, unsigned n) const {
    wait(Layout::kFullQ, QueryRing::stage(n), QueryRing::parity(n));
    c.flags = this->step_flags(n);
    c.q = uniform(descriptor(Layout::kQAt + QueryRing::stage(n) * Layout::kQ, 0));
    c.d_o = descriptor(Layout::kOAt + OutputRing::stage(n) * Layout::kO, 0);
    c.lse = this->load_rows(Layout::kLseAt, QueryRing::stage(n));
    wait(Layout::kFullO, OutputRing::stage(n), OutputRing::parity(n));
    c.d = this->load_d(OutputRing::stage(n));
    wait(Layout::kEmptyP, ScoreRing::stage(n), ScoreRing::parity(n) ^ 1);
    if constexpr (!kWaitLate) wait_for_place(n);
  }
  __device__ __forceinline__ void wait_for_place(unsigned n) const {
    wait(Layout::kEmptyS, ScoreRing::stage(n), ScoreRing::parity(n) ^ 1);
  }

  // rows keys^T over kColumns columns: S from Q and K, or dP from dO and V. rows: a descriptor.
  template <int kColumns>
  __device__ __forceinline__ void issue_scores(float (&to)[kKeys / 2], unsigned rows,
                                               int keys_at) const {
    const unsigned keys = descriptor(keys_at, 0);
    pin(to);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < (kColumns + 15) / 16; ++step) {
      const int panel = step / 4, inside = step % 4 * 32;
      ProductSS<Element, kKeys>::run(to, rows + ((panel * Layout::kRowPanel + inside) >> 4),
                                     keys + ((panel * Layout::kKeyPanel + inside) >> 4), step > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_s(State& c) const {
    issue_scores<C::kHeadDim>(c.s, c.q, Layout::kKAt);
  }
  __device__ __forceinline__ void issue_dp(State& c) const {
    issue_scores<C::kHeadDimV>(c.dp, c.d_o, Layout::kVAt);
  }
  template <int kPart, int kCount>
  __device__ __forceinline__ void issue_dq(float (&dq)[kCount], State& c) const {
    const unsigned keys = descriptor(
        Layout::kKAt + kPart * Order::kMostColumns / 64 * Layout::kKeyPanel, Layout::kKeyPanel);
    pin(dq);
    pin(c.ds);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      ProductRS<Element, 2 * kCount>::run(dq, &c.ds[4 * step], keys + ((step * 2048) >> 4),
                                          step > 0);
    }
    wgmma_commit();
  }

  // Puts dQ to its places, piece by piece; the place of the first is waited for already.
  template <int kPart, int kCount>
  __device__ __forceinline__ void put_dq(const float (&dq)[kCount], unsigned n) const {
    constexpr int kWords = Order::kPieceWords, kPieces = (kCount / 4 + kWords - 1) / kWords;
    put_pieces<kPart, 0, kPieces>(dq, n);
  }
  // Puts the pieces of the part from kFirst on, before kEnd.
  template <int kPart, int kFirst, int kEnd, int kCount>
  __device__ __forceinline__ void put_pieces(const float (&dq)[kCount], unsigned n) const {
    constexpr int kWords = Order::kPieceWords;
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      const int piece = kPart * Order::kPartPieces + i;
      if (i > 0) wait_for_staging(n, piece);
      const int stage = StagedRing::stage(n * Layout::kOwnPieces + static_cast<unsigned>(piece));
      const unsigned to =
          shared + static_cast<unsigned>(Layout::kStagedAt + stage * Layout::kStaged +
                                         4 * Order::thread_at(piece));
#pragma unroll
      for (int j = kWords * i; j < kCount / 4 && j < kWords * (i + 1); ++j) {
        const float* const x = &dq[4 * j];
        store_shared(to + static_cast<unsigned>(4 * Order::kWord * (j - kWords * i)),
                     {__float_as_int(x[0]), __float_as_int(x[1]), __float_as_int(x[2]),
                      __float_as_int(x[3])});
      }
      arrive(Layout::kFullStaged, stage);
    }
  }
  // dQ is complete and goes to its place; where it is not finite and some of it is hidden, it is
  // computed again, of the keys alone that the queries see.
  template <int kPart, int kCount>
  __device__ __forceinline__ void stage_dq(const float (&dq)[kCount], bool mixed,
                                           unsigned n) const {
    if (mixed && __any_sync(~0u, zero_if_finite(dq) != 0)) {
      const unsigned ds =
          shared + static_cast<unsigned>(Layout::kSAt + ScoreRing::stage(n) * Layout::kP);
      float again[kCount] = {};
      add_seen<Element, kKeys>(
          again,
          [&](int i, int key) {
            return panel_element<Element>(ds, Layout::kRowPanel, first_row() + 8 * i, key);
          },
          shared + static_cast<unsigned>(Layout::kKAt), Layout::kKeyPanel,
          kPart * Order::kMostColumns);
      put_dq<kPart>(again, n);
    } else {
      put_dq<kPart>(dq, n);
    }
  }
  __device__ __forceinline__ void wait_for_staging(unsigned n, int piece) const {
    const unsigned at = n * Layout::kOwnPieces + static_cast<unsigned>(piece);
    wait(Layout::kEmptyStaged, StagedRing::stage(at), StagedRing::parity(at) ^ 1);
  }
  // Makes and stages all parts of dQ from kPart on. The first part is made elsewhere, since it
  // takes the place of the rest of the state.
  template <int kPart>
  __device__ __forceinline__ void finish_dq(State& c, bool mixed, unsigned n) const {
    if constexpr (kPart < Order::kParts) {
      float dq[Order::columns(kPart) / 2];
      issue_dq<kPart>(dq, c);
      wait_for_staging(n, kPart * Order::kPartPieces);
      wgmma_wait<0>();
      pin(dq);
      stage_dq<kPart>(dq, mixed, n);
      finish_dq<kPart + 1>(c, mixed, n);
    }
  }

  // Whether step n, of the other score warpgroup, is the last of its tile.
  __device__ __forceinline__ bool is_last(unsigned n) const {
    wait(Layout::kFullStep, StepRing::stage(n), StepRing::parity(n));
    return this->is(this->step_flags(n), BackwardStep::kLast);
  }

  // Waits for S, gives Q back, and applies the mask, or the tanh that the score is made of.
  __device__ __forceinline__ void take_s(State& c, unsigned n, bool mixed) const {
    wgmma_wait<0>();
    pin(c.s);
    arrive(Layout::kEmptyQ, QueryRing::stage(n));
    if constexpr (Slope::kIsOfTanh) this->take_tanh(c);
    if (mixed) this->apply_mask(c, n);
    c.d_o = uniform(c.d_o);  // asked for where it is used, so that it is scalar
  }
  // Waits for dP, gives dO back, and waits for a place for dS.
  __device__ __forceinline__ void take_dp(State& c, unsigned n) const {
    wgmma_wait<0>();
    pin(c.dp);
    arrive(Layout::kEmptyO, OutputRing::stage(n));
    if constexpr (kWaitLate) wait_for_place(n);
  }
  // dQ of the last step of a tile, with which K and V are given back.
  __device__ __forceinline__ void end_tile(State& c, unsigned n, bool mixed) const {
    if constexpr (kGroups == 1) arrive(Layout::kEmptyV, 0);
    issue_dq<0>(c.dq, c);
    wait_for_staging(n, 0);
    wgmma_wait<0>();
    pin(c.dq);
    // K is read no more, but where dQ of a mixed step is not finite.
    const bool early = kGroups == 1 && Order::kParts == 1 && !mixed;
    if (early) arrive(Layout::kEmptyK, 0);
    stage_dq<0>(c.dq, mixed, n);
    finish_dq<1>(c, mixed, n);
    if (kGroups == 1 && !early) arrive(Layout::kEmptyK, 0);
  }
  // Issues dQ of step n, and S of the next step of the tile.
  __device__ __forceinline__ void turn_to_next(State& c, unsigned n, bool mixed) const {
    issue_dq<0>(c.dq, c);
    wait_for_staging(n, 0);
    if constexpr (Order::kParts == 1) prepare(c, n + kGroups);
    // There is no room for S beside dQ with its operand in registers.
    wgmma_wait<0>();
    pin(c.dq);
    if constexpr (Order::kParts == 1) {
      issue_s(c);
      if (kHandOverLate) arrive(Layout::kFullS, ScoreRing::stage(n));
      stage_dq<0>(c.dq, mixed, n);
    } else {
      stage_dq<0>(c.dq, mixed, n);
      finish_dq<1>(c, mixed, n);
      prepare(c, n + kGroups);
      issue_s(c);
      if (kHandOverLate) arrive(Layout::kFullS, ScoreRing::stage(n));
    }
  }

  // Takes steps `group`, `group` + kGroups, ...: S -> P, dP -> dS, and dQ beside S of the next.
  __device__ __forceinline__ void run(unsigned group) const {
    unsigned n = group;
    unsigned tiles = kGroups > 1 && group > 0 && is_last(0) ? 1 : 0;  // before that of step n
    while (true) {
      wait(Layout::kFullQ, QueryRing::stage(n), QueryRing::parity(n));
      if (this->is(this->step_flags(n), BackwardStep::kEnd)) break;
      State c;
      if constexpr (C::kDropout && !BackwardSm90KeptBits<C>::kAhead) {
        c.random = dropout_of_warp<C::kRngState>(this->p);
      }
      // The order matters: the tile before may be a single step of the other score warpgroup, so
      // that the parity of K's barrier alone could mean K of two tiles ago. dO of this step was
      // asked for when the tile before had been given back, whose K was there by then.
      prepare(c, n);
      wait(Layout::kFullK, 0, tiles & 1);
      issue_s(c);
      wait(Layout::kFullV, 0, tiles & 1);
      while (true) {
        const bool mixed = this->is(c.flags, BackwardStep::kMixed);
        // The next step of this warpgroup is of another tile.
        bool last = this->is(c.flags, BackwardStep::kLast);
        if (last) ++tiles;
        if constexpr (kGroups > 1) {
          if (is_last(n + 1)) {
            last = true;
            ++tiles;
          }
        }
        take_s(c, n, mixed);
        this->exponentiate(c, n, Layout::kPAt + ScoreRing::stage(n) * Layout::kP, [&](int k) {
          if (k == kLateProduct) issue_dp(c);
        });
        arrive(Layout::kFullP, ScoreRing::stage(n));
        take_dp(c, n);
        this->differentiate(c, mixed, Layout::kSAt + ScoreRing::stage(n) * Layout::kP);
        if (!kHandOverLate || last) arrive(Layout::kFullS, ScoreRing::stage(n));
        if (last) {
          end_tile(c, n, mixed);
          n += kGroups;
          break;
        }
        turn_to_next(c, n, mixed);
        n += kGroups;
      }
    }
    if (kGroups > 1 && n > 0 && this->is(this->step_flags(n - 1), BackwardStep::kEnd)) return;
    finish(n);
  }
  // Tells whoever adds dQ that step n is the end.
  __device__ __forceinline__ void finish(unsigned n) const {
    wait_for_staging(n, 0);
    arrive(Layout::kFullStaged, StagedRing::stage(n * Layout::kOwnPieces));
  }
};

}  // namespace attn::device
