// Gradients of the buffers that a score reads, on any architecture from sm_80 on, with asynchronous
// copies and products of single warps. With T = score expression (S):
//   dT_ij = P_ij (Z_ij dO_i.v_j - D_i)    (FlashAttention-2, algorithm 2, line 14)
//   d buffer[x] = sum of dT_ij dT/d buffer[x] over all i, j, heads and batch entries that read it
// S and dP are computed again, as no other kernel holds dT where its sum belongs.
//
// A block of threads goes through what schedule/buffer_tiles.cuh says, a tile of kBlockM queries
// and kBlockN keys at a time; a warp has 16 of the queries. Where queries and keys read elements of
// their own, the sum of an element stays in a register and is stored at the end; with two stages
// Q, dO, K and V of the next tile arrive during all of this one.
//
// Reads of C:
//   Element                BFloat16 or Float16
//   kHeadDim, kHeadDimV    multiples of 8, up to 256
//   kGradient              Gradient::buffers
//   kBlockM, kWarps        16 rows a warp
//   kBlockN                a multiple of 32
//   kStages                1 or 2
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kDropout, kRngState
//   kScoreHides            a score may be -inf
// BufferGradients: src/cuda/codegen/buffer_gradients.hpp.
// Q, K, V and dO are 16-byte aligned, and so are their strides. Grid: a block of 32 kWarps threads
// for each of BufferTiles, with BackwardSm80BuffersLayout<C>::kBytes of dynamic shared memory.
#pragma once

#include "device.cuh"
#include "kernels/backward_weights.cuh"
#include "params.cuh"
#include "ptx/cp_async.cuh"
#include "schedule/block_list.cuh"
#include "schedule/buffer_tiles.cuh"
#include "tile/row_product.cuh"
#include "tile/score_vectors.cuh"

namespace attn::device {

// Places in shared memory, in bytes, of a stage: Q, dO, K, V.
template <class C>
struct BackwardSm80BuffersLayout {
  using Tile1 = SharedTile<C::kHeadDim>;   // of Q and K
  using Tile2 = SharedTile<C::kHeadDimV>;  // of dO and V
  static constexpr int kDoAt = C::kBlockM * Tile1::kRowBytes;
  static constexpr int kKAt = kDoAt + C::kBlockM * Tile2::kRowBytes;
  static constexpr int kVAt = kKAt + C::kBlockN * Tile1::kRowBytes;
  static constexpr int kStage = kVAt + C::kBlockN * Tile2::kRowBytes;
  static constexpr int kBytes = C::kStages * kStage;
};

template <class C, class Expressions, class BufferGradients>
struct BackwardSm80Buffers {
  using Layout = BackwardSm80BuffersLayout<C>;
  using Tile1 = typename Layout::Tile1;
  using Tile2 = typename Layout::Tile2;
  using Element = typename C::Element;
  using Tiles = BufferTiles<C, BufferGradients>;
  using Weights = BackwardWeights<C, Expressions, BufferGradients>;
  static constexpr int kThreads = 32 * C::kWarps;
  static constexpr bool kTransposed = false;  // of vectors of a score: 3 to 15 % slower if they are
  static constexpr int kSums = C::kBlockN / 2;  // elements of a tile that a thread holds
  static_assert(C::kBlockM == 16 * C::kWarps && C::kBlockN % 32 == 0);

  const BackwardParams& p;
  const Expressions& e;
  const BufferGradients& gradients;
  const Tiles tiles;
  const unsigned shared;  // 128-byte aligned

  struct Thread {
    float s[kSums], dp[kSums];
    float elements[kSums][BufferGradients::kElementsOr1];
    PendingSum pending[BufferGradients::kLoads];
    unsigned q, d_o, k, v;  // where this lane reads its operands of the first stage
  };

  static ATTN_DEVICE int first_row() { return static_cast<int>(threadIdx.x / 32) * 16; }
  // Row i of the thread's two, counted in the tile.
  static ATTN_DEVICE int row(int i) {
    return first_row() + static_cast<int>(threadIdx.x % 32 / 4) + 8 * i;
  }

