// One gradient of the backward pass, dQ, dK, dV or those of the buffers that the score reads,
// without tensor cores: for float32 and for any head_dim up to 512, any strides, any alignment.
// FlashAttention-2, algorithm 2, all in float32, but each gradient has a pass of its own over S: a
// tile of its rows stays in registers, so nothing is added in memory and equal inputs give equal
// bits.
//
// With T = score expression (S), of a row's LSE and D (kernels/backward_rows.cuh):
//   dV_j = sum_i Z_ij P_ij dO_i            P_ij = exp(T_ij - LSE_i)
//   dQ_i = scale sum_j dS_ij k_j           dS_ij = P_ij (Z_ij dO_i.v_j - D_i) dT/dS
//   dK_j = scale sum_i dS_ij q_i
// A tile has kBlockM rows of the gradient: keys for dK and dV, queries for dQ. What they meet, the
// columns, comes in blocks of 64: of dK and dV the queries of every head of the group. Gradients of
// buffers have tiles of queries too (schedule/buffer_tiles.cuh, expr/buffer_gradient.cuh).
//
// 128 threads are 8 groups of 16. A group has kBlockM / 8 rows; a thread of it has 4 of the 64
// columns of S and 4 of each 64 columns of the gradient. Operands pass through shared memory, 64 of
// their columns at a time.
//
// Reads of C:
//   Element                Float32, BFloat16 or Float16
//   Stored                 of the gradient: Element or, of dK and dV, Float32
//   kHeadDim, kHeadDimV    1 to 512
//   kGradient              Gradient::dq, dk, dv or buffers; ds, of backward_standard.cuh
//   kBlockM                64, or 32 (when the gradient has more than 128 columns)
//   kBlockN                64
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kDropout, kRngState
//   kScoreHides            a score may be -inf
//   kFarRows               softmax/far_rows.cuh
// Slope, BufferGradients: src/cuda/codegen/expression_gradients.hpp, buffer_gradients.hpp; the
// latter with Gradient::buffers. Grid: a block of 128 threads for each tile, batch entry and head
// (of Q for dQ, else of K), with BackwardSimtLayout<C>::kBytes of dynamic shared memory.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "expr/buffer_gradient.cuh"
#include "params.cuh"
#include "ptx/math.cuh"
#include "schedule/block_list.cuh"
#include "schedule/buffer_tiles.cuh"
#include "schedule/gradient_tile.cuh"
#include "softmax/dropout.cuh"
#include "softmax/scalar_probability.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

// Shared memory, in floats: a piece of the rows [column][row], one of the columns [column][slot] or
// [slot][column], and the weights of the rows [slot][row]. A piece is 64 columns of a tensor.
template <class C>
struct BackwardSimtLayout {
  static constexpr int kPiece = 64, kColumns = C::kBlockN;
  // 16 bytes more than needed, so that neighbours lie in different banks.
  static constexpr int kRows = C::kBlockM + 4, kSlots = kColumns + 4;
  static constexpr int kColumnsAt = kPiece * kRows;
  static constexpr int kWeightsAt = kColumnsAt + kPiece * kSlots;
  static constexpr int kBytes = 4 * (kWeightsAt + kColumns * kRows);
};

// Derivatives: Slope, or BufferGradients.
template <class C, class Expressions, class Derivatives>
struct BackwardSimt {
  using Element = typename C::Element;
  using Stored = typename C::Stored;
  using Layout = BackwardSimtLayout<C>;
  static constexpr bool kOfKeys = GradientTile<C>::kOfKeys;
  static constexpr bool kBuffers = C::kGradient == Gradient::buffers;
  static constexpr int kThreads = 128;
  static constexpr int kRows = C::kBlockM / 8;  // of a thread
  static constexpr int kPiece = Layout::kPiece, kColumns = Layout::kColumns;
  static constexpr int kWidth = kBuffers || C::kGradient == Gradient::ds ? 0
                                : C::kGradient == Gradient::dv           ? C::kHeadDimV
                                                                         : C::kHeadDim;
  static constexpr int kPieces = divide_up<kPiece>(kWidth);  // of the gradient

