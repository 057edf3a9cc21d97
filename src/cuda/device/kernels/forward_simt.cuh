// Forward pass without tensor cores, for float32 and for what the other kernels do not take: any
// head_dim up to 512, any strides, any alignment. FlashAttention-2, algorithm 1, all in float32.
//
// 128 threads are 8 groups of 16. A group has kBlockM / 8 rows of the tile of Q; a thread of it has
// 4 of the 64 keys of a block for S and 4 of each 64 columns for O. Q stays in shared memory; K and
// V pass through one buffer, 64 columns at a time.
//
// Reads of C:
//   Element, Output        Float32, BFloat16 or Float16; of O that or Float32
//   kHeadDim, kHeadDimV    1 to 576
//   kBlockM                64, or 32 (when a head_dim is above 128)
//   kBlockN                64
//   kGroup                 query heads of a K, V head that share a tile; 1: each has its own
//   kPageSize              of paged K and V; 0: not paged
//   kKeyList               keys by list: a tile has rows of one query
//   CacheK, CacheV, kScaledK, kScaledV   where K or V has a type of its own
//   kHidesKeys             rows of O that are not finite are looked at again
//   kClassified            the mask's words are in memory (kernels/classify.cuh); kParts: 4
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kSplits, kSink, kDropout, kRngState, kMaskBatches,
//   kMaskHeads, kMaxLogit
// Grid: p.num_tiles blocks of 128 threads with ForwardSimtLayout<C>::kBytes of dynamic shared
// memory.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "params.cuh"
#include "ptx/dependent.cuh"
#include "schedule/query_tile.cuh"
#include "softmax/denominator.cuh"
#include "softmax/dropout.cuh"
#include "softmax/max_logit.cuh"
#include "softmax/online.cuh"
#include "softmax/visible_row.cuh"
#include "tile/cache_type.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

// Shared memory, in floats: Q [column][row], one piece of K [column][slot] or V [slot][column], and
// P [slot][row].
template <class C>
struct ForwardSimtLayout {
  static constexpr int kPiece = 64;  // columns of K or V at a time
  static constexpr int kRows =
      C::kBlockM + 4;  // distance of columns of Q: 16 bytes more than needed,
  static constexpr int kSlots = C::kBlockN + 4;  // so that they are written to different banks
  static constexpr int kPAt = C::kHeadDim * kRows;
  static constexpr int kKeysAt = kPAt + C::kBlockN * kRows;
  static constexpr int kBytes = 4 * (kKeysAt + kPiece * kSlots);
};

struct alignas(16) Float4 {
  float x[4];
};
struct alignas(8) Short4 {
  unsigned short x[4];
};
// Four neighbours of a tile in shared memory.
template <class Element>
ATTN_DEVICE Float4 four(const typename Scalar<Element>::Storage* from) {
  const Short4 x = *reinterpret_cast<const Short4*>(from);
  return {{Scalar<Element>::from(x.x[0]), Scalar<Element>::from(x.x[1]),
           Scalar<Element>::from(x.x[2]), Scalar<Element>::from(x.x[3])}};
}
template <>
ATTN_DEVICE Float4 four<Float32>(const float* from) {
  return *reinterpret_cast<const Float4*>(from);
}

template <class C, class Expressions>
struct ForwardSimt {
  using Layout = ForwardSimtLayout<C>;
  using Element = typename C::Element;
  using Blocks = KeyBlocks<C, Expressions, ForwardSimt, true>;
  static constexpr int kThreads = 128;
  static constexpr int kRows = C::kBlockM / 8;  // of a thread
  static constexpr int kPiece = Layout::kPiece;
  static constexpr int kPieces = divide_up<kPiece>(C::kHeadDimV);
  static constexpr float kLog2E = 1.4426950408889634f;
  static_assert(C::kBlockN == 64 && (C::kBlockM == 64 || C::kBlockM == 32));

  const ForwardParams& p;
  const Expressions& e;
  const QueryTile<C> tile;
  float* const shared;  // 16-byte aligned

  struct Thread {
    float o[kPieces][kRows][4];
    float s[kRows][4];
    float m[kRows];  // largest score seen; -inf: none
    float l[kRows];  // sum of P over this thread's keys
  };

  static ATTN_DEVICE int group() { return static_cast<int>(threadIdx.x / 16); }
  static ATTN_DEVICE int member() { return static_cast<int>(threadIdx.x % 16); }
  ATTN_DEVICE int first_row() const { return tile.row0 + group() * kRows; }
  ATTN_DEVICE KeyRange keys(int) const {
    return tile.keys(tile.row0 + part() * 2 * kRows, 2 * kRows);
  }
  ATTN_DEVICE const KeyWord* key_words(int, int window) const { return tile.key_words(p, window); }
  static ATTN_DEVICE int part() { return static_cast<int>(threadIdx.x / 32); }

