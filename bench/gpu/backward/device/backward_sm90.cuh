// Backward pass on Hopper (sm_90a), a prototype: FlashAttention-2, algorithm 2, with a warpgroup
// for each part of it.
//
//   producer   two threads ask the copy engine for K, V once a tile, and for rings of (Q, LSE) and
//   (dO, D) scores     S = Q K^T, P = 2^(S - LSE), dP = dO V^T, dS = P (dP - D); dQ += dS K with dS
//   in registers dV         dV += P^T dO,   P from a ring in shared memory, read transposed dK dK
//   += dS^T Q,   dS likewise
//
// A tile is kBlockN keys of a head, which stay; blocks of kBlockM queries pass by. Rings of
// mbarriers are all that the warpgroups meet at, so the exponentials of one block run beside the
// products of others.
//
// Reads of C:
//   kHeadDim, kBlockM, kBlockN         64 queries; as many keys as columns
//   kCausal                            a query sees keys up to its own number
//   kStagesQ, kStagesP                 places of the rings of Q and of dO, of P and of dS
//   kAdd                               how dQ is added to memory
//   kQueryFirst                        order of products in the score warpgroup: dQ, S, dP; else S,
//   dQ, dP kSharedOperand                     dQ's operand dS is read from shared memory, else from
//   registers kLag                               dV, dK: products of two blocks in flight
//   kProducerRegisters, kScoreRegisters, kGradientRegisters
//   kLeaveOut                          wrong on purpose, to see what a part costs: 1 adding dQ, 2
//   exponentials
// Grid: up to one block of 512 threads for each multiprocessor; with Add::pair, clusters of two.
#pragma once

#include "backward_sm90/gradient_group.cuh"
#include "backward_sm90/producer.cuh"
#include "backward_sm90/score_group.cuh"

namespace attn::device {

template <class C>
__device__ __forceinline__ void backward_sm90(const BackwardParams& p, const BackwardMaps& maps) {
  using Layout = BackwardSm90Layout<C>;
  extern __shared__ __align__(1024) char memory[];
  const unsigned shared = shared_address(memory);
  const BackwardSm90Tiles<C> tiles{p, maps, shared};
  const auto ring = [&](int full, int empty, int stages, unsigned filled_by, unsigned read_by) {
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(shared + static_cast<unsigned>(full + 8 * i), filled_by);
      mbarrier_init(shared + static_cast<unsigned>(empty + 8 * i), read_by);
    }
  };
  if (threadIdx.x == 0) {
    ring(Layout::kFullK, Layout::kEmptyK, 1, 1, 4);
    ring(Layout::kFullV, Layout::kEmptyV, 1, 1, 4);
    ring(Layout::kFullQ, Layout::kEmptyQ, C::kStagesQ, 1, 8);
    ring(Layout::kFullO, Layout::kEmptyO, C::kStagesQ, 1, 8);
    ring(Layout::kFullP, Layout::kEmptyP, C::kStagesP, 4, 4);
    ring(Layout::kFullS, Layout::kEmptyS, C::kStagesP, 4, C::kSharedOperand ? 8 : 4);
    if constexpr (C::kAdd == Add::pair) {
      mbarrier_init(shared + Layout::kFullMine, 4);
      mbarrier_init(shared + Layout::kFullTheirs, 1);
      mbarrier_init(shared + Layout::kEmptyMine, 2);
      mbarrier_init(shared + Layout::kEmptyTheirs, 2);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if constexpr (C::kAdd == Add::pair) cluster_sync();
  const int warpgroup = uniform(static_cast<int>(threadIdx.x / 128));
  if (warpgroup == 0) {
    release_registers<C::kProducerRegisters>();
    BackwardSm90Producer<C>{tiles}.run();
  } else if (warpgroup == 1) {
    take_registers<C::kScoreRegisters>();
    BackwardSm90ScoreGroup<C>{tiles}.run();
  } else {
    take_registers<C::kGradientRegisters>();
    BackwardSm90GradientGroup<C>{tiles}.run(warpgroup - 2);
  }
  // Until then the neighbour may send or give back.
  if constexpr (C::kAdd == Add::pair) cluster_sync();
}

}  // namespace attn::device