  struct alignas(16) Four {
    float x[4];
  };
  struct Thread {
    float gradient[kPieces > 0 ? kPieces : 1][kRows][4];
    float s[kRows][4], dp[kRows][4];
    unsigned kept;  // by dropout: bit 4 r + i of s[r][i]
  };
  // What a thread has of the gradients of buffers that is not in memory yet.
  struct BufferSums {
    PendingSum pending[Derivatives::kLoads];
    float elements[kRows][4][Derivatives::kElementsOr1] = {};
  };

  const BackwardParams& p;
  const Expressions& e;
  const Derivatives& derivatives;
  const GradientTile<C> tile;
  float* const shared;

  static ATTN_DEVICE int group() { return static_cast<int>(threadIdx.x / 16); }
  static ATTN_DEVICE int member() { return static_cast<int>(threadIdx.x % 16); }

  // Slots of keys are in an order in which those of 32 keys that one call of Philox serves are
  // eight neighbours.
  static ATTN_DEVICE int key_of(int slot) {
    return slot / 32 * 32 + slot / 2 % 4 * 8 + slot / 8 % 4 * 2 + slot % 2;
  }
  static ATTN_DEVICE int row_of(int slot) { return kOfKeys ? key_of(slot) : slot; }
  static ATTN_DEVICE int column_of(int slot) { return kOfKeys ? slot : key_of(slot); }

  // ---- copies. Elements outside a tensor or past a length are zeros.

  // put(slot, column, x) for kPiece columns from column0 on of rows index_of(slot), kSlots of them.
  template <int kSlots, int kWidthOf, class IndexOf, class Put>
  static ATTN_DEVICE void load(const TensorRows& rows, int column0, IndexOf index_of, Put put) {
    const int column = static_cast<int>(threadIdx.x % 16);
#pragma unroll(kPieces > 4 ? 1 : 2)  // registers
    for (int slot = static_cast<int>(threadIdx.x / 16); slot < kSlots; slot += kThreads / 16) {
      const int index = index_of(slot);
      const bool exists = static_cast<unsigned>(index) < static_cast<unsigned>(rows.count);
      const auto* from =
          element<Element>(rows.data, rows.start + (exists ? index : 0) * rows.stride);
#pragma unroll
      for (int c = column; c < kPiece; c += 16) {
        const bool inside = exists && column0 + c < kWidthOf;
        put(slot, c, inside ? Scalar<Element>::from(from[column0 + c]) : 0);
      }
    }
  }

  // ---- products

  // d[r][i] += a[r] b[i] over `count` steps; steps of a and b are kA and kB floats apart. kCareful:
  // where a is 0, b may be anything, since what a row does not see must not reach it.
  template <int kA, int kB, bool kCareful = false>
  static ATTN_DEVICE void multiply(float (&d)[kRows][4], const float* a, const float* b,
                                   int count) {
#pragma unroll 4
    for (int step = 0; step < count; ++step) {
      float x[kRows];
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        const Four four = *reinterpret_cast<const Four*>(a + step * kA + r);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[r + i] = four.x[i];
      }
      const Four y = *reinterpret_cast<const Four*>(b + step * kB);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!kCareful || x[r] != 0) d[r][i] = fmaf(x[r], y.x[i], d[r][i]);
        }
      }
    }
  }

  // d <- rows columns^T, of tensors with kWidthOf columns.
  template <int kWidthOf>
  ATTN_DEVICE void multiply_rows(float (&d)[kRows][4], const TensorRows& rows,
                                 const TensorRows& columns, int block) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d[r][i] = 0;
    }
