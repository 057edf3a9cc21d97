// Forward pass on any architecture from sm_80 on: FlashAttention-2, algorithm 1, with asynchronous
// copies and products of single warps.
//
// A block of threads takes one tile of Q; each of its warps has 16 or 32 rows. K and V tiles come
// by cp.async: with one stage V arrives during S = Q K^T and the next K during softmax and O += P
// V; with two, K and V of the next block arrive during all of this one.
//
// Reads of C:
//   Element, Output        BFloat16 or Float16; of O that or Float32
//   kHeadDim, kHeadDimV    multiples of 8, up to 256
//   kBlockM, kWarps        16 or 32 rows a warp; 4 or 8 warps
//   kBlockN                keys of a tile, a multiple of 32
//   kStages                K, V tiles: 1 or 2
//   kGroup                 query heads of a K, V head that share a tile; 1: each has its own
//   kPageSize              of paged K and V; 0: not paged
//   kHidesKeys             rows of O that are not finite are looked at again
//   kClassified            the mask's words are in memory (kernels/classify.cuh); kParts: kWarps
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kSplits, kSink, kDropout, kRngState, kMaskBatches,
//   kMaskHeads, kMaxLogit
// Q, K, V and O are 16-byte aligned, and so are their strides. Grid: p.num_tiles blocks of 32
// kWarps threads with ForwardSm80Layout<C>::kBytes of dynamic shared memory.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent.cuh"
#include "ptx/mma.cuh"
#include "ptx/special.cuh"
#include "schedule/query_tile.cuh"
#include "softmax/denominator.cuh"
#include "softmax/dropout.cuh"
#include "softmax/lazy.cuh"
#include "softmax/max_logit.cuh"
#include "softmax/visible_row.cuh"
#include "tile/accumulator.cuh"
#include "tile/score_vectors.cuh"
#include "tile/shared_tile.cuh"
#include "tile/warp_values.cuh"

namespace attn::device {

// Places in shared memory, in bytes: Q, then for each stage K and V.
template <class C>
struct ForwardSm80Layout {
  using TileK = SharedTile<C::kHeadDim>;  // and Q
  using TileV = SharedTile<C::kHeadDimV>;
  static constexpr int kQ = C::kBlockM * TileK::kRowBytes;
  static constexpr int kK = C::kBlockN * TileK::kRowBytes, kV = C::kBlockN * TileV::kRowBytes;
  static constexpr int kKAt = kQ, kVAt = kKAt + C::kStages * kK;
  static constexpr int kBytes = kVAt + C::kStages * kV;
};

template <class C, class Expressions>
struct ForwardSm80 {
  using Layout = ForwardSm80Layout<C>;
  using TileK = typename Layout::TileK;
  using TileV = typename Layout::TileV;
  using Element = typename C::Element;
  using Output = typename C::Output;
  using Blocks = KeyBlocks<C, Expressions, ForwardSm80, true>;
  static constexpr int kThreads = 32 * C::kWarps;
  static constexpr int kRows = C::kBlockM / C::kWarps;  // of a warp
  static constexpr int kTiles = kRows / 16;
  static constexpr int kSteps = TileK::kChunks / 2;
  static constexpr float kLog2E = 1.4426950408889634f;
  static_assert(Layout::kBytes == C::kSharedBytes);  // that the launch gives
  static_assert(kRows == 16 || kRows == 32);
  static_assert(C::kBlockN % (C::kDropout ? 32 : 16) == 0 && (C::kStages == 1 || C::kStages == 2));

  const ForwardParams& p;
  const Expressions& e;
  const QueryTile<C> tile;
  const unsigned shared;  // 128-byte aligned

  struct Warp {
    float o[kTiles][C::kHeadDimV / 2];
    float s[kTiles][C::kBlockN / 2];
    LazySoftmax softmax[kTiles];
    // The addresses at which this lane reads its operands (SharedTile::lane).
    unsigned q_lane, k_lane, v_lane;
  };

  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  // First row of the warp.
  ATTN_DEVICE int warp_row() const {
    return tile.row0 + static_cast<int>(threadIdx.x / 32) * kRows;
  }
  ATTN_DEVICE KeyRange keys(int) const { return tile.keys(warp_row(), kRows); }
  ATTN_DEVICE const KeyWord* key_words(int, int window) const { return tile.key_words(p, window); }
  static ATTN_DEVICE int part() { return static_cast<int>(threadIdx.x / 32); }

