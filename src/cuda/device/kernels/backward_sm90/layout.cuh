// Shared memory of the Hopper backward kernel: places, and rings of barriers.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "kernels/backward_sm90/dq_order.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"

namespace attn::device {

// A ring of kPlaces places in shared memory, each with two barriers: `full` completes when what was
// put there has arrived, `empty` when all who read it have released it. Use n has place n %
// kPlaces, so that a counter is all there is to keep.
template <int kPlaces>
struct BackwardRing {
  unsigned shared;
  int first_full, first_empty;  // barriers, from `shared` on

  static ATTN_DEVICE int stage(unsigned n) { return static_cast<int>(n % kPlaces); }
  static ATTN_DEVICE unsigned parity(unsigned n) { return n / kPlaces & 1; }
  // The barriers of use n, and of a place.
  ATTN_DEVICE unsigned full(unsigned n) const { return full_at(stage(n)); }
  ATTN_DEVICE unsigned empty(unsigned n) const { return empty_at(stage(n)); }
  ATTN_DEVICE unsigned full_at(int place) const { return at(first_full, place); }
  ATTN_DEVICE unsigned empty_at(int place) const { return at(first_empty, place); }
  // Prepares the barriers; for one thread, before any use. It says how many arrive to fill a place,
  // and to release it.
  ATTN_DEVICE void init(unsigned filled_by, unsigned read_by) const {
    for (int i = 0; i < kPlaces; ++i) {
      mbarrier_init(full_at(i), filled_by);
      mbarrier_init(empty_at(i), read_by);
    }
  }
  // Waits until use n has arrived.
  ATTN_DEVICE void wait(unsigned n) const { wait(first_full, stage(n), parity(n)); }
  // Waits until the place of use n may be overwritten.
  ATTN_DEVICE void wait_empty(unsigned n) const { wait(first_empty, stage(n), parity(n) ^ 1); }
  // Says that use n was put to its place: one arrival a warp, for what all its threads wrote.
  ATTN_DEVICE void fill(unsigned n) const { arrive(first_full, stage(n)); }
  // Releases the place of use n, for a warp that is done with it.
  ATTN_DEVICE void release(unsigned n) const { arrive(first_empty, stage(n)); }

 private:
  ATTN_DEVICE unsigned at(int first, int place) const {
    return shared + static_cast<unsigned>(first + 8 * place);
  }
  ATTN_DEVICE void wait(int first, int place, unsigned parity) const {
    mbarrier_wait(at(first, place), parity);
  }
  ATTN_DEVICE void arrive(int first, int place) const {
    __syncwarp();
    if (elect_one()) mbarrier_arrive(at(first, place));
  }
};

// (column, row, head, batch). Boxes: 64 columns, and kBlockN rows (q, d_o) or kBlockM rows (k, v).
struct BackwardMaps {
  TensorMap q, k, v, d_o;
};

// Sizes in bytes and places. Panels are 64 columns wide, 128 bytes a row, swizzled. P and dS have a
// row for a query and a column for a key of the tile. Two blocks of threads of a cluster share a
// tile: each has half its keys, and half the columns of dQ.
template <class C>
struct BackwardSm90Layout {
  // kKeys: those of the tile's keys that this block of threads has.
  static constexpr int kQueries = C::kBlockN, kTileKeys = C::kBlockM;
  static constexpr int kKeys = kTileKeys / C::kCluster;
  static constexpr int kPanels = divide_up<64>(C::kHeadDim);
  static constexpr int kPanelsV = divide_up<64>(C::kHeadDimV);
  static constexpr int kRowPanel = kQueries * 128, kKeyPanel = kKeys * 128;
  static constexpr int kQ = kRowPanel * kPanels, kO = kRowPanel * kPanelsV;  // kO: of dO
  static constexpr int kK = kKeyPanel * kPanels, kV = kKeyPanel * kPanelsV;
  static constexpr int kOwnPanels = kPanels / C::kCluster;  // columns of dQ
  // Bytes of K of the keys of the other block of threads, which dQ needs.
  static constexpr int kOtherK = C::kCluster > 1 ? kKeyPanel* kOwnPanels : 0;
  static_assert(C::kCluster == 1 || (C::kCluster == 2 && kKeys == 64 && C::kHeadDim == 256 &&
                                     C::kHeadDimV == 256 && C::kScoreGroups == 1));
  static constexpr int kP = kRowPanel * (kKeys / 64);       // or dS
  static constexpr int kOtherS = C::kCluster > 1 ? kP : 0;  // dS of the other block of threads
  static constexpr int kRows = kQueries * 4;                // LSE or D of a block of queries
  using Order = DqOrder<kQueries, C::kHeadDim, C::kPieceColumns>;
  static constexpr int kStaged = 4 * kQueries * Order::piece_columns(0);  // a piece of dQ
  static constexpr int kOwnPieces = Order::kPieces / C::kCluster;
  // Two steps of pieces at most, so that who adds them is never further behind (kStepLag).
  static constexpr int kStagedPlaces =
      C::kStagesDq < 2 * kOwnPieces ? C::kStagesDq : 2 * kOwnPieces;

