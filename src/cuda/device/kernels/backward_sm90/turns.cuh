// How the Hopper backward kernel keeps to the order of the tiles (schedule/dq_turns.cuh). A release
// takes some 2000 clocks, in which the next piece of dQ is to be on its way: so it is not the
// thread that adds dQ that releases. Where a block of threads has a tile for itself a thread of its
// own keeps the turns; in a pair, whose steps are longer, the thread that makes steps has the time.
#pragma once

#include "kernels/backward_sm90/tiles.cuh"
#include "ptx/turn.cuh"
#include "schedule/dq_turns.cuh"

namespace attn::device {

template <class C>
struct BackwardTurns : BackwardSm90Tiles<C> {
  using Base = BackwardSm90Tiles<C>;
  using Base::p;
  using typename Base::Layout, typename Base::TurnRing;
  static constexpr int kNone = -1;  // a turn of a tile that nobody sees has no word

  // What is known of a turn that was taken lies in shared memory until it is passed on: its word,
  // and what that becomes.
  __device__ __forceinline__ unsigned turn_address(unsigned turn) const {
    return this->shared + static_cast<unsigned>(Layout::kTurnAt + 16 * TurnRing::stage(turn));
  }
  __device__ __forceinline__ void keep(unsigned turn, const BackwardStep& s, unsigned word) const {
    const bool unseen = (s.flags & BackwardStep::kUnseen) != 0;
    store_shared(turn_address(turn),
                 {static_cast<int>(word), unseen ? kNone : s.key0 / C::kBlockM + 1, 0, 0});
  }
  // After a release.
  __device__ __forceinline__ void set(unsigned turn) const {
    const Int4 x = load_shared(turn_address(turn));
    if (x.y != kNone) set_word(DqTurns<C>::passed(p) + static_cast<unsigned>(x.x), x.y);
  }
  // Of a step: that of its columns from 128 * part on. A place has dQ of 2 KB at least: no memory
  // holds 2^32 words.
  static __device__ __forceinline__ unsigned word_of(const BackwardStep& s, unsigned part) {
    return static_cast<unsigned>(s.place) * DqTurns<C>::kOfPlace + part;
  }
  static __device__ __forceinline__ unsigned comes_after(const BackwardStep& s) {
    return static_cast<unsigned>(s.flags) >> BackwardStep::kAfterShift;
  }
};

// A thread of its own takes turns ahead of the thread that adds dQ, and passes each on when that
// thread says that the piece is added.
template <class C>
struct BackwardTurnKeeper : BackwardTurns<C> {
  using Base = BackwardTurns<C>;
  using Base::barrier, Base::p, Base::wait;
  using typename Base::Layout, typename Base::StepRing, typename Base::TurnRing;

  __device__ __forceinline__ bool is_over(unsigned turn) const {
    return mbarrier_try(barrier(Layout::kEmptyTurn, TurnRing::stage(turn)), TurnRing::parity(turn));
  }

  // Passes on all turns that are over.
  __device__ __forceinline__ void pass(unsigned& passed, unsigned taken) const {
    const unsigned first = passed;
    while (passed < taken && is_over(passed)) ++passed;
    if (first == passed) return;
    release_words();
    for (unsigned turn = first; turn < passed; ++turn) this->set(turn);
  }
  // Steps are made far ahead, so who makes them keeps nobody waiting. No turn is waited for while
  // one that is over is held, so that nobody waits for a thread that waits.
  __device__ __forceinline__ void run() const {
    unsigned taken = 0, passed = 0;  // turns
    unsigned n = 0;                  // step of the next
    int piece = 0;
    bool end = false;
    while (true) {
      pass(passed, taken);
      const bool full = taken - passed == Layout::kTurns;
      const bool made =
          !end && mbarrier_try(barrier(Layout::kFullStep, StepRing::stage(n)), StepRing::parity(n));
      if (full || !made) {
        if (taken > passed) {
          wait(Layout::kEmptyTurn, TurnRing::stage(passed), TurnRing::parity(passed));
        } else if (end) {
          return;
        } else {
          wait(Layout::kFullStep, StepRing::stage(n), StepRing::parity(n));
        }
        continue;
      }
      const BackwardStep s = this->step(n);
      if ((s.flags & BackwardStep::kEnd) != 0) {
        end = true;
        continue;
      }
      const unsigned word = Base::word_of(s, static_cast<unsigned>(piece));
      if ((s.flags & BackwardStep::kUnseen) == 0 &&
          !wait_for_word_or_phase(DqTurns<C>::passed(p) + word, Base::comes_after(s),
                                  barrier(Layout::kEmptyTurn, TurnRing::stage(passed)),
                                  TurnRing::parity(passed))) {
        continue;
      }
      this->keep(taken, s, word);
      mbarrier_arrive(barrier(Layout::kFullTurn, TurnRing::stage(taken++)));
      if (++piece == Layout::kOwnPieces) {
        piece = 0;
        ++n;
      }
    }
  }
};

// In a block of threads of a pair the thread that adds dQ takes its turn, one a step, and says when
// it is over.
template <class C>
struct BackwardPairTurns : BackwardTurns<C> {
  using Base = BackwardTurns<C>;
  using Base::barrier, Base::p, Base::wait;
  using typename Base::Layout, typename Base::StepRing, typename Base::TurnRing;

