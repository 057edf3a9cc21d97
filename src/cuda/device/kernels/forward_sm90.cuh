// Forward pass on Hopper (sm_90a): FlashAttention-2, algorithm 1, as warp-specialised stages
// (FlashAttention-3, algorithms 1 and 2).
//
// A block of threads is one producer warpgroup, of which three warps ask the copy engine for K, for
// V and for Q, and deal tiles (and under a mask, or where references are judged late, a fourth
// looks at what is stored; with kTransposers one warp asks for K and V, another for Q, and one or
// two transpose V, the first of which looks at what is stored); and C::kConsumers warpgroups with
// 64 rows of Q each. K and V go through rings of C::kStagesK and C::kStagesV tiles. A consumer
// issues S = Q K^T of the next block, O += P V of this one, and does the softmax of the next while
// the second runs. Blocks of threads stay and take one tile of O after the other; Q of the next
// tile arrives while this one ends.
//
// Reads of C:
//   Element, Output        BFloat16 or Float16; of O that or Float32
//   kHeadDim, kHeadDimV    multiples of 8, up to 256
//   kConsumers             warpgroups that compute: 2 or 3
//   kBlockN                keys of a tile, a multiple of 16 (of 32 with kDropout)
//   kStagesK, kStagesV     tiles of K and of V
//   kStagesQ               tiles of Q: a power of two
//   kStoresBoxes           O goes to memory by the copy engine, through tiles of Q
//   kTakeTurns             consumers issue products one after the other
//   kNearBlocks            the next tile is dealt when so many blocks are not asked for
//   kProducerRegisters, kConsumerRegisters   of a thread, multiples of 8
//   kGroup                 query heads of a K, V head that share a tile; divides 64; 1: none share
//   kPageRows              keys of a box: divides kBlockN, a multiple of 8; 0: not paged
//   kClearTail             rows of V past a length may hold anything
//   kTransposers           with kFloat8: V lies as the call gives it, and so many warps, 1 or 2,
//                          transpose it (transposer.cuh); else 0
//   kDropsByProduct        with kDropout: P times 1 or 0, for a DropoutRule whose flip is 0
//   kHidesKeys             rows of O that are not finite are looked at again
//   kClassified            the mask's words are in memory (kernels/classify.cuh)
//   kParts                 of them: kConsumers
//   kGathers               a tile of keys is two blocks of 64, from the lists of
//                          kernels/gather_key_blocks.cuh
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kSplits, kSink, kDropout, kRngState, kMaskBatches,
//   kMaskHeads, kMaxLogit
// and of ProductSS<Element, kBlockN>, ProductRS<Element, kHeadDimV>
// (src/cuda/codegen/wgmma_text.hpp). Grid: up to one block of 128 (1 + kConsumers) threads for each
// multiprocessor, with ForwardSm90Layout<C>::kBytes of dynamic shared memory.
#pragma once

#include "device.cuh"
#include "kernels/forward_sm90/consumer.cuh"
#include "kernels/forward_sm90/follower.cuh"
#include "kernels/forward_sm90/producer.cuh"
#include "kernels/forward_sm90/transposer.cuh"
#include "ptx/dependent.cuh"

namespace attn::device {

template <class C, class Expressions>
ATTN_DEVICE void init_rings(const ForwardSm90Tiles<C, Expressions>& tiles) {
  using Tiles = ForwardSm90Tiles<C, Expressions>;
  using Layout = typename Tiles::Layout;
  constexpr unsigned kWarps = 4 * C::kConsumers;
  for (int i = 0; i < C::kConsumers; ++i) tiles.q_ring(i).init(1, 4);
  mbarrier_init(tiles.shared + Layout::kNearEnd, 1);
  for (unsigned i = 0; i < Layout::kTileStages; ++i) {
    const auto ring = tiles.tile_ring();
    mbarrier_init(ring.full(i), 1);
    if constexpr (Tiles::kFollowed) {
      mbarrier_init(tiles.stored_ring().full(i), kWarps);
      // The producers of K and of V, and the follower; where V is transposed, the producer of both,
      // and the transposers, of which the first follows.
      mbarrier_init(ring.empty(i), Tiles::kTransposes ? 1 + C::kTransposers : 3);
    } else {
      mbarrier_init(ring.empty(i), kWarps + (Tiles::kTransposes ? 1 + C::kTransposers : 2));
    }
  }
  tiles.trust_references();
  tiles.k_ring().init(1, kWarps);
  tiles.v_ring().init(Tiles::kTransposes ? C::kTransposers : 1, kWarps);
  if constexpr (Tiles::kTransposes) {
    for (unsigned i = 0; i < C::kStagesV; ++i) mbarrier_init(tiles.loaded_ring().full(i), 1);
  }
  mbarrier_init_fence();
}

// Of 8-bit floats: the operand whose product with P is the sum of P.
template <class C>
ATTN_DEVICE void store_ones(unsigned shared) {
  constexpr int kOne = Scalar<typename C::OperandV>::kOnes;
  const int i = static_cast<int>(threadIdx.x);
  if (i < ForwardSm90Layout<C>::kOnes / 16) {
    const int w = i < 8 ? kOne : 0;  // the first row
    store_shared(shared + static_cast<unsigned>(ForwardSm90Layout<C>::kOnesAt + 16 * i),
                 {w, w, w, w});
  }
  fence_proxy_async();
}

template <class C, class Expressions>
ATTN_DEVICE void forward_sm90(const ForwardParams& p, const Expressions& e,
                              const ForwardMaps& maps) {
  extern __shared__ __align__(1024) char memory[];
  const int warpgroup = uniform(static_cast<int>(threadIdx.x / 128));
  const ForwardSm90Tiles<C, Expressions> tiles{p, e, maps, shared_address(memory), warpgroup - 1};
  if (threadIdx.x == 0) init_rings(tiles);
  if constexpr (ForwardSm90Layout<C>::kOnes > 0) store_ones<C>(tiles.shared);
  if constexpr (C::kClassified) wait_for_dependencies();
  __syncthreads();
  if (warpgroup == 0) {
    release_registers<C::kProducerRegisters>();
    const ForwardSm90Producer<C, Expressions> producer{tiles};
    if (threadIdx.x < 32) {
      producer.produce_keys();
    } else if (threadIdx.x < 64) {
      producer.produce_tiles();
    } else if (threadIdx.x >= 96) {
      if constexpr (!tiles.kTransposes) {
        producer.produce_values();
      } else if constexpr (C::kTransposers > 1) {
        ForwardSm90Transposer<C, Expressions, 1>{tiles}.transpose_tiles();
      }
    } else if constexpr (tiles.kTransposes) {
      ForwardSm90Transposer<C, Expressions, 0>{tiles}.transpose_tiles();
    } else if (tiles.kFollowed) {
      ForwardSm90Follower<C, Expressions>{tiles}.follow_tiles();
    }
  } else {
    take_registers<C::kConsumerRegisters>();
    ForwardSm90Consumer<C, Expressions>{tiles, {tiles}, {tiles}, {tiles}}.consume();
  }
}

}  // namespace attn::device