  static constexpr int kKAt = 0, kVAt = kKAt + kK, kOtherKAt = kVAt + kV;
  static constexpr int kQAt = kOtherKAt + kOtherK, kOAt = kQAt + C::kStagesQ * kQ;
  static constexpr int kPAt = kOAt + C::kStagesO * kO, kSAt = kPAt + C::kStagesP * kP;
  static constexpr int kOtherSAt = kSAt + C::kStagesP * kP;
  static constexpr int kStagedAt = kOtherSAt + C::kStagesP * kOtherS;
  static constexpr int kLseAt = kStagedAt + kStagedPlaces * kStaged,
                       kDAt = kLseAt + C::kStagesQ * kRows;
  // Steps of the way through blocks of queries. Their readers do not give them back: whoever asks
  // for Q of step n + kStepLag gives step n back for all, since the places of Q and dO that it
  // takes were given back by readers who are past step n.
  static constexpr int kSteps = 16, kStepLag = 8, kStepBytes = 32;
  static_assert(C::kStagesQ <= 4 && C::kStagesO <= 4 && C::kStagesP <= 2);
  // With two score warpgroups, each has every second place of each ring for itself, so that what it
  // waits for is never two phases away; dQ is in one part.
  static_assert(C::kScoreGroups == 1 ||
                (C::kStagesQ % 2 == 0 && C::kStagesO % 2 == 0 && C::kStagesP == 2 &&
                 Order::kParts == 1 && kStagedPlaces % (2 * Order::kPieces) == 0));
  // A bit for each score that dropout keeps, a word a thread of each of the warpgroups of dV and
  // dK, which draw them: not where one keeps both, nor where tiles take turns, which leaves no
  // room.
  static constexpr int kKept = 2 * 4 * 128;
  static constexpr int kKeptPlaces = C::kDropout && !C::kOrdered && C::kScoreGroups == 1 ? 1 : 0;
  static constexpr int kKeptAt = kDAt + C::kStagesO * kRows;
  static constexpr int kStepAt = kKeptAt + kKeptPlaces * kKept;
  // Where tiles take turns to add to dQ, as many may be taken and not be passed on yet. A turn is
  // of a piece, or of all that a block of threads of a pair adds in a step.
  static constexpr int kTurns = 4, kTurnPlaces = C::kOrdered ? kTurns : 0;
  static constexpr unsigned kTurnsOfStep = C::kCluster > 1 ? 1 : kOwnPieces;
  static constexpr unsigned kTurnPieces = kOwnPieces / kTurnsOfStep;
  // Each ring has a barrier `full` and a barrier `empty` for each place.
  static constexpr int kFullStep = kStepAt + kSteps * kStepBytes;
  static constexpr int kEmptyStep = kFullStep + 8 * kSteps;
  static constexpr int kFullK = kEmptyStep + 8 * kSteps, kEmptyK = kFullK + 8;
  static constexpr int kFullV = kEmptyK + 8, kEmptyV = kFullV + 8;
  static constexpr int kFullQ = kEmptyV + 8, kEmptyQ = kFullQ + 8 * C::kStagesQ;
  static constexpr int kFullO = kEmptyQ + 8 * C::kStagesQ, kEmptyO = kFullO + 8 * C::kStagesO;
  static constexpr int kFullP = kEmptyO + 8 * C::kStagesO, kEmptyP = kFullP + 8 * C::kStagesP;
  static constexpr int kFullS = kEmptyP + 8 * C::kStagesP, kEmptyS = kFullS + 8 * C::kStagesP;
  static constexpr int kFullOther = kEmptyS + 8 * C::kStagesP;  // of the other's dS
  static constexpr int kEmptyOther = kFullOther + 8 * C::kStagesP;
  static constexpr int kFullStaged = kEmptyOther + 8 * C::kStagesP;
  static constexpr int kEmptyStaged = kFullStaged + 8 * kStagedPlaces;
  static constexpr int kFullTurn = kEmptyStaged + 8 * kStagedPlaces;
  static constexpr int kEmptyTurn = kFullTurn + 8 * kTurnPlaces;
  static constexpr int kFullKept = kEmptyTurn + 8 * kTurnPlaces;
  static constexpr int kEmptyKept = kFullKept + 8 * kKeptPlaces;
  static constexpr int kBytes = kEmptyKept + 8 * kKeptPlaces;
  static_assert(kBytes <= 232448);
};

// What belongs to one side, V and dO or K and Q: where its keys and rows lie, and its scores. These
// are P, which are multiplied by dO for dV, or dS, which are multiplied by Q for dK.
template <class C, bool kOfV>
struct BackwardSide {
  using Layout = BackwardSm90Layout<C>;
  static constexpr int kColumns = kOfV ? C::kHeadDimV : C::kHeadDim;
  static constexpr int kPanels = kOfV ? Layout::kPanelsV : Layout::kPanels;
  static constexpr int kKeysAt = kOfV ? Layout::kVAt : Layout::kKAt;
  static constexpr int kRowsAt = kOfV ? Layout::kOAt : Layout::kQAt;
  static constexpr int kRowsBytes = kOfV ? Layout::kO : Layout::kQ;
  static constexpr int kVectorAt = kOfV ? Layout::kDAt : Layout::kLseAt;
  static constexpr int kFullRows = kOfV ? Layout::kFullO : Layout::kFullQ;
  static constexpr int kEmptyRows = kOfV ? Layout::kEmptyO : Layout::kEmptyQ;
  using RowRing = BackwardRing<kOfV ? C::kStagesO : C::kStagesQ>;
  static constexpr int kScoresAt = kOfV ? Layout::kPAt : Layout::kSAt;
  static constexpr int kFullScores = kOfV ? Layout::kFullP : Layout::kFullS;
  static constexpr int kEmptyScores = kOfV ? Layout::kEmptyP : Layout::kEmptyS;
};

}  // namespace attn::device
