// How the thread of the Hopper backward kernel that adds dQ keeps to the order of the tiles
// (schedule/dq_turns.cuh). An addition is under way for a while after it was asked for. So a turn
// is passed on when enough shares of the next were asked for, or when there is nothing else to do,
// and in any case before this thread waits for a turn, so that nobody waits for a thread that
// waits.
#pragma once

#include "kernels/backward_sm90/tiles.cuh"
#include "ptx/turn.cuh"
#include "schedule/dq_turns.cuh"

namespace attn::device {

template <class C>
class BackwardTurns {
 public:
  using Turns = DqTurns<C>;
  static constexpr int kShare = 4096;  // bytes that are asked to be added at a time

  __device__ __forceinline__ explicit BackwardTurns(const BackwardParams& p)
      : passed_(Turns::passed(p)) {}

  // Asks for the word of the turn that comes next, the i-th of a step.
  __device__ __forceinline__ void ask(const BackwardStep& s, int i) {
    asked_ = ask_word(passed_ + word(s, i));
  }
  // It is not known yet which that is.
  __device__ __forceinline__ void forget() { asked_ = kNone; }
  // Returns when it is the turn of a step's tile, the i-th of the step.
  __device__ __forceinline__ void take(const BackwardStep& s, int i) {
    if ((s.flags & BackwardStep::kUnseen) != 0) return;
    const unsigned turn = word(s, i);
    const unsigned after = static_cast<unsigned>(s.flags) >> BackwardStep::kAfterShift;
    if (asked_ == after) return;
    const unsigned now = ask_word(passed_ + turn);
    finish();
    if (now != after) wait_for_word(passed_ + turn, after);
  }
  // To be called when a share was asked to be added.
  __device__ __forceinline__ void added() {
    if (ended_ == kNone || ++since_ < kPassAfter) return;
    bulk_wait<kPassAfter>();
    pass();
  }
  // The last share of a turn was asked for.
  __device__ __forceinline__ void end(const BackwardStep& s, int i) {
    finish();
    if ((s.flags & BackwardStep::kUnseen) != 0) return;
    ended_ = word(s, i);
    next_ = static_cast<unsigned>(s.key0 / C::kBlockM + 1);
    since_ = 0;
  }
  // Passes on what has ended.
  __device__ __forceinline__ void finish() {
    if (ended_ == kNone) return;
    bulk_wait();
    pass();
  }

 private:
  static constexpr unsigned kNone = ~0u;
  // Shares after a turn when it is passed on: four, and no more than the shortest turn has.
  static constexpr int kLastShares =
      (4 * C::kBlockN * C::kHeadDim - (Turns::kOfPlace - 1) * Turns::kBytes + kShare - 1) / kShare;
  static constexpr int kPassAfter = kLastShares < 4 ? kLastShares : 4;
  // A place has dQ of 2 KB at least: no memory holds 2^32 of them.
  static __device__ __forceinline__ unsigned word(const BackwardStep& s, int i) {
    return static_cast<unsigned>(s.place) * Turns::kOfPlace + static_cast<unsigned>(i);
  }
  __device__ __forceinline__ void pass() {
    set_word(passed_ + ended_, next_);
    ended_ = kNone;
  }

  unsigned* passed_;
  unsigned ended_ = kNone;  // word of the turn that is to be passed on
  unsigned next_ = 0;       // what it becomes
  int since_ = 0;           // shares asked for since it ended
  unsigned asked_ = kNone;
};

}  // namespace attn::device