  // ---- copies

  ATTN_DEVICE void load_q() const {
    load_tile<TileK, C::kBlockM, kThreads>(shared, [&](int row) {
      const int query = tile.query_of(tile.row0 + row), head = tile.head_of(tile.row0 + row);
      const bool exists = query < tile.sequence.length_q;
      return SourceRow{
          static_cast<const char*>(p.q) + 2 * tile.query_row(p.q_strides, exists ? query : 0, head),
          exists};
    });
  }
  // Rows past the length are zeros: P = 0 would not undo a NaN in V.
  template <class Tile>
  ATTN_DEVICE void load_keys(unsigned to, const char* from, const Strides& strides,
                             int block) const {
    const int key0 = block * C::kBlockN;
    if constexpr (C::kPageSize > 0) {
      load_tile<Tile, C::kBlockN, kThreads>(to, [&](int row) {
        const bool exists = tile.has_key(p, key0 + row);
        return SourceRow{from + 2 * tile.key_row(p, strides, exists ? key0 + row : 0), exists};
      });
    } else {
      load_tile<Tile, C::kBlockN, kThreads>(to, from + key0 * (2 * strides.row), 2 * strides.row,
                                            tile.sequence.length_k - key0);
    }
  }
  ATTN_DEVICE void load_k(int stage, const char* from, int block) const {
    load_keys<TileK>(shared + Layout::kKAt + stage * Layout::kK, from, p.k_strides, block);
  }
  ATTN_DEVICE void load_v(int stage, const char* from, int block) const {
    load_keys<TileV>(shared + Layout::kVAt + stage * Layout::kV, from, p.v_strides, block);
  }

  // ---- products

