// Forward pass on Hopper (sm_90a): FlashAttention-2, algorithm 1, as warp-specialised stages
// (FlashAttention-3, algorithms 1 and 2).
//
// A block of threads is one producer warpgroup, of which two warps work: one asks the copy engine
// for K and V, one for Q, and deals tiles (and under a mask a third, which looks at what is
// stored); and C::kConsumers warpgroups with 64 rows of Q each. K and V go through rings of
// C::kStagesK and C::kStagesV tiles. A consumer issues S = Q K^T of the next block, O += P V of
// this one, and does the softmax of the next while the second runs. Blocks of threads stay and take
// one tile of O after the other; Q of the next tile arrives while this one ends.
//
// Reads of C:
//   Element                BFloat16 or Float16
//   kHeadDim, kHeadDimV    multiples of 8, up to 256
//   kConsumers             warpgroups that compute: 2 or 3
//   kBlockN                keys of a tile, a multiple of 16 (of 32 with kDropout)
//   kStagesK, kStagesV     tiles of K and of V
//   kStagesQ               tiles of Q: a power of two
//   kStoresBoxes           O goes to memory by the copy engine, through tiles of Q
//   kTakeTurns             consumers issue products one after the other
//   kProducerRegisters, kConsumerRegisters   of a thread, multiples of 8
//   kGroup                 query heads of a K, V head that share a tile; divides 64; 1: none share
//   kPageRows              keys of a box: divides kBlockN, a multiple of 8; 0: not paged
//   kClearTail             rows of V past a length may hold anything
//   kHidesKeys             rows of O that are not finite are looked at again
//   kClassified            the mask's words are in memory (kernels/classify.cuh)
//   kParts                 of them: kConsumers
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kSplits, kSink, kDropout, kRngState, kMaskBatches,
//   kMaskHeads
// and of ProductSS<Element, kBlockN>, ProductRS<Element, kHeadDimV>
// (src/cuda/codegen/wgmma_text.hpp). Grid: up to one block of 128 (1 + kConsumers) threads for each
// multiprocessor, with ForwardSm90Layout<C>::kBytes of dynamic shared memory.
#pragma once

#include "kernels/forward_sm90/consumer.cuh"
#include "kernels/forward_sm90/follower.cuh"
#include "kernels/forward_sm90/producer.cuh"
#include "ptx/dependent.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90 : ForwardSm90Tiles<C, Expressions> {
  using Base = ForwardSm90Tiles<C, Expressions>;
  using Producer = ForwardSm90Producer<C, Expressions>;
  using Consumer = ForwardSm90Consumer<C, Expressions>;
  using Base::barrier, Base::consumer, Base::e, Base::maps, Base::p, Base::shared;
  using typename Base::Layout;

  __device__ __forceinline__ void run() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < Layout::kQs; ++i) {
        mbarrier_init(barrier(Layout::kFullQ, i), 1);
        mbarrier_init(barrier(Layout::kEmptyQ, i), 4);
      }
      mbarrier_init(barrier(Layout::kNearEnd, 0), 1);
      for (int i = 0; i < Layout::kTileStages; ++i) {
        mbarrier_init(barrier(Layout::kFullTile, i), 1);
        if constexpr (Base::kFollowed) {
          mbarrier_init(barrier(Layout::kStoredTile, i), 4 * C::kConsumers);
          mbarrier_init(barrier(Layout::kEmptyTile, i), 2);
        } else {
          mbarrier_init(barrier(Layout::kEmptyTile, i), 4 * C::kConsumers + 1);
        }
      }
      for (int i = 0; i < C::kStagesK; ++i) {
        mbarrier_init(barrier(Layout::kFullK, i), 1);
        mbarrier_init(barrier(Layout::kEmptyK, i), 4 * C::kConsumers);
      }
      for (int i = 0; i < C::kStagesV; ++i) {
        mbarrier_init(barrier(Layout::kFullV, i), 1);
        mbarrier_init(barrier(Layout::kEmptyV, i), 4 * C::kConsumers);
      }
      mbarrier_init_fence();
    }
    if constexpr (C::kClassified) wait_for_dependencies();
    __syncthreads();
    if (consumer < 0) {
      release_registers<C::kProducerRegisters>();
      const Producer producer{{p, e, maps, shared, consumer}};
      if (threadIdx.x < 32) {
        producer.produce_keys();
      } else if (threadIdx.x < 64) {
        producer.produce_tiles();
      } else if (Base::kFollowed && threadIdx.x < 96) {
        ForwardSm90Follower<C, Expressions>{{p, e, maps, shared, consumer}}.follow_tiles();
      }
    } else {
      take_registers<C::kConsumerRegisters>();
      Consumer{{{{p, e, maps, shared, consumer}}}}.consume();
    }
  }
};

template <class C, class Expressions>
__device__ __forceinline__ void forward_sm90(const ForwardParams& p, const Expressions& e,
                                             const ForwardMaps& maps) {
  extern __shared__ __align__(1024) char memory[];
  const int warpgroup = uniform(static_cast<int>(threadIdx.x / 128));
  ForwardSm90<C, Expressions>{{p, e, maps, shared_address(memory), warpgroup - 1}}.run();
}

}  // namespace attn::device
