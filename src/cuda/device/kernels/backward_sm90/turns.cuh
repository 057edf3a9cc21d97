// How the Hopper backward kernel keeps to the order of the tiles (schedule/dq_turns.cuh): a warp
// takes turns ahead of the thread that adds dQ, and passes each on when that thread says that its
// pieces are added. A word takes some 700 clocks to load and a release some 2000, together more
// than a step, so the lanes of the warp do it for as many turns at once.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/tiles.cuh"
#include "ptx/turn.cuh"
#include "schedule/dq_turns.cuh"

namespace attn::device {

// Lane i keeps the turns in place i of their ring: i, i + kTurns, ... No lane waits for a turn that
// has not come, so one that is over is passed on whatever the others ask for.
template <class C>
struct BackwardTurnKeeper {
  using Tiles = BackwardSm90Tiles<C>;
  using Layout = typename Tiles::Layout;
  // What a lane has of its turn. ahead: its step is not made yet; done: there is none any more.
  enum class State { ahead, waits, taken, done };

  const Tiles& tiles;

  // Null for a tile that nobody sees, which takes no turn. A place has dQ of 2 KB at least: no
  // memory holds 2^32 words.
  ATTN_DEVICE unsigned* word_of(const BackwardStep& s, unsigned turn) const {
    if ((s.flags & BackwardStep::kUnseen) != 0) return nullptr;
    return DqTurns<C>::passed(tiles.p) + (static_cast<unsigned>(s.place) * DqTurns<C>::kOfPlace +
                                          tiles.rank + turn % Layout::kTurnsOfStep);
  }
  // Keeps the turns of all steps; for a whole warp.
  ATTN_DEVICE void run() const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    unsigned turn = static_cast<unsigned>(lane);
    State state = lane < Layout::kTurns ? State::ahead : State::done;
    unsigned* word = nullptr;
    unsigned after = 0, becomes = 0;  // what the word is when the turn comes, and when it is over
    bool ended = false;               // all steps are made
    while (__any_sync(~0u, state != State::done)) {
      bool end = false;
      if (state == State::ahead) {
        const unsigned n = turn / Layout::kTurnsOfStep;
        if (mbarrier_try(tiles.step_ring().full(n), Tiles::StepRing::parity(n))) {
          const BackwardStep s = tiles.step(n);
          end = (s.flags & BackwardStep::kEnd) != 0;
          state = end ? State::done : State::waits;
          word = word_of(s, turn);
          after = static_cast<unsigned>(s.flags) >> BackwardStep::kAfterShift;
          becomes = static_cast<unsigned>(s.key0 / C::kBlockM + 1);
        } else if (ended) {
          state = State::done;
        }
      }
      ended = __any_sync(~0u, end) || ended;
      if (state == State::waits && (word == nullptr || word_is(word, after))) {
        mbarrier_arrive(tiles.turn_ring().full_at(lane));
        state = State::taken;
      }
      if (state == State::taken &&
          mbarrier_try(tiles.turn_ring().empty_at(lane), Tiles::TurnRing::parity(turn))) {
        if (word != nullptr) release_word(word, becomes);
        turn += Layout::kTurns;
        state = State::ahead;
      }
    }
  }
};

}  // namespace attn::device
