// How the thread of the Hopper backward kernel that adds dQ keeps to the order of the tiles
// (schedule/dq_turns.cuh). Additions are under way for some 2500 clocks, so up to three turns are:
// one is passed on when enough pieces after it were asked for, and all before this thread waits for
// a turn, so that nobody waits for a thread that waits.
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
  using Order = DqOrder<C::kBlockN, C::kHeadDim, C::kPieceColumns>;
  static_assert(!C::kOrdered || Order::kPieces == Order::kParts, "a piece is a part");
  static constexpr int kPiece = 4096;
  static constexpr int kPiecesOfStep =
      (Order::kParts - 1) * (4 * C::kBlockN * Order::kMostColumns / kPiece) +
      (4 * C::kBlockN * Order::columns(Order::kParts - 1) + kPiece - 1) / kPiece;
  // Pieces after a turn when it is passed on: by then its additions are mostly done. No more than
  // a step has, as the next tile is a step or two behind.
  static constexpr int kPassAfter = kPiecesOfStep < 8 ? kPiecesOfStep : 8;
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
    if (oldest_.word != kNone) finish();
    oldest_ = earlier_;
    earlier_ = now_;
    now_ = {};
    if ((s.flags & BackwardStep::kUnseen) != 0) return;
    const unsigned turn = word(s, part, i);
    const unsigned after = static_cast<unsigned>(s.flags) >> BackwardStep::kAfterShift;
    if (asked_ != after && ask_word(passed_ + turn) != after) {
      finish();
      wait_for_word(passed_ + turn, after);
    }
    now_ = {turn, static_cast<unsigned>(s.key0 / C::kBlockM + 1), pieces_};
  }
  // To be called when a piece was asked to be added.
  __device__ __forceinline__ void added() {
    now_.end = ++pieces_;
    if (!over(oldest_) && !over(earlier_)) return;
    bulk_wait<kPassAfter>();
    if (over(oldest_)) pass(oldest_);
    if (over(earlier_)) pass(earlier_);
  }
  // Passes on all turns.
  __device__ __forceinline__ void finish() {
    bulk_wait();
    pass(oldest_);
    pass(earlier_);
    pass(now_);
  }

 private:
  static constexpr unsigned kNone = ~0u, kUnknown = ~0u;
  struct Turn {
    unsigned word = kNone;  // of passed_
    unsigned next = 0;      // what it becomes
    unsigned end = 0;       // pieces of this thread up to its last
  };
  // A place has dQ of 2 KB at least: no memory holds 2^32 of them.
  static __device__ __forceinline__ unsigned word(const BackwardStep& s, int part, int i) {
    return static_cast<unsigned>(s.place) * Turns::kOfPlace +
           static_cast<unsigned>(part * kOfPart + i);
  }
  __device__ __forceinline__ bool over(const Turn& turn) const {
    return turn.word != kNone && pieces_ - turn.end >= kPassAfter;
  }
  __device__ __forceinline__ void pass(Turn& turn) {
    if (turn.word != kNone) {
      fence_proxy_async();  // additions, by the copy engine, come before the word
      set_word(passed_ + turn.word, turn.next);
    }
    turn = {};
  }

  unsigned* passed_;
  Turn oldest_{}, earlier_{}, now_{};
  unsigned pieces_ = 0;
  unsigned asked_ = kUnknown;
};

}  // namespace attn::device