  // Keys of a block in the order in which threads take them, 4 slots each: those of 32 keys whose
  // dropout bits one call of Philox gives are neighbours.
  static ATTN_DEVICE int key_of(int slot) {
    return slot / 32 * 32 + slot / 2 % 4 * 8 + slot / 8 % 4 * 2 + slot % 2;
  }

  // ---- copies. Elements outside a tensor are zeros.

  ATTN_DEVICE void load_q() const {
    const int column0 = static_cast<int>(threadIdx.x % 8);
    for (int row = static_cast<int>(threadIdx.x / 8); row < C::kBlockM; row += kThreads / 8) {
      const int query = tile.query_of(tile.row0 + row), head = tile.head_of(tile.row0 + row);
      const bool exists = query < tile.sequence.length_q;
      const auto* from =
          element<Element>(p.q, tile.query_row(p.q_strides, exists ? query : 0, head));
#pragma unroll 8
      for (int column = column0; column < C::kHeadDim; column += 8) {
        shared[column * Layout::kRows + row] = exists ? Scalar<Element>::from(from[column]) : 0;
      }
    }
  }

  // Columns [column0, column0 + kPiece) of a block of keys. 16 or 8 neighbouring threads read
  // neighbouring columns. kAcross: threads along a row of the source.
  // row_at(key, start): how the elements of a key's row are read, one by one.
  template <int kColumns, int kAcross, class RowAt, class Put>
  ATTN_DEVICE void load_rows(const Strides& strides, int block, int column0, RowAt row_at,
                             Put put) const {
    const long long start = tile.first_key(strides, tile.key_head(p));
    const int column = column0 + static_cast<int>(threadIdx.x % kAcross);
#pragma unroll 4
    for (int slot = static_cast<int>(threadIdx.x / kAcross); slot < C::kBlockN;
         slot += kThreads / kAcross) {
      const int key = tile.key_at(p, block * C::kBlockN + key_of(slot));
      const bool exists = tile.has_key(p, key);
      const auto from = row_at(key, exists, start + tile.key_row(p, strides, exists ? key : 0));
#pragma unroll
      for (int i = 0; i < kPiece; i += kAcross) {
        const bool inside = exists && column + i < kColumns;
        put(slot, column - column0 + i, inside ? from(column + i) : 0);
      }
    }
  }
  template <int kColumns, int kAcross, class Put>
  ATTN_DEVICE void load_keys(const void* data, const Strides& strides, int block, int column0,
                             Put put) const {
    load_rows<kColumns, kAcross>(
        strides, block, column0,
        [&](int, bool, long long at) {
          const auto* const row = element<Element>(data, at);
          return [row](int i) { return Scalar<Element>::from(row[i]); };
        },
        put);
  }
  // The same of K or V in a type of its own.
  template <class Cache, bool kScaled, int kColumns, int kAcross, class Put>
  ATTN_DEVICE void load_cached_keys(const void* data, const Strides& strides, const float* scales,
                                    const Strides& scale_strides, int block, int column0,
                                    Put put) const {
    load_rows<kColumns, kAcross>(
        strides, block, column0,
        [&](int key, bool exists, long long at) {
          const char* const row = static_cast<const char*>(data) + Cache::kStorageBytes * at;
          const float scale =
              exists ? scale_of_key<kScaled>(p, tile, scales, scale_strides, key) : 0.f;
          return [=](int i) { return Cache::element(row, i) * scale; };
        },
        put);
  }
  ATTN_DEVICE void load_k(int block, int column0) const {
    float* to = shared + Layout::kKeysAt;
    const auto put = [&](int slot, int column, float x) { to[column * Layout::kSlots + slot] = x; };
    if constexpr (kIsCached<C>) {
      const auto& params = static_cast<const CachedForwardParams&>(p);
      load_cached_keys<typename C::CacheK, C::kScaledK, C::kHeadDim, 8>(
          p.k, p.k_strides, params.scale_k, params.scale_k_strides, block, column0, put);
    } else {
      load_keys<C::kHeadDim, 8>(p.k, p.k_strides, block, column0, put);
    }
  }
  ATTN_DEVICE void load_v(int block, int column0) const {
    float* to = shared + Layout::kKeysAt;
    const auto put = [&](int slot, int column, float x) { to[slot * kPiece + column] = x; };
    if constexpr (kIsCached<C>) {
      const auto& params = static_cast<const CachedForwardParams&>(p);
      load_cached_keys<typename C::CacheV, C::kScaledV, C::kHeadDimV, 16>(
          p.v, p.v_strides, params.scale_v, params.scale_v_strides, block, column0, put);
    } else {
      load_keys<C::kHeadDimV, 16>(p.v, p.v_strides, block, column0, put);
    }
  }

