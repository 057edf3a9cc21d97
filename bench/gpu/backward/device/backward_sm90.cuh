// Backward pass on Hopper (sm_90a), a prototype: FlashAttention-2, algorithm 2, with a warpgroup
// for each part of it.
//
//   producer  a thread asks the copy engine for K once a tile, and for a ring of (Q, LSE); another
//             for V and (dO, D); with Add::paced a third for the additions of dQ
//   scores    S = Q K^T, P = 2^(S - LSE), dP = dO V^T, dS = P (dP - D), dQ += dS K
//   dV        dV += P^T dO, with P from a ring in shared memory, read transposed
//   dK        dK += dS^T Q, with dS likewise
//
// A tile is kBlockN keys of a head, which stay; blocks of kBlockM queries pass by. Rings of
// mbarriers are all that the warpgroups meet at, so the exponentials of one block run beside the
// products of others.
//
// Reads of C:
//   kHeadDim, kBlockM, kBlockN  64 queries; as many keys as columns
//   kCausal                     a query sees keys up to its own number
//   kStagesQ                    places of the rings of Q and of dO
//   kStagesP                    places of the rings of P and of dS
//   kAdd                        how dQ is added to memory
//   kPiece                      bytes of an addition of Add::paced
//   kReadersFence               readers, not writers, order ordinary writes of P, dS and dQ before
//                               asynchronous reads of them
//   kLateProduct                dP is asked for after so many of the 8 parts of the exponentials;
//                               0: before them
//   kPolynomial                 a quarter of the exponentials are polynomials
//   kProducerRegisters, kScoreRegisters, kGradientRegisters
//   kLeaveOut                   wrong on purpose, to see what a part costs: 1 adding dQ; 2
//                               exponentials; 4 half of adding dQ; 8 stores dQ (Add::bulk)
//   kBounded                    a wait that does not end stops the kernel (ptx.cuh)
// Grid: up to one block of 512 threads for each multiprocessor.
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
    ring(Layout::kFullS, Layout::kEmptyS, C::kStagesP, 4, 4);
    ring(Layout::kFullStaged, Layout::kEmptyStaged, 1, 4, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
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
}

}  // namespace attn::device
