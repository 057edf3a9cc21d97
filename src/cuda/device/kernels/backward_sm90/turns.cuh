// The thread of the Hopper backward kernel that keeps to the order of the tiles
// (schedule/dq_turns.cuh). It takes turns ahead of the thread that adds dQ, a turn a piece, and
// passes each on when that thread says that the piece is added: a release takes some 2000 clocks,
// in which the next piece is on its way.
#pragma once

#include "kernels/backward_sm90/tiles.cuh"
#include "ptx/turn.cuh"
#include "schedule/dq_turns.cuh"

namespace attn::device {

template <class C>
struct BackwardTurns : BackwardSm90Tiles<C> {
  using Base = BackwardSm90Tiles<C>;
  using Base::barrier, Base::p, Base::wait;
  using typename Base::Layout, typename Base::StepRing, typename Base::TurnRing;

  __device__ __forceinline__ bool is_over(unsigned turn) const {
    return mbarrier_try(barrier(Layout::kEmptyTurn, TurnRing::stage(turn)), TurnRing::parity(turn));
  }
  // What is known of a turn that was taken lies in shared memory until it is passed on: its word,
  // and what that becomes.
  __device__ __forceinline__ unsigned turn_address(unsigned turn) const {
    return this->shared + static_cast<unsigned>(Layout::kTurnAt + 16 * TurnRing::stage(turn));
  }
  static constexpr int kNone = -1;  // a turn of a tile that nobody sees has no word

  // Passes on all turns that are over.
  __device__ __forceinline__ void pass(unsigned& passed, unsigned taken) const {
    const unsigned first = passed;
    while (passed < taken && is_over(passed)) ++passed;
    if (first == passed) return;
    release_words();
    for (unsigned turn = first; turn < passed; ++turn) {
      const Int4 x = load_shared(turn_address(turn));
      if (x.y != kNone) set_word(DqTurns<C>::passed(p) + static_cast<unsigned>(x.x), x.y);
    }
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
      // A place has dQ of 2 KB at least: no memory holds 2^32 of them.
      const unsigned word =
          static_cast<unsigned>(s.place) * DqTurns<C>::kOfPlace + static_cast<unsigned>(piece);
      const bool unseen = (s.flags & BackwardStep::kUnseen) != 0;
      if (!unseen &&
          !wait_for_word_or_phase(DqTurns<C>::passed(p) + word,
                                  static_cast<unsigned>(s.flags) >> BackwardStep::kAfterShift,
                                  barrier(Layout::kEmptyTurn, TurnRing::stage(passed)),
                                  TurnRing::parity(passed))) {
        continue;
      }
      store_shared(turn_address(taken),
                   {static_cast<int>(word), unseen ? kNone : s.key0 / C::kBlockM + 1, 0, 0});
      mbarrier_arrive(barrier(Layout::kFullTurn, TurnRing::stage(taken++)));
      if (++piece == Layout::kOwnPieces) {
        piece = 0;
        ++n;
      }
    }
  }
};

}  // namespace attn::device