  // ---- products

  // d[r][i] += a[r] b[i] over `count` steps; steps of a are kA floats apart, those of b, which is
  // stored as Operand, kB elements.
  template <int kA, int kB, class Operand = Float32>
  static ATTN_DEVICE void multiply(float (&d)[kRows][4], const float* a,
                                   const typename Scalar<Operand>::Storage* b, int count) {
#pragma unroll(kPieces > 4 ? 4 : 8)  // compile time
    for (int step = 0; step < count; ++step) {
      float x[kRows];
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        const Float4 rows = four<Float32>(a + step * kA + r);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[r + i] = rows.x[i];
      }
      const Float4 y = four<Operand>(b + step * kB);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) d[r][i] = fmaf(x[r], y.x[i], d[r][i]);
      }
    }
  }

  static ATTN_DEVICE void clear_s(Thread& t) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) t.s[r][i] = 0;
    }
  }

  ATTN_DEVICE void multiply_qk(Thread& t, int block, bool empty) const {
    clear_s(t);
#pragma unroll 1
    for (int column = 0; column < C::kHeadDim; column += kPiece) {
      __syncthreads();  // nobody reads the buffer any more
      load_k(block, column);
      __syncthreads();
      if (empty) continue;
      multiply<Layout::kRows, Layout::kSlots>(
          t.s, shared + column * Layout::kRows + group() * kRows,
          shared + Layout::kKeysAt + 4 * member(), min(kPiece, C::kHeadDim - column));
    }
  }

  ATTN_DEVICE void multiply_pv(Thread& t, int block, bool empty) const {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      __syncthreads();  // nobody reads the buffer any more; P is there
      load_v(block, piece * kPiece);
      __syncthreads();
      if (empty) continue;
      multiply<Layout::kRows, kPiece>(t.o[piece], shared + Layout::kPAt + group() * kRows,
                                      shared + Layout::kKeysAt + 4 * member(), C::kBlockN);
    }
  }

  // ---- softmax

  // The largest x of the 16 threads that share rows.
  static ATTN_DEVICE float group_max(float x) {
    x = quad_max(x);
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 8));
  }
  static ATTN_DEVICE float group_sum(float x) {
    x = quad_sum(x);
    x += __shfl_xor_sync(~0u, x, 4);
    return x + __shfl_xor_sync(~0u, x, 8);
  }

  // Changes S as score and mask say.
  ATTN_DEVICE void change_scores(Thread& t, int block, bool mixed) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first_row() + r;
      const int query = tile.query_of(row), head = tile.head_of(row);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = block * C::kBlockN + key_of(4 * member() + i);
        float& x = t.s[r][i];
        if constexpr (Expressions::kHasScore) {
          x = tile.score(p, e, x, query, head, key);
        }
        if (mixed) x = tile.sees(p, e, query, head, key) ? x : minus_infinity();
      }
    }
  }

  // S <- P = 2^(c (s - m)): the difference is taken first, which is exact where P is near 1.
  ATTN_DEVICE void softmax(Thread& t, int block) const {
    const float c = Expressions::kHasScore ? Expressions::kScoreFactor * kLog2E : p.scale_log2;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float top = minus_infinity();
#pragma unroll
      for (int i = 0; i < 4; ++i) top = fmaxf(top, t.s[r][i]);
      const float m = fmaxf(t.m[r], group_max(top));
      const float from = m == minus_infinity() ? 0 : m;
      if (m != t.m[r]) {
        const float alpha = exp2f((t.m[r] - from) * c);
        t.l[r] *= alpha;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
          for (int i = 0; i < 4; ++i) t.o[piece][r][i] *= alpha;
        }
        t.m[r] = m;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        t.s[r][i] = exp2f((t.s[r][i] - from) * c);
        t.l[r] += t.s[r][i];
      }
      if constexpr (C::kDropout) {
        drop(t.s[r], tile.query_of(first_row() + r), tile.head_of(first_row() + r), block);
      }
    }
  }

  ATTN_DEVICE void drop(float (&s)[4], int query, int head, int block) const {
    const auto dropout = dropout_of<C::kRngState>(p, tile.sequence.batch);
    const DropoutRow row(
        dropout,
        static_cast<unsigned>(tile.sequence.batch) * static_cast<unsigned>(p.heads_q) +
            static_cast<unsigned>(head),
        static_cast<unsigned>(query));
    // Slots 4 x to 4 x + 3 have two pairs of one call.
    const int x = member(), t = 4 * (x / 8) + 2 * (x % 2);
    const DropoutCall drawn = row.call(DropoutColumns(dropout, block, x / 2 % 4));
    row.apply(s[0], s[1], drawn.pair_at(t));
    row.apply(s[2], s[3], drawn.pair_at(t + 1));
  }

  // P, from where multiply_pv takes it.
  ATTN_DEVICE void store_p(const Thread& t) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* to = shared + Layout::kPAt + (4 * member() + i) * Layout::kRows + group() * kRows;
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        *reinterpret_cast<Float4*>(to +
                                   r) = {{t.s[r][i], t.s[r + 1][i], t.s[r + 2][i], t.s[r + 3][i]}};
      }
    }
  }

  // ---- the tile

  static ATTN_DEVICE void clear(Thread& t) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      t.m[r] = minus_infinity();
      t.l[r] = 0;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
        for (int i = 0; i < 4; ++i) t.o[piece][r][i] = 0;
      }
    }
  }

  // Stores O times a factor, or zeros, of row r of the thread.
  ATTN_DEVICE void store_row(const Thread& t, int r, float factor, bool zero) const {
    const int query = tile.query_of(first_row() + r), head = tile.head_of(first_row() + r);
    const long long part = C::kSplits ? tile.partial_row(p, query, head) : 0;
    const long long at = C::kSplits ? 0 : tile.query_row(p.o_strides, query, head);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = piece * kPiece + 4 * member() + i;
        const float x = zero ? 0 : t.o[piece][r][i] * factor;
        if (C::kHeadDimV % kPiece != 0 && column >= C::kHeadDimV) continue;
        if constexpr (C::kSplits) {
          p.partial_o[part * C::kHeadDimV + column] = x;
        } else {
          using Output = typename C::Output;
          *element<Output>(p.o, at + column) = Scalar<Output>::to(x);
        }
      }
    }
  }

  // Stores O / l and LSE of row r of the thread.
  ATTN_DEVICE void finish_row(Thread& t, int r) const {
    const int row = first_row() + r;
    const int query = tile.query_of(row), head = tile.head_of(row);
    const bool used = query < tile.sequence.length_q;
    const float l = group_sum(t.l[r]);
    if (query >= tile.sequence.rows_q) return;
    float sink = minus_infinity();
    if constexpr (C::kSink) {
      if (!C::kSplits || tile.split == 0) sink = p.sink[head];
    }
    const TwoFloats m =
        product(t.m[r], Expressions::kHasScore ? Expressions::kScoreFactor : p.scale);
    const Denominator d = denominator<C::kSink, false, C::kSplits>(m, l, sink);
    const float factor = C::kDropout ? d.inverse * p.dropout_scale : d.inverse;
    const float lse = used ? d.lse : minus_infinity();
    store_row(t, r, factor, !used || l == 0);  // zeros whatever V holds
    if (member() != 0) return;
    if constexpr (C::kMaxLogit) {
      if (used) raise_max_logit(p, head, largest_or_nan(m.value, l));
    }
    if constexpr (C::kSplits) {
      p.partial_lse[tile.partial_row(p, query, head)] = used ? d.part : nothing_seen();
    } else if (p.lse != nullptr) {
      p.lse[tile.query_row(p.lse_strides, query, head)] = lse;
    }
  }

  ATTN_DEVICE void finish(Thread& t) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) finish_row(t, r);
    repair(t);
  }
  // Rows of O that are not finite, which are stored, are computed again.
  ATTN_DEVICE void repair(const Thread& t) const {
    if constexpr (C::kHidesKeys) {
      float zero = 0;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) zero += zero_if_finite(t.o[piece][r]);
      }
      if (__any_sync(~0u, zero != 0)) {
        write_visible_rows<C>(p, e, tile, tile.row0 + part() * 2 * kRows, 2 * kRows);
      }
    }
  }

  ATTN_DEVICE void run() const {
    if constexpr (C::kClassified) wait_for_dependencies();
    Thread t;
    clear(t);
    Blocks list(*this, 0);
    if (list.more()) load_q();
#pragma unroll 1
    for (; list.more(); list.advance(*this, 0)) {
      const bool empty = list.empty_for_own();
      multiply_qk(t, list.block(), empty);
      if (!empty) {
        change_scores(t, list.block(), list.mixed());
        softmax(t, list.block());
        store_p(t);
      }
      multiply_pv(t, list.block(), empty);
    }
    if constexpr (C::kSplits) launch_dependents();
    finish(t);
  }
};

// The dynamic shared memory of a block.
ATTN_DEVICE float* shared_memory() {
  extern __shared__ __align__(16) float shared_floats[];
  return shared_floats;
}

template <class C, class Expressions>
ATTN_DEVICE void forward_simt(const ForwardParams& p, const Expressions& e) {
  static_assert(ForwardSimtLayout<C>::kBytes == C::kSharedBytes);  // that the launch gives
  ForwardSimt<C, Expressions>{p, e, QueryTile<C>::at(p, static_cast<int>(blockIdx.x)),
                              shared_memory()}
      .run();
}

}  // namespace attn::device