#pragma unroll 1
    for (int column = 0; column < kWidthOf; column += kPiece) {
      __syncthreads();  // nobody reads the pieces any more
      load<C::kBlockM, kWidthOf>(
          rows, column, [&](int slot) { return tile.first + row_of(slot); },
          [&](int slot, int c, float x) { shared[c * Layout::kRows + slot] = x; });
      load<kColumns, kWidthOf>(
          columns, column, [&](int slot) { return block * kColumns + column_of(slot); },
          [&](int slot, int c, float x) {
            shared[Layout::kColumnsAt + c * Layout::kSlots + slot] = x;
          });
      __syncthreads();
      multiply<Layout::kRows, Layout::kSlots>(d, shared + group() * kRows,
                                              shared + Layout::kColumnsAt + 4 * member(),
                                              min(kPiece, kWidthOf - column));
    }
  }

  // gradient += weights columns.
  ATTN_DEVICE void add(Thread& t, const TensorRows& columns, int block, bool careful) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* to =
          shared + Layout::kWeightsAt + (4 * member() + i) * Layout::kRows + group() * kRows;
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        *reinterpret_cast<Four*>(to +
                                 r) = {{t.s[r][i], t.s[r + 1][i], t.s[r + 2][i], t.s[r + 3][i]}};
      }
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      __syncthreads();  // nobody reads the piece any more; the weights are there
      load<kColumns, kWidth>(
          columns, piece * kPiece, [&](int slot) { return block * kColumns + column_of(slot); },
          [&](int slot, int c, float x) { shared[Layout::kColumnsAt + slot * kPiece + c] = x; });
      __syncthreads();
      const float* weights = shared + Layout::kWeightsAt + group() * kRows;
      const float* values = shared + Layout::kColumnsAt + 4 * member();
      if (careful) {
        multiply<Layout::kRows, kPiece, true>(t.gradient[piece], weights, values, kColumns);
      } else {
        multiply<Layout::kRows, kPiece>(t.gradient[piece], weights, values, kColumns);
      }
    }
  }

  // ---- weights

  ATTN_DEVICE float probability(float dot, float lse, int query, int key, int head_q) const {
    return scalar_probability<C>(p, e, tile.sequence, dot, lse, query, key, head_q);
  }

  // dS, or Z P for dV, or dT for buffers. z: 0, or what kept elements are multiplied by.
  ATTN_DEVICE float weight(float dot, float dp, float z, const RowTerms& row, int query, int key,
                           int head_q) const {
    const float probable = probability(dot, row.lse, query, key, head_q);
    if constexpr (C::kGradient == Gradient::dv) return z * probable;
    float ds = probable * fmaf(z, dp, -row.d);
    if constexpr (!kBuffers) {
      if constexpr (Derivatives::kHasSlope) {
        ds *= derivatives.slope(dot * p.scale, query, key, tile.sequence.batch, head_q,
                                tile.sequence.length_q, tile.sequence.length_k);
      }
    }
    return probable == 0 ? 0 : ds;
  }

  // S <- weights; 0 where a query does not see a key. Whether some weight is 0, with kScoreHides.
  // take(weight, S, r, i, query, key) is called with each.
  template <class Take>
  ATTN_DEVICE bool weigh(Thread& t, int block, int head_q, bool mixed, Take take) const {
    bool any_zero = false;
    if constexpr (C::kDropout) draw(t, block, head_q);
    const RowTerms* terms = tile.terms(p, head_q);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = tile.first + row_of(group() * kRows + r);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = block * kColumns + column_of(4 * member() + i);
        const int query = kOfKeys ? column : row, key = kOfKeys ? row : column;
        bool visible =
            static_cast<unsigned>(query) < static_cast<unsigned>(tile.sequence.length_q) &&
            key < tile.sequence.length_k;
        if constexpr (Expressions::kHasMask) {
          if (mixed && visible) {
            visible = e.mask(query, key, tile.sequence.batch, head_q, tile.sequence.length_q,
                             tile.sequence.length_k);
          }
        }
        float z = 1;
        if constexpr (C::kDropout) z = t.kept >> (4 * r + i) & 1 ? p.dropout_scale : 0;
        const float dot = t.s[r][i];
        t.s[r][i] = visible ? weight(dot, t.dp[r][i], z, terms[query], query, key, head_q) : 0;
        if constexpr (C::kScoreHides) any_zero = any_zero | (t.s[r][i] == 0);
        take(t.s[r][i], dot * p.scale, r, i, query, key);
      }
    }
    return any_zero;
  }

  // ---- dropout (docs/numerics.md)

  // The call of a key, and of the slots of keys about it.
  ATTN_DEVICE DropoutCall call(int query, int key, int head_q) const {
    const auto dropout = dropout_of<C::kRngState>(p, tile.sequence.batch);
    const DropoutRow row(
        dropout,
        static_cast<unsigned>(tile.sequence.batch) * static_cast<unsigned>(p.heads_q) +
            static_cast<unsigned>(head_q),
        static_cast<unsigned>(query));
    return row.call(DropoutColumns(dropout, key / 64, key % 8 / 2));
  }
  // Whether the j-th slot from that of `key` on is kept, which is even.
  ATTN_DEVICE unsigned kept(const DropoutCall& drawn, int key, int j) const {
    const unsigned pair = drawn.pair_at(key / 8 % 8 + j / 2);
    return keeps_half(pair, j % 2 != 0, p.dropout_rule) ? 1u : 0u;
  }
  ATTN_DEVICE void draw(Thread& t, int block, int head_q) const {
    t.kept = 0;
    if constexpr (kOfKeys) {
      const int key = tile.first + key_of(group() * kRows);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const DropoutCall drawn = call(block * kColumns + 4 * member() + i, key, head_q);
#pragma unroll
        for (int r = 0; r < kRows; ++r) t.kept |= kept(drawn, key, r) << (4 * r + i);
      }
    } else {
      const int key = block * kColumns + key_of(4 * member());
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const DropoutCall drawn = call(tile.first + group() * kRows + r, key, head_q);
#pragma unroll
        for (int i = 0; i < 4; ++i) t.kept |= kept(drawn, key, i) << (4 * r + i);
      }
    }
  }

  // ---- the tile

  // S of a block of keys and what it is weighed by, of the queries of one head.
  ATTN_DEVICE void multiply_block(Thread& t, int block, int head_q) const {
    const TensorRows q = tile.of_queries(p.q, p.q_strides, head_q);
    const TensorRows d_o = tile.of_queries(p.d_o, p.d_o_strides, head_q);
    const TensorRows k = tile.of_keys(p.k, p.k_strides, tile.head_k(p));
    const TensorRows v = tile.of_keys(p.v, p.v_strides, tile.head_k(p));
    multiply_rows<C::kHeadDim>(t.s, kOfKeys ? k : q, kOfKeys ? q : k, block);
    if constexpr (C::kGradient != Gradient::dv) {
      multiply_rows<C::kHeadDimV>(t.dp, kOfKeys ? v : d_o, kOfKeys ? d_o : v, block);
    }
  }
  // What the queries of one head add to the tile.
  ATTN_DEVICE void add_head(Thread& t, int head_q) const {
    const TensorRows q = tile.of_queries(p.q, p.q_strides, head_q);
    const TensorRows d_o = tile.of_queries(p.d_o, p.d_o_strides, head_q);
    const TensorRows k = tile.of_keys(p.k, p.k_strides, tile.head_k(p));
    const auto coverage_of = [&](int block) { return tile.coverage(e, block, head_q); };
#pragma unroll 1
    for (BlockList list(coverage_of, tile.blocks()); list.more(); list.advance()) {
      const int block = list.block();
      multiply_block(t, block, head_q);
      const bool zero =
          weigh(t, block, head_q, list.mixed(), [](float, float, int, int, int, int) {});
      bool careful = list.mixed();
      if constexpr (C::kScoreHides) careful = careful || __syncthreads_or(zero) != 0;
      add(t,
          C::kGradient == Gradient::dq   ? k
          : C::kGradient == Gradient::dk ? q
                                         : d_o,
          block, careful);
    }
  }

  ATTN_DEVICE void store(const Thread& t) const {
    void* const to = C::kGradient == Gradient::dq   ? p.dq
                     : C::kGradient == Gradient::dk ? p.dk
                                                    : p.dv;
    const Strides& strides = C::kGradient == Gradient::dq   ? p.dq_strides
                             : C::kGradient == Gradient::dk ? p.dk_strides
                                                            : p.dv_strides;
    const TensorRows rows =
        kOfKeys ? tile.of_keys(to, strides, tile.head) : tile.of_queries(to, strides, tile.head);
    const float factor = C::kGradient == Gradient::dv ? 1 : p.scale;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = tile.first + row_of(group() * kRows + r);
      if (row >= tile.rows_present()) continue;
      auto* const to_row = element<Stored>(to, rows.start + row * rows.stride);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = piece * kPiece + 4 * member() + i;
          if (column >= kWidth) continue;
          const float x = t.gradient[piece][r][i] * factor;
          to_row[column] = Scalar<Stored>::to(row < rows.count ? x : 0);
        }
      }
    }
  }

  static ATTN_DEVICE void clear(Thread& t) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) t.gradient[piece][r][i] = 0;
      }
    }
  }

  ATTN_DEVICE void run() const {
    static_assert((C::kBlockM == 64 || C::kBlockM == 32) && C::kBlockN == 64);
    Thread t;
    clear(t);
#pragma unroll 1
    for (int i = 0; i < tile.heads(p); ++i) add_head(t, tile.head_q(p) + i);
    store(t);
  }

  // f(r, i, query, key) for each element of a block that the thread has.
  template <class F>
  ATTN_DEVICE void for_each_element(int block, F f) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        f(r, i, tile.first + row_of(group() * kRows + r),
          block * kColumns + column_of(4 * member() + i));
      }
    }
  }
  // What the tile and a block of keys add to the gradients of buffers.
  ATTN_DEVICE void add_to_buffers(Thread& t, BufferSums& sums, int block, bool mixed) const {
    const Sequence& q = tile.sequence;
    multiply_block(t, block, tile.head);
    weigh(t, block, tile.head, mixed, [&](float d_t, float s, int r, int i, int query, int key) {
      if (d_t == 0) return;
      derivatives.add(sums.pending, sums.elements[r][i], d_t, s, query, key, q.batch, tile.head,
                      q.length_q, q.length_k);
    });
  }
  ATTN_DEVICE void store_elements(const BufferSums& sums, int block, int split) const {
    const Sequence& q = tile.sequence;
    for_each_element(block, [&](int r, int i, int query, int key) {
      derivatives.store(sums.elements[r][i], split, query, key, q.batch, tile.head, q.length_q,
                        q.length_k);
    });
  }
};

