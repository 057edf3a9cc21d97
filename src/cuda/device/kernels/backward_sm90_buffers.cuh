// The gradient of a bias on Hopper (sm_90a): of the one buffer of a score of which each query and
// key read an element of their own. With T = score expression (S):
//   dT_ij = P_ij (Z_ij dO_i.v_j - D_i)    (FlashAttention-2, algorithm 2, line 14)
//   d bias[x] = sum of dT_ij dT/d bias[x] over the batch entries and heads that read it
//
//   producer        a warp deals tiles, finds which of their steps the mask leaves, and asks the
//                   copy engine for the operands of the two products of each
//   score groups    warpgroups of 64 queries each: S = Q K^T, dP = dO V^T, dT, and the sums of
//                   its kBlockN keys in registers, which they store once
//
// A tile is kBlockM queries and kBlockN keys of a bias; a step is one of the batch entries and
// heads that share it (schedule/buffer_tiles.cuh). A block of threads stays and takes one tile
// after the other, so that operands of the next tile arrive while one ends. Score groups meet the
// producer at a ring of mbarriers only: the exponentials of one run beside the products of others.
//
// Reads of C:
//   Element              BFloat16 or Float16
//   kHeadDim, kHeadDimV  multiples of 8
//   kGradient            Gradient::buffers
//   kBlockM, kBlockN     queries of a tile, 64 for each score group; its keys
//   kPartKeys            keys whose S and dP a thread holds at a time: kBlockN or 64
//   kStages              places of the ring, of two operands each
//   kProducerRegisters, kScoreRegisters   of a thread
//   kSameVectors         all steps of a tile read the same elements of buffers
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kDropout, kRngState
//   kScoreHides          a score may be -inf
// and of ProductSS<Element, kPartKeys> (src/cuda/codegen/wgmma_text.hpp). BufferGradients:
// src/cuda/codegen/buffer_gradients.hpp. Grid: up to one block of threads for each multiprocessor,
// with BackwardSm90BuffersLayout<C>::kBytes of dynamic shared memory.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90_buffers/producer.cuh"
#include "kernels/backward_sm90_buffers/score_group.cuh"

namespace attn::device {

template <class C, class Expressions, class BufferGradients>
ATTN_DEVICE void backward_sm90_buffers(const BackwardParams& p, const Expressions& e,
                                       const BufferGradients& gradients, const BackwardMaps& maps) {
  using Layout = BackwardSm90BuffersLayout<C>;
  static_assert(Layout::kBytes == C::kSharedBytes);  // that the launch gives
  extern __shared__ __align__(1024) char memory[];
  const BackwardSm90BuffersRing<C> ring{shared_address(memory)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      mbarrier_init(ring.barrier(Layout::kFull, i), 1);
      mbarrier_init(ring.barrier(Layout::kEmpty, i), 4 * Layout::kGroups);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = uniform(static_cast<int>(threadIdx.x / 128));
  if (warpgroup == 0) {
    release_registers<C::kProducerRegisters>();
    if (threadIdx.x < 32) {
      BackwardSm90BuffersProducer<C, Expressions, BufferGradients>{ring, p, e, gradients, maps}
          .run();
    }
  } else {
    take_registers<C::kScoreRegisters>();
    BackwardSm90BuffersGroup<C, Expressions, BufferGradients>{ring, p, e, gradients, warpgroup - 1}
        .run();
  }
}

}  // namespace attn::device