  // Rows that are none of the sequence are zeros.
  template <class Tile, int kRows>
  static ATTN_DEVICE void load(unsigned to, const TensorRows& rows, int first) {
    load_tile<Tile, kRows, kThreads>(to, [&](int row) {
      const int index = first + row;
      const bool exists = static_cast<unsigned>(index) < static_cast<unsigned>(rows.count);
      return SourceRow{static_cast<const char*>(rows.data) +
                           2 * (rows.start + (exists ? index : 0) * rows.stride),
                       exists};
    });
  }
  ATTN_DEVICE void load_stage(int stage, int i) const {
    const GradientTile<C> t = tiles.tile(i);
    const unsigned to = shared + static_cast<unsigned>(stage * Layout::kStage);
    const int key = tiles.key_block(i) * C::kBlockN, head_k = t.head_k(p);
    load<Tile1, C::kBlockM>(to, t.of_queries(p.q, p.q_strides, t.head), t.first);
    load<Tile2, C::kBlockM>(to + Layout::kDoAt, t.of_queries(p.d_o, p.d_o_strides, t.head),
                            t.first);
    load<Tile1, C::kBlockN>(to + Layout::kKAt, t.of_keys(p.k, p.k_strides, head_k), key);
    load<Tile2, C::kBlockN>(to + Layout::kVAt, t.of_keys(p.v, p.v_strides, head_k), key);
    copy_async_commit();
  }

  // Adds dT of the i-th tile, whose S and dP the thread holds, to the gradients.
  ATTN_DEVICE void add_tile(Thread& t, int i, bool mixed) const {
    const GradientTile<C> tile = tiles.tile(i);
    const Sequence& q = tile.sequence;
    const Weights weights{p, e, gradients, q, tile.head};
    const RowTerms* all = tile.terms(p, tile.head);
    const int first_key = tiles.key_block(i) * C::kBlockN;
    unsigned long long kept = ~0ull;
    if constexpr (C::kDropout) {
      kept = weights.template draw<C::kBlockN>(tile.first + row(0), first_key);
    }
    const int pair = 2 * static_cast<int>(threadIdx.x % 4);
    const auto query_of = [&](int of_two) { return tile.first + row(of_two); };
    // Adds the dT of register `at`, whose score by expression is x.
    const auto add = [&](int at, int of_two, float x) {
      const int query = query_of(of_two), key = first_key + at / 4 * 8 + pair + at % 2;
      // What rows that are none of the sequence read here is of no use.
      const RowTerms terms = all[max(min(query, q.length_q - 1), 0)];
      const float s = t.s[at];
      const RowReference of_row = weights.reference(lse_in_base_2<C>(terms.lse), query);
      const float probable = weights.probability_of(x, of_row);
      float dot = s, d_t = t.dp[at];
      weights.template weigh<false, true>(probable, dot, d_t, terms.d, query, key, mixed,
                                          (kept >> at & 1) != 0);
      if (d_t != 0) {
        gradients.add(t.pending, t.elements[at], d_t, s * p.scale, query, key, q.batch, tile.head,
                      q.length_q, q.length_k);
      }
    };
    if constexpr (Expressions::kVectorWords > 0) {
      using OfRow = typename Expressions::Vectors;
      const auto load = [&](OfRow& vectors, int i, int first) {
        e.template load_vectors<kTransposed>(vectors, query_of(i), first_key + first, q.batch,
                                             tile.head, q.length_q, q.length_k);
      };
      ScoreVectors<Expressions, C::kBlockN, kTransposed, 1> vectors;
#pragma unroll
      for (int at = 0; at < kSums; ++at) {
        if (at % 16 == 0) vectors.take(e, at / 16, load);
        add(at, at / 2 % 2,
            vectors.score(e, at, t.s[at], query_of(at / 2 % 2), first_key + pair, q.batch,
                          tile.head, q.length_q, q.length_k));
      }
    } else {
#pragma unroll
      for (int at = 0; at < kSums; ++at) {
        float x = t.s[at];
        if constexpr (Expressions::kHasScore) {
          x = e.score(x, query_of(at / 2 % 2), first_key + at / 4 * 8 + pair + at % 2, q.batch,
                      tile.head, q.length_q, q.length_k);
        }
        add(at, at / 2 % 2, x);
      }
    }
    // The next tile may be of other elements: a warp adds them as one.
    if constexpr (Tiles::kOwn) gradients.flush(t.pending);
  }