  ATTN_DEVICE void multiply_qk(Warp& w, int stage) const {
    const unsigned k_lane = w.k_lane + static_cast<unsigned>(stage * Layout::kK);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < C::kBlockN / 2; ++i) w.s[m][i] = 0;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      unsigned q[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        load_matrices(q[m], TileK::further(w.q_lane, 16 * m, 2 * step));
      }
#pragma unroll
      for (int j = 0; j < C::kBlockN / 16; ++j) {
        unsigned k[4];
        load_matrices(k, TileK::further(k_lane, 16 * j, 2 * step));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply(Element{}, w.s[m] + 8 * j, q[m], k[0], k[1]);
          multiply(Element{}, w.s[m] + 8 * j + 4, q[m], k[2], k[3]);
        }
      }
    }
  }

  // ---- softmax

  // Calls f(score, query, head, key, step) for each score of 16 rows, whose key is key + step; step
  // is a constant.
  template <class F>
  ATTN_DEVICE void for_each_score(float (&s)[C::kBlockN / 2], int m, int block, F f) const {
    const int key = block * C::kBlockN + 2 * (lane() % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row() + 16 * m + lane() / 4 + 8 * i;
      const int query = tile.query_of(row), head = tile.head_of(row);
#pragma unroll
      for (int j = 0; j < C::kBlockN / 8; ++j) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          f(s[4 * j + 2 * i + column], query, head, key, 8 * j + column);
        }
      }
    }
  }

  // S <- the scores of 16 rows, whose elements of buffers are loaded for 32 keys at a time.
  ATTN_DEVICE void apply_vectors(float (&s)[C::kBlockN / 2], int m, int block) const {
    using Vectors = typename Expressions::Vectors;
    const Sequence& q = tile.sequence;
    const int key = block * C::kBlockN;
    const auto row = [&](int i) { return warp_row() + 16 * m + lane() / 4 + 8 * i; };
    const auto load = [&](Vectors& vectors, int i, int first) {
      e.template load_vectors<true>(vectors, tile.query_of(row(i)), key + first, q.batch,
                                    tile.head_of(row(i)), q.length_q, q.length_k);
    };
    ScoreVectors<Expressions, C::kBlockN, true, 1> vectors;
#pragma unroll
    for (int r = 0; r < C::kBlockN / 2; ++r) {
      if (r % 16 == 0) vectors.take(e, r / 16, load);
      const int of_two = r / 2 % 2;
      s[r] = vectors.score(e, r, s[r], tile.query_of(row(of_two)), key + 2 * (lane() % 4), q.batch,
                           tile.head_of(row(of_two)), q.length_q, q.length_k);
    }
  }

  // Makes P of a block as operands, and multiplies O where the references moved.
  ATTN_DEVICE void softmax(Warp& w, unsigned (&p16)[kTiles][C::kBlockN / 4], int block,
                           bool mixed) const {
    const Sequence& q = tile.sequence;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if constexpr (Expressions::kVectorWords > 0) {
        apply_vectors(w.s[m], m, block);
      } else if constexpr (Expressions::kHasScore) {
        for_each_score(w.s[m], m, block, [&](float& x, int query, int head, int key, int step) {
          x = e.score(x, query, key, q.batch, head, q.length_q, q.length_k, step);
        });
      }
      if (mixed) {
        for_each_score(w.s[m], m, block, [&](float& x, int query, int head, int first, int step) {
          const int key = first + step;
          bool visible = key < q.length_k;
          if constexpr (Expressions::kHasMask) {
            visible = visible & e.mask(query, key, q.batch, head, q.length_q, q.length_k);
          }
          x = visible ? x : minus_infinity();
        });
      }
      float alpha[2];
      const float c = Expressions::kHasScore ? Expressions::kScoreFactor * kLog2E : p.scale_log2;
      if (w.softmax[m].template exponentiate<Expressions::kHasScore, C::kMaxLogit>(w.s[m], c,
                                                                                   alpha)) {
#pragma unroll
        for (int i = 0; i < C::kHeadDimV / 2; ++i) w.o[m][i] *= alpha[i / 2 % 2];
      }
      to_operand<Element>(w.s[m], p16[m]);
      if constexpr (C::kDropout) drop_elements(p16[m], m, block);
    }
  }

  ATTN_DEVICE void drop_elements(unsigned (&p16)[C::kBlockN / 4], int m, int block) const {
    const auto dropout = dropout_of<C::kRngState>(p, tile.sequence.batch);
    const auto row = [&](int i) {
      const int r = warp_row() + 16 * m + lane() / 4 + 8 * i;
      return DropoutRow(
          dropout,
          static_cast<unsigned>(tile.sequence.batch) * static_cast<unsigned>(p.heads_q) +
              static_cast<unsigned>(tile.head_of(r)),
          static_cast<unsigned>(tile.query_of(r)));
    };
    const DropoutRow<C::kRngState> rows[2] = {row(0), row(1)};
    drop<false, Element>(p16, rows, block * C::kBlockN, lane() % 4);
  }

  // ---- the tile

  // Goes through the blocks of keys of a list that is not empty.
  ATTN_DEVICE void attend(Warp& w, Blocks& list) const {
    const int head = tile.key_head(p);
    const char* k = static_cast<const char*>(p.k) + 2 * tile.first_key(p.k_strides, head);
    const char* v = static_cast<const char*>(p.v) + 2 * tile.first_key(p.v_strides, head);
    load_q();
    load_k(0, k, list.block());
    if constexpr (C::kStages == 2) load_v(0, v, list.block());
    copy_async_commit();
    int stage = 0;
    while (true) {
      const int block = list.block();
      const bool mixed = list.mixed(), empty = list.empty_for_own();
      list.advance(*this, 0);
      const bool ends = !list.more();
      copy_async_wait<0>();
      __syncthreads();  // K is here; nobody reads the block before any more
      if constexpr (C::kStages == 2) {
        if (!ends) {
          load_k(stage ^ 1, k, list.block());
          load_v(stage ^ 1, v, list.block());
        }
      } else {
        load_v(0, v, block);
      }
      copy_async_commit();
      if (!empty) multiply_qk(w, stage);
      if constexpr (C::kStages == 1) {
        copy_async_wait<0>();
        __syncthreads();  // V is here; nobody reads K any more
        if (!ends) load_k(0, k, list.block());
        copy_async_commit();
      }
      if (!empty) {
        unsigned p16[kTiles][C::kBlockN / 4];
        softmax(w, p16, block, mixed);
        // V is not read ahead into the softmax, which has no registers to spare.
        __syncwarp();
        multiply_values<Element, TileV>(w.o, p16,
                                        w.v_lane + static_cast<unsigned>(stage * Layout::kV));
      }
      if (ends) break;
      stage ^= C::kStages - 1;
    }
  }

  // Stores O / l and LSE of a thread's row i of two.
  ATTN_DEVICE void finish(Warp& w, int m, int i) const {
    const int row = warp_row() + 16 * m + lane() / 4 + 8 * i;
    const int query = tile.query_of(row), head = tile.head_of(row);
    const bool exists = query < tile.sequence.rows_q;
    const bool used = query < tile.sequence.length_q;
    const float l = quad_sum(w.softmax[m].l[i]);
    // The sink is added once to a row: where keys are split, by the first split.
    float sink = minus_infinity();
    if constexpr (C::kSink) {
      if (exists && (!C::kSplits || tile.split == 0)) sink = p.sink[head];
    }
    const TwoFloats top = natural_top<Expressions::kHasScore>(w.softmax[m].r[i], w.softmax[m].m[i],
                                                              Expressions::kScoreFactor);
    const Denominator d = denominator<C::kSink, true, C::kSplits>(top, l, sink);
    const float lse = used ? d.lse : minus_infinity();
    raise_row<Expressions>(p, tile, row, w.softmax[m].top[i], l);
    float factor = C::kDropout ? d.inverse * p.dropout_scale : d.inverse;
    if (C::kUsedQ && !used) factor = 0;  // l may be NaN
    // Rows that see nothing are 0 whatever V holds.
    if (!used || l == 0) {
#pragma unroll
      for (int j = 0; j < C::kHeadDimV / 8; ++j) {
        w.o[m][4 * j + 2 * i] = 0;
        w.o[m][4 * j + 2 * i + 1] = 0;
      }
    }
    if constexpr (C::kSplits) {
      if (!exists) return;
      const long long part = tile.partial_row(p, query, head);
      float2* o = reinterpret_cast<float2*>(p.partial_o + part * C::kHeadDimV) + lane() % 4;
#pragma unroll
      for (int j = 0; j < C::kHeadDimV / 8; ++j) {
        o[4 * j] = {w.o[m][4 * j + 2 * i] * factor, w.o[m][4 * j + 2 * i + 1] * factor};
      }
      if (lane() % 4 == 0) p.partial_lse[part] = used ? d.part : nothing_seen();
    } else {
      auto* const o = element<Output>(p.o, tile.query_row(p.o_strides, query, head));
      store_row<Output, C::kHeadDimV>(w.o[m], i, factor, o, exists);
      if (p.lse != nullptr && exists && lane() % 4 == 0) {
        p.lse[tile.query_row(p.lse_strides, query, head)] = lse;
      }
    }
  }

  ATTN_DEVICE void run() const {
    if constexpr (C::kClassified) wait_for_dependencies();
    Warp w;
    const int l = lane(), row = static_cast<int>(threadIdx.x / 32) * kRows;
    w.q_lane = TileK::lane(shared, row + l % 16, l / 16);
    w.k_lane = TileK::lane(shared + Layout::kKAt, l / 16 * 8 + l % 8, l / 8 % 2);
    w.v_lane = TileV::lane(shared + Layout::kVAt, l % 16, l / 16);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < C::kHeadDimV / 2; ++i) w.o[m][i] = 0;
    }
    Blocks list(*this, 0);
    if (list.more()) attend(w, list);
    if constexpr (C::kSplits) launch_dependents();
    // The tile is worked out again rather than kept in registers all along.
    const ForwardSm80 same{p, e, QueryTile<C>::at(p, block_index_anew()), shared};
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      same.finish(w, m, 0);
      same.finish(w, m, 1);
    }
    if constexpr (C::kHidesKeys) {
      float zero = 0;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) zero += zero_if_finite(w.o[m]);
      if (__any_sync(~0u, zero != 0)) {
        write_visible_rows<C>(p, e, same.tile, same.warp_row(), kRows);
      }
    }
  }
};

template <class C, class Expressions>
ATTN_DEVICE void forward_sm80(const ForwardParams& p, const Expressions& e) {
  extern __shared__ __align__(128) char memory[];
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  using Kernel = ForwardSm80<C, Expressions>;
  Kernel{p, e, QueryTile<C>::at(p, block_index_anew()), shared}.run();
}

}  // namespace attn::device
