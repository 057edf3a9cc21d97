// Backward pass on Hopper (sm_90a): FlashAttention-2, algorithm 2, with a warpgroup for each part
// of it, so that S is computed once and the exponentials of one block run beside the products of
// others.
//
//   producers  a thread makes the steps; three ask the copy engine for K once a tile and a ring of
//              (Q, LSE), for V and a ring of (dO, D), and for the additions of dQ to memory
//   scores     S = Q K^T, P = 2^(S - LSE), dP = dO V^T, dS = P dT/dS (Z dP - D), dQ += dS K
//   dV         dV += P^T dO, with P from a ring in shared memory, read transposed; draws half of
//              what dropout keeps, ahead
//   dK         dK += dS^T Q, with dS likewise; draws the other half
// Heads of up to 64 columns have two score warpgroups, which take steps in turn, and one for both
// dV and dK; those of up to 128 columns may have them with tiles of 64 keys.
//
// A tile is kKeys keys of a K, V head, which stay; blocks of kQueries queries of all heads of its
// group pass by, those that the mask leaves. dK and dV are summed in registers, in a fixed order.
// dQ is summed in memory in float32, in the order in which tiles get there: equal inputs give equal
// bits of dK and dV, not of dQ. Where kOrdered is true tiles take turns: those of dQ are equal too.
//
// Reads of C:
//   Element              BFloat16 or Float16
//   Stored               of dK and dV: Element or Float32
//   kHeadDim, kHeadDimV  multiples of 8, up to 256; of both up to 128 with 128 keys
//   kBlockM, kBlockN     keys of a tile, 64 or 128; queries of a block, 64
//   kScoreGroups         score warpgroups, 1 or 2
//   kCluster             blocks of threads that share a tile, 1 or 2
//   kStagesQ, kStagesO   places of the rings of Q and of dO, up to 4
//   kStagesP             places of the rings of P and of dS, up to 2
//   kPieceColumns, kStagesDq   columns of a staged piece of dQ, 32, 64 or 128; places of its ring
//   kProducerRegisters, kScoreRegisters, kGradientRegisters   of a thread
//   kLongestFirst        the order of tiles
//   kOrdered             dQ is added in the order of schedule/dq_turns.cuh
//   kScalesLate          dropout's factor is multiplied into dK and dQ when they are stored
//   kGradient            Gradient::all
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kDropout, kRngState, kMaskBatches, kMaskHeads
// and of ProductSS<Element, kKeys>, ProductTT<Element, kHeadDim> and <Element, kHeadDimV>,
// ProductRS<Element, columns> of dQ's parts (src/cuda/codegen/wgmma_text.hpp).
// Before: kernels/backward_one_pass_rows.cuh and backward_sm90_words.cuh; after:
// backward_one_pass_dq.cuh. Grid: up to one block of 512 threads for each multiprocessor, with
// BackwardSm90Layout<C>::kBytes of dynamic shared memory.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/gradient_group.cuh"
#include "kernels/backward_sm90/pair_score_group.cuh"
#include "kernels/backward_sm90/producer.cuh"
#include "kernels/backward_sm90/score_group.cuh"
#include "kernels/backward_sm90/transposed_group.cuh"
#include "ptx/dependent.cuh"

namespace attn::device {

template <class C>
ATTN_DEVICE void init_rings(const BackwardSm90Tiles<C>& tiles) {
  using Layout = BackwardSm90Layout<C>;
  tiles.step_ring().init(1, C::kCluster);
  // Neither of two score warpgroups knows when both are done with K and V: who adds dQ does.
  constexpr unsigned kKeysReadBy = C::kScoreGroups == 1 ? 4 : 1;
  tiles.k_ring().init(1, kKeysReadBy);
  tiles.v_ring().init(1, kKeysReadBy);
  tiles.q_ring().init(1, 8);
  tiles.o_ring().init(1, 8);
  tiles.p_ring().init(4, 4);
  tiles.ds_ring().init(4, 4);
  tiles.other_ring().init(4, 4);
  tiles.staged_ring().init(4, 1);
  if constexpr (Layout::kTurnPlaces > 0) tiles.turn_ring().init(1, 1);
  if constexpr (Layout::kKeptPlaces > 0) tiles.kept_ring().init(8, 4);
  mbarrier_init_fence();
}

template <class C, class Expressions, class Slope>
ATTN_DEVICE void run_scores(const BackwardSm90Tiles<C>& tiles, const Expressions& e,
                            const Slope& slope, unsigned group) {
  if constexpr (C::kCluster > 1) {
    BackwardSm90PairScoreGroup<C, Expressions, Slope>{{tiles, {tiles, e, slope}, {tiles}, {tiles}}}
        .run();
  } else {
    BackwardSm90ScoreGroup<C, Expressions, Slope>{{tiles, {tiles, e, slope}, {tiles}, {tiles}}}.run(
        group);
  }
}

template <class C, class Expressions, class Slope>
ATTN_DEVICE void backward_sm90(const BackwardParams& p, const Expressions& e, const Slope& slope,
                               const BackwardMaps& maps) {
  static_assert(BackwardSm90Layout<C>::kBytes == C::kSharedBytes);  // that the launch gives
  extern __shared__ __align__(1024) char memory[];
  // Pairs have no registers to keep what does not change.
  constexpr bool kKeeps = C::kCluster == 1;
  const unsigned thread = kKeeps ? keep(threadIdx.x % 128) : threadIdx.x % 128;
  const unsigned shared = kKeeps ? uniform(shared_address(memory)) : shared_address(memory);
  const unsigned rank = C::kCluster > 1 ? uniform(cluster_rank()) : 0;
  const BackwardSm90Tiles<C> tiles{p, maps, shared, rank, thread};
  if (threadIdx.x == 0) init_rings(tiles);
  wait_for_dependencies();
  if constexpr (C::kCluster > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  launch_dependents();
  const int warpgroup = uniform(static_cast<int>(threadIdx.x / 128));
  if (warpgroup == 0) {
    release_registers<C::kProducerRegisters>();
    BackwardSm90Producer<C>{tiles}.run();
  } else if (warpgroup <= C::kScoreGroups) {
    take_registers<C::kScoreRegisters>();
    const auto group = static_cast<unsigned>(warpgroup - 1);
    if constexpr (C::kFarRows) {
      if (uniform(*any_far_row(p)) != 0) {
        run_scores(tiles, e, slope, group);
      } else {
        const BackwardSm90Tiles<WithoutFarRows<C>> near{p, maps, shared, rank, thread};
        run_scores(near, e, slope, group);
      }
    } else {
      run_scores(tiles, e, slope, group);
    }
  } else {
    take_registers<C::kGradientRegisters>();
    if constexpr (C::kScoreGroups > 1) {
      BackwardSm90Gradients<C>{{tiles, {tiles}}, {tiles, {tiles}}}.run();
    } else if (warpgroup == 2) {
      BackwardSm90GradientGroup<C, true>{tiles, {tiles}}.run();
    } else {
      BackwardSm90GradientGroup<C, false>{tiles, {tiles}}.run();
    }
  }
  if constexpr (C::kCluster > 1) {  // its shared memory is there as long as the other needs it
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
}

}  // namespace attn::device
