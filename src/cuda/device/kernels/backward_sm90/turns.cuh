// How the thread of the Hopper backward kernel that adds dQ keeps to the order of the tiles
// (schedule/dq_turns.cuh). Additions are under way for long: a turn is passed on when pieces of the
// next are under way, or before this thread waits for anything, so that nobody waits for a thread
// that waits.
#pragma once

#include "kernels/backward_sm90/layout.cuh"
#include "kernels/backward_sm90/tiles.cuh"
#include "ptx/turn.cuh"
#include "schedule/dq_turns.cuh"

namespace attn::device {

template <class C>
class BackwardTurns {
 public:
  using Turns = DqTurns<C>;
  using Order = DqOrder<C::kBlockN, C::kHeadDim>;
  static constexpr int kPiece = 4096;
  // A turn is passed on when so many pieces of the next were asked for: by then its additions are
  // mostly done. No more than the shortest turn has.
  static constexpr int kShortest =
      4 * C::kBlockN * Order::columns(Order::kParts - 1) % Turns::kBytes;
  static constexpr int kPassAfter = kShortest == 0 || kShortest > 2 * kPiece
                                        ? 3
                                        : (kShortest + kPiece - 1) / kPiece;
  // Turns of a part of dQ.
  static constexpr int kOfPart =
      (4 * C::kBlockN * Order::columns(0) + Turns::kBytes - 1) / Turns::kBytes;

  __device__ __forceinline__ explicit BackwardTurns(const BackwardParams& p)
      : passed_(Turns::passed(p)) {}

  // Asks for the word of the turn that comes next, the i-th of a part, when this one is taken.
  __device__ __forceinline__ void ask(const BackwardStep& s, int part, int i) {
    asked_ = ask_word(passed_ + word(s, part, i));
  }
  // It is not known yet which that is.
  __device__ __forceinline__ void forget() { asked_ = kUnknown; }
  // Returns when it is the turn of a step's tile, the i-th of a part.
  __device__ __forceinline__ void take(const BackwardStep& s, int part, int i) {
    if (earlier_.word != kNone) finish();
    earlier_ = now_;
    now_ = {};
    if ((s.flags & BackwardStep::kUnseen) != 0) return;
    const unsigned turn = word(s, part, i);
    const unsigned after = static_cast<unsigned>(s.flags) >> BackwardStep::kAfterShift;
    if (asked_ != after && ask_word(passed_ + turn) != after) {
      finish();
      wait_for_word(passed_ + turn, after);
    }
    now_ = {turn, static_cast<unsigned>(s.key0 / C::kBlockM + 1)};
  }
  // To be called when `bytes` of a part, whole pieces, were asked to be added.
  __device__ __forceinline__ void added(int bytes) {
    if (bytes % Turns::kBytes != kPassAfter * kPiece || earlier_.word == kNone) return;
    bulk_wait<kPassAfter>();
    pass(earlier_);
  }
  // Passes on all turns.
  __device__ __forceinline__ void finish() {
    if (earlier_.word == kNone && now_.word == kNone) return;
    bulk_wait();
    pass(earlier_);
    pass(now_);
  }

 private:
  static constexpr unsigned kNone = ~0u, kUnknown = ~0u;
  struct Turn {
    unsigned word = kNone;  // of passed_
    unsigned next = 0;      // what it becomes
  };
  // A place has dQ of 2 KB at least: no memory holds 2^32 of them.
  static __device__ __forceinline__ unsigned word(const BackwardStep& s, int part, int i) {
    return static_cast<unsigned>(s.place) * Turns::kOfPlace +
           static_cast<unsigned>(part * kOfPart + i);
  }
  __device__ __forceinline__ void pass(Turn& turn) {
    if (turn.word != kNone) set_word(passed_ + turn.word, turn.next);
    turn = {};
  }

  unsigned* passed_;
  Turn earlier_{}, now_{};
  unsigned asked_ = kUnknown;
};

}  // namespace attn::device
