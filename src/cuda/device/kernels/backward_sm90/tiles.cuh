// What all warps of the Hopper backward kernel share: the order of tiles, the steps through blocks
// of queries, and the barriers.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/layout.cuh"
#include "params.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/warpgroup.cuh"
#include "schedule/key_tiles.cuh"
#include "schedule/query_words.cuh"
#include "schedule/sequence.cuh"
#include "tile/matrix_descriptor.cuh"

namespace attn::device {

// One block of queries that passes by, as the producer makes it. All steps of a block of threads
// are counted; step n uses place n of each ring.
struct BackwardStep {
  // mixed: a query does not see all keys. first, last: of a tile. end: there is no step; each score
  // warpgroup gets one.
  static constexpr int kMixed = 1, kFirst = 2, kLast = 4, kEnd = 8;
  // These are set where tiles take turns (schedule/dq_turns.cuh). kUnseen: nobody sees the tile, so
  // it adds nothing and takes no turn. Bits from kAfterShift on are what the word of the turn is
  // when it comes.
  static constexpr int kUnseen = 16, kAfterShift = 5;
  // Whether no tile before this one sees the block, so that dQ is stored and not added.
  ATTN_DEVICE bool is_first_turn() const {
    return static_cast<unsigned>(flags) >> kAfterShift == 0;
  }
  int flags, query0, key0, head_q;
  int batch, length_q, length_k;
  int place;  // BackwardParams
};

template <class C>
struct BackwardSm90Tiles {
  using Layout = BackwardSm90Layout<C>;
  using Element = typename C::Element;
  static constexpr int kQueries = Layout::kQueries, kKeys = Layout::kKeys;
  static constexpr int kTileKeys = Layout::kTileKeys;
  using KeysRing = BackwardRing<1>;  // of K, or of V
  using QueryRing = BackwardRing<C::kStagesQ>;
  using OutputRing = BackwardRing<C::kStagesO>;  // of dO
  using ScoreRing = BackwardRing<C::kStagesP>;   // of P, or of dS
  using StepRing = BackwardRing<Layout::kSteps>;
  using StagedRing = BackwardRing<Layout::kStagedPlaces>;  // of pieces of dQ
  using TurnRing = BackwardRing<Layout::kTurns>;           // of the turns to add them
  using KeptRing = BackwardRing<1>;                        // of what dropout keeps

  const BackwardParams& p;
  const BackwardMaps& maps;
  unsigned shared;  // 1024-byte aligned
  unsigned rank;    // of this block of threads in its cluster
  unsigned thread;  // of its warpgroup

  ATTN_DEVICE unsigned step_address(unsigned n) const {
    return shared +
           static_cast<unsigned>(Layout::kStepAt + StepRing::stage(n) * Layout::kStepBytes);
  }
  ATTN_DEVICE void put_step(unsigned n, const BackwardStep& s) const {
    store_shared(step_address(n), {s.flags, s.query0, s.key0, s.head_q});
    store_shared(step_address(n) + 16, {s.batch, s.length_q, s.length_k, s.place});
  }
  // Step n, its first key being the first one of this block of threads.
  ATTN_DEVICE BackwardStep step(unsigned n) const {
    const Int4 a = load_shared(step_address(n)), b = load_shared(step_address(n) + 16);
    return {a.x, a.y, a.z + static_cast<int>(rank) * kKeys, a.w, b.x, b.y, b.z, b.w};
  }
  // Waits until step n is made. It is written out, since step_ring().wait(n) gives other machine
  // code where tiles take turns.
  ATTN_DEVICE void wait_for_step(unsigned n) const {
    const int place = StepRing::stage(n);
    const unsigned parity = StepRing::parity(n);
    mbarrier_wait(shared + static_cast<unsigned>(Layout::kFullStep + 8 * place), parity);
  }
  ATTN_DEVICE int step_flags(unsigned n) const { return load_shared_word(step_address(n)); }
  // Asked of the warp, so that the compiler knows that it stays together: counters and descriptors
  // are then scalar.
  static ATTN_DEVICE bool is(int flags, int flag) { return __any_sync(~0u, (flags & flag) != 0); }

  ATTN_DEVICE KeysRing k_ring() const { return {shared, Layout::kFullK, Layout::kEmptyK}; }
  ATTN_DEVICE KeysRing v_ring() const { return {shared, Layout::kFullV, Layout::kEmptyV}; }
  ATTN_DEVICE QueryRing q_ring() const { return {shared, Layout::kFullQ, Layout::kEmptyQ}; }
  ATTN_DEVICE OutputRing o_ring() const { return {shared, Layout::kFullO, Layout::kEmptyO}; }
  ATTN_DEVICE ScoreRing p_ring() const { return {shared, Layout::kFullP, Layout::kEmptyP}; }
  ATTN_DEVICE ScoreRing ds_ring() const { return {shared, Layout::kFullS, Layout::kEmptyS}; }
  // The other block of threads' dS.
  ATTN_DEVICE ScoreRing other_ring() const {
    return {shared, Layout::kFullOther, Layout::kEmptyOther};
  }
  ATTN_DEVICE StepRing step_ring() const { return {shared, Layout::kFullStep, Layout::kEmptyStep}; }
  ATTN_DEVICE StagedRing staged_ring() const {
    return {shared, Layout::kFullStaged, Layout::kEmptyStaged};
  }
  ATTN_DEVICE TurnRing turn_ring() const { return {shared, Layout::kFullTurn, Layout::kEmptyTurn}; }
  ATTN_DEVICE KeptRing kept_ring() const { return {shared, Layout::kFullKept, Layout::kEmptyKept}; }

  // The descriptor of the tile at a place. Warps agree on the place, so no thread is asked.
  ATTN_DEVICE unsigned descriptor(int at, int leading) const {
    constexpr bool kInCluster = C::kCluster > 1;
    return matrix_descriptor<kInCluster>(shared + static_cast<unsigned>(at),
                                         static_cast<unsigned>(leading));
  }
};

}  // namespace attn::device