ATTN_DEVICE float* shared_memory() {
  extern __shared__ __align__(16) float shared_floats[];
  return shared_floats;
}

template <class C, class Expressions, class BufferGradients>
ATTN_DEVICE void backward_simt_buffers(const BackwardParams& p, const Expressions& e,
                                       const BufferGradients& gradients) {
  using Kernel = BackwardSimt<C, Expressions, BufferGradients>;
  using Tiles = BufferTiles<C, BufferGradients>;
  const auto tiles = Tiles::at(p, gradients.splits, static_cast<int>(blockIdx.x));
  const auto coverage_of = [&](int i) { return tiles.coverage(e, i); };
  BlockList list(coverage_of, tiles.count);
  typename Kernel::Thread t;
  typename Kernel::BufferSums sums;
#pragma unroll 1
  for (; list.more(); list.advance()) {
    const int i = list.block();
    Kernel{p, e, gradients, tiles.tile(i), shared_memory()}.add_to_buffers(
        t, sums, tiles.key_block(i), list.mixed());
    // The next tile may be of other elements: a warp adds them as one.
    if constexpr (Tiles::kOwn) gradients.flush(sums.pending);
  }
  gradients.flush(sums.pending);
  if constexpr (Tiles::kOwn) {
    Kernel{p, e, gradients, tiles.tile(0), shared_memory()}.store_elements(sums, tiles.block,
                                                                           tiles.split);
  }
}

template <class C, class Expressions, class Derivatives>
ATTN_DEVICE void backward_simt(const BackwardParams& p, const Expressions& e,
                               const Derivatives& derivatives) {
  static_assert(BackwardSimtLayout<C>::kBytes == C::kSharedBytes);  // that the launch gives
  if constexpr (C::kGradient == Gradient::buffers) {
    backward_simt_buffers<C>(p, e, derivatives);
  } else {
    const auto tile = GradientTile<C>::at(p, static_cast<int>(blockIdx.x));
    if (tile.first >= tile.rows_present()) return;
    BackwardSimt<C, Expressions, Derivatives>{p, e, derivatives, tile, shared_memory()}.run();
  }
}

}  // namespace attn::device