  // Returns when the turn of step n has come. All before it are over.
  __device__ __forceinline__ void take(unsigned n) const {
    wait(Layout::kFullStep, StepRing::stage(n), StepRing::parity(n));
    const BackwardStep s = this->step(n);
    if ((s.flags & BackwardStep::kEnd) != 0) return;
    const unsigned word = Base::word_of(s, this->rank);
    if ((s.flags & BackwardStep::kUnseen) == 0) {
      wait_for_turn(DqTurns<C>::passed(p) + word, Base::comes_after(s));
      fence_proxy_async_global();
    }
    wait(Layout::kEmptyTurn, TurnRing::stage(n), TurnRing::parity(n) ^ 1);
    this->keep(n, s, word);
  }
  // What was to be added in the turn is.
  __device__ __forceinline__ void end(unsigned n) const {
    mbarrier_arrive(barrier(Layout::kFullTurn, TurnRing::stage(n)));
  }
};

// The thread that makes steps passes the turns of a pair on while it waits. It waits for no other
// pair, so neither does a turn that is over.
template <class C, bool kPasses = C::kOrdered && (C::kCluster > 1)>
class BackwardPairTurnsPassed {
 public:
  __device__ __forceinline__ explicit BackwardPairTurnsPassed(const BackwardSm90Tiles<C>& tiles)
      : tiles_(tiles) {}
  // BackwardSm90Tiles::wait, in which turns are passed on.
  __device__ __forceinline__ void wait(int first, int stage, unsigned parity) {
    tiles_.wait(first, stage, parity);
  }
  // Until the turns of so many steps are passed on.
  __device__ __forceinline__ void finish(unsigned) {}

 private:
  const BackwardSm90Tiles<C>& tiles_;
};

template <class C>
class BackwardPairTurnsPassed<C, true> : BackwardTurns<C> {
 public:
  using Base = BackwardTurns<C>;
  using typename Base::Layout, typename Base::TurnRing;
  __device__ __forceinline__ explicit BackwardPairTurnsPassed(const BackwardSm90Tiles<C>& tiles)
      : Base{tiles} {}
  __device__ __forceinline__ void wait(int first, int stage, unsigned parity) {
    const unsigned waited_for = this->barrier(first, stage);
    while (true) {
      const bool ready = mbarrier_try(waited_for, parity);
      // Steps go first, unless a turn has been over for most of a step: so the next one is, too.
      if (is_over(ready ? passed_ + 1 : passed_)) {
        pass();
      } else if (ready) {
        return;
      } else {
        mbarrier_wait_either(waited_for, parity, over(passed_), TurnRing::parity(passed_));
      }
    }
  }
  __device__ __forceinline__ void finish(unsigned steps) {
    while (passed_ < steps) {
      mbarrier_wait(over(passed_), TurnRing::parity(passed_));
      pass();
    }
  }

 private:
  __device__ __forceinline__ unsigned over(unsigned turn) const {
    return this->barrier(Layout::kFullTurn, TurnRing::stage(turn));
  }
  __device__ __forceinline__ bool is_over(unsigned turn) const {
    return mbarrier_try(over(turn), TurnRing::parity(turn));
  }
  // Passes on all turns that are over.
  __device__ __forceinline__ void pass() {
    unsigned end = passed_;
    while (is_over(end)) ++end;
    release_words();
    for (; passed_ < end; ++passed_) {
      this->set(passed_);
      mbarrier_arrive(this->barrier(Layout::kEmptyTurn, TurnRing::stage(passed_)));
    }
  }

  unsigned passed_ = 0;
};

}  // namespace attn::device