  // Elements of the thread, `apart` from one another: 0 where one stands for all.
  ATTN_DEVICE void store(const float (*elements)[BufferGradients::kElementsOr1], int apart) const {
    const GradientTile<C> tile = tiles.tile(0);
    const Sequence& q = tile.sequence;
    float order[kSums] = {};
    int next = 0;
    for_each_sum(order, [&](float&, int of_two, int column) {
      gradients.store(elements[apart * next++], tiles.split, tile.first + row(of_two),
                      tiles.block * C::kBlockN + column, q.batch, tile.head, q.length_q,
                      q.length_k);
    });
  }

  // Goes through a list that is not empty.
  template <class List>
  ATTN_DEVICE void add_tiles(Thread& t, List& list) const {
    load_stage(0, list.block());
    int stage = 0;
    while (true) {
      const int i = list.block();
      const bool mixed = list.mixed();
      list.advance();
      const bool ends = !list.more();
      copy_async_wait<0>();
      __syncthreads();  // the tile is here; nobody reads the one before any more
      if constexpr (C::kStages == 2) {
        if (!ends) load_stage(stage ^ 1, list.block());
      }
      const auto at = static_cast<unsigned>(stage * Layout::kStage);
      multiply_rows<Element, Tile1, C::kBlockN>(t.s, t.q + at, t.k + at);
      multiply_rows<Element, Tile2, C::kBlockN>(t.dp, t.d_o + at, t.v + at);
      if constexpr (C::kStages == 1) {
        __syncthreads();  // nobody reads the tile any more
        if (!ends) load_stage(0, list.block());
      }
      add_tile(t, i, mixed);
      if (ends) break;
      stage ^= C::kStages - 1;
    }
  }

  ATTN_DEVICE void run() const {
    const auto coverage_of = [&](int i) { return tiles.coverage(e, i); };
    BlockList list(coverage_of, tiles.count);
    if (!list.more()) {  // elements that nobody sees are 0
      const float none[1][BufferGradients::kElementsOr1] = {};
      if constexpr (Tiles::kOwn) store(none, 0);
      return;
    }
    Thread t;
    t.q = row_operand<Tile1>(shared, first_row());
    t.d_o = row_operand<Tile2>(shared + Layout::kDoAt, first_row());
    t.k = column_operand<Tile1>(shared + Layout::kKAt);
    t.v = column_operand<Tile2>(shared + Layout::kVAt);
#pragma unroll
    for (auto& of_element : t.elements) {
#pragma unroll
      for (float& x : of_element) x = 0;
    }
    add_tiles(t, list);
    gradients.flush(t.pending);
    if constexpr (Tiles::kOwn) store(t.elements, 1);
  }
};

template <class C, class Expressions, class BufferGradients>
ATTN_DEVICE void backward_sm80_buffers(const BackwardParams& p, const Expressions& e,
                                       const BufferGradients& gradients) {
  static_assert(BackwardSm80BuffersLayout<C>::kBytes == C::kSharedBytes);  // that the launch gives
  extern __shared__ __align__(128) char memory[];
  using Kernel = BackwardSm80Buffers<C, Expressions, BufferGradients>;
  const auto tiles = Kernel::Tiles::at(p, gradients.splits, static_cast<int>(blockIdx.x));
  Kernel{p, e, gradients, tiles, static_cast<unsigned>(__cvta_generic_to_shared(memory))}.run();
}

}  // namespace attn::device
