// Gradients of the backward pass in a fixed order on any architecture from sm_80 on, with
// asynchronous copies and products of single warps: dQ, or dK and dV, or one of these.
// FlashAttention-2, algorithm 2, in two passes: a tile of a gradient's rows stays in registers and
// meets blocks of columns, so that nothing is added in memory and equal inputs give equal bits; S
// and dP are computed in both.
//
//   S = A1 B1^T, dP = A2 B2^T, first += dS B1, second += P B2
//   rows are      A1  A2  B1  B2  first  second
//   queries       Q   dO  K   V   dQ
//   keys          K   V   Q   dO  dK     dV       (S and dP transposed)
//
// A block of threads has kBlockM rows, 16 a warp, and takes blocks of kBlockN columns. With two
// stages B1 and B2 of the next block arrive during all of this one.
//
// Reads of C:
//   Element                BFloat16 or Float16
//   Stored                 of dK and dV: Element or Float32; of dQ Element
//   kHeadDim, kHeadDimV    multiples of 8, up to 256
//   kGradient              Gradient::dq, dk, dv or dk_dv
//   kBlockM, kWarps        16 rows a warp
//   kBlockN                a multiple of 16; with dropout of 32
//   kStages                1 or 2
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kDropout, kRngState
//   kScoreHides            a score may be -inf
// Slope: src/cuda/codegen/expression_gradients.hpp.
// All tensors are 16-byte aligned, and so are their strides. Grid: a block of 32 kWarps threads for
// each tile, batch entry and head (of Q for dQ, else of K), with
// BackwardSm80DeterministicLayout<C>::kBytes of dynamic shared memory.
#pragma once

#include "device.cuh"
#include "kernels/backward_weights.cuh"
#include "params.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "schedule/block_list.cuh"
#include "schedule/gradient_tile.cuh"
#include "tile/accumulator.cuh"
#include "tile/row_product.cuh"
#include "tile/scalar.cuh"
#include "tile/shared_tile.cuh"
#include "tile/special_values.cuh"

namespace attn::device {

// Places in shared memory, in bytes: A1, A2, then for each stage B1 and B2. Without dP there is no
// A2.
template <class C>
struct BackwardSm80DeterministicLayout {
  using Tile1 = SharedTile<C::kHeadDim>;   // of Q and K
  using Tile2 = SharedTile<C::kHeadDimV>;  // of dO and V
  static constexpr int kA1 = C::kBlockM * Tile1::kRowBytes;
  static constexpr int kA2 = C::kGradient == Gradient::dv ? 0 : C::kBlockM * Tile2::kRowBytes;
  static constexpr int kB1 = C::kBlockN * Tile1::kRowBytes, kB2 = C::kBlockN * Tile2::kRowBytes;
  static constexpr int kB1At = kA1 + kA2, kB2At = kB1At + C::kStages * kB1;
  static constexpr int kBytes = kB2At + C::kStages * kB2;
};

template <class C, class Expressions, class Slope>
struct BackwardSm80Deterministic {
  using Layout = BackwardSm80DeterministicLayout<C>;
  using Tile1 = typename Layout::Tile1;
  using Tile2 = typename Layout::Tile2;
  using Element = typename C::Element;
  using Stored = typename C::Stored;
  static constexpr int kThreads = 32 * C::kWarps;
  static constexpr bool kOfKeys = GradientTile<C>::kOfKeys;
  static constexpr bool kFirst = C::kGradient != Gradient::dv;  // of the two sums
  static constexpr bool kSecond = C::kGradient == Gradient::dv || C::kGradient == Gradient::dk_dv;
  using Weights = BackwardWeights<C, Expressions, Slope>;
  static_assert(C::kBlockM == 16 * C::kWarps && C::kBlockN % (C::kDropout ? 32 : 16) == 0);

  const BackwardParams& p;
  const Expressions& e;
  const Slope& slope;
  const GradientTile<C> tile;
  const unsigned shared;  // 128-byte aligned

  struct Warp {
    float first[kFirst ? C::kHeadDim / 2 : 1];
    float second[kSecond ? C::kHeadDimV / 2 : 1];
    float s[C::kBlockN / 2], dp[C::kBlockN / 2];
    // The addresses at which this lane reads its operands (SharedTile::lane): rows, columns,
    // columns transposed.
    unsigned a1, a2, b1, b2, b1_transposed, b2_transposed;
  };

  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  // Row i of the thread's two, counted in the sequence.
  ATTN_DEVICE int row(int i) const {
    return tile.first + static_cast<int>(threadIdx.x / 32) * 16 + lane() / 4 + 8 * i;
  }

  // ---- copies. Rows past a length are zeros: a weight of 0 would not undo a NaN.

  template <class Tile, int kRows>
  ATTN_DEVICE void load(unsigned to, const TensorRows& rows, int first) const {
    load_tile<Tile, kRows, kThreads>(
        to, static_cast<const char*>(rows.data) + 2 * (rows.start + first * rows.stride),
        2 * rows.stride, rows.count - first);
  }
  ATTN_DEVICE void load_rows() const {
    const int head_q = tile.head_q(p), head_k = tile.head_k(p);
    load<Tile1, C::kBlockM>(shared,
                            kOfKeys ? tile.of_keys(p.k, p.k_strides, head_k)
                                    : tile.of_queries(p.q, p.q_strides, head_q),
                            tile.first);
    if constexpr (kFirst) {
      load<Tile2, C::kBlockM>(shared + Layout::kA1,
                              kOfKeys ? tile.of_keys(p.v, p.v_strides, head_k)
                                      : tile.of_queries(p.d_o, p.d_o_strides, head_q),
                              tile.first);
    }
  }
  ATTN_DEVICE void load_columns(int stage, int block, int head_q) const {
    const int head_k = tile.head_k(p);
    load<Tile1, C::kBlockN>(shared + Layout::kB1At + stage * Layout::kB1,
                            kOfKeys ? tile.of_queries(p.q, p.q_strides, head_q)
                                    : tile.of_keys(p.k, p.k_strides, head_k),
                            block * C::kBlockN);
    load<Tile2, C::kBlockN>(shared + Layout::kB2At + stage * Layout::kB2,
                            kOfKeys ? tile.of_queries(p.d_o, p.d_o_strides, head_q)
                                    : tile.of_keys(p.v, p.v_strides, head_k),
                            block * C::kBlockN);
  }

  // ---- products

  // d += weights B
  template <class Tile, int kCount>
  static ATTN_DEVICE void add(float (&d)[kCount], const float (&weights)[C::kBlockN / 2],
                              unsigned b_lane) {
    unsigned a[C::kBlockN / 4];
    to_operand<Element>(weights, a);
#pragma unroll
    for (int step = 0; step < C::kBlockN / 16; ++step) {
#pragma unroll
      for (int j = 0; j < Tile::kChunks / 2; ++j) {
        unsigned b[4];
        load_matrices_transposed(b, Tile::further(b_lane, 16 * step, 2 * j));
        multiply(Element{}, d + 8 * j, a + 4 * step, b[0], b[1]);
        if (2 * j + 1 < Tile::kUsedChunks) {
          multiply(Element{}, d + 8 * j + 4, a + 4 * step, b[2], b[3]);
        }
      }
    }
  }

  // Whether a tile of columns holds an infinity or NaN; the same answer in all threads.
  template <class Tile>
  static ATTN_DEVICE bool any_special(int at) {
    return __syncthreads_or(holds_special<Element, kThreads>(at, C::kBlockN * Tile::kRowBytes)) !=
           0;
  }
  // Does what add does, but only for rows and columns that see each other: a weight of 0 takes
  // nothing, whatever B holds. It is for tiles with infinities or NaN.
  template <class Tile, int kColumns>
  ATTN_DEVICE void add_seen(float (&d)[kColumns / 2], const float (&weights)[C::kBlockN / 2],
                            int at) const {
    extern __shared__ __align__(128) char memory[];
#pragma unroll
    for (int j = 0; j < C::kBlockN / 8; ++j) {
#pragma unroll 1
      for (int k = 0; k < 8; ++k) {
        const int owner = lane() / 4 * 4 + k / 2, column = 8 * j + k;
        float weight[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float even = __shfl_sync(~0u, weights[4 * j + 2 * i], owner);
          const float odd = __shfl_sync(~0u, weights[4 * j + 2 * i + 1], owner);
          // Rounded, as products take it.
          const unsigned rounded = Element::pack(k % 2 == 0 ? even : odd, 0);
          weight[i] = Scalar<Element>::from(static_cast<unsigned short>(rounded));
        }
#pragma unroll
        for (int c = 0; c < kColumns / 8; ++c) {
          const unsigned pair = *reinterpret_cast<const unsigned*>(
              memory + at + Tile::offset(column, c) + 4 * (lane() % 4));
          const float value[2] = {Scalar<Element>::from(static_cast<unsigned short>(pair)),
                                  Scalar<Element>::from(static_cast<unsigned short>(pair >> 16))};
#pragma unroll
          for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              float& x = d[4 * c + 2 * i + half];
              if (weight[i] != 0) x = fmaf(weight[i], value[half], x);
            }
          }
        }
      }
    }
  }

  // ---- weights

  // S <- P of what dropout keeps and dP <- dS, each as far as a sum needs it; 0 where a query does
  // not see a key. Whether some P is 0.
  ATTN_DEVICE bool weigh(Warp& w, int block, int head_q, bool mixed) const {
    const Weights weights{p, e, slope, tile.sequence, head_q};
    const RowTerms* all = tile.terms(p, head_q);
    unsigned long long kept = ~0ull;
    if constexpr (C::kDropout) {
      kept = kOfKeys ? draw(weights, block * C::kBlockN)
                     : weights.template draw<C::kBlockN>(row(0), block * C::kBlockN);
    }
    bool any_zero = false;
    int at = 0;
    for_each_sum(w.s, [&](float& s, int i, int column) {
      const int element = at++;
      column += block * C::kBlockN;
      const int query = kOfKeys ? column : row(i), key = kOfKeys ? row(i) : column;
      // Rows past a length were copied as zeros: what they read here is of no use.
      const RowTerms terms = all[min(query, tile.sequence.length_q - 1)];
      const RowReference of_row = weights.reference(lse_in_base_2<C>(terms.lse), query);
      const float probable = weights.probability(s, of_row, query, key);
      any_zero |= probable == 0;
      weights.template weigh<kSecond, kFirst>(probable, s, w.dp[element], terms.d, query, key,
                                              mixed, (kept >> element & 1) != 0);
    });
    return any_zero;
  }

  // What dropout keeps of the thread's elements where columns are queries from `first` on, in the
  // order of for_each_sum (docs/numerics.md).
  ATTN_DEVICE unsigned long long draw(const Weights& weights, int first) const {
    const auto dropout = weights.dropout();
    const int key = row(0);
    const int t = key / 8 % 8;  // even: a warp's 16 keys begin at a multiple of 16
    unsigned long long kept = 0;
    const auto keep = [&](int element, unsigned pair) {
      kept |= static_cast<unsigned long long>(weights.keeps(pair, key % 2 != 0)) << element;
    };
#pragma unroll
    for (int j = 0; j < C::kBlockN / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const DropoutRow of_query(dropout, weights.batch_head(),
                                  static_cast<unsigned>(first + 8 * j + 2 * (lane() % 4) + c));
        const DropoutCall drawn = of_query.call(DropoutColumns(dropout, key / 64, key % 8 / 2));
        keep(4 * j + c, drawn.pair_at(t));
        keep(4 * j + 2 + c, drawn.pair_at(t + 1));
      }
    }
    return kept;
  }

  // ---- the tile

  // Goes through the blocks of a list that is not empty: `blocks` of each head, head after head.
  template <class List>
  ATTN_DEVICE void accumulate(Warp& w, List& list, int blocks) const {
    const auto head_of = [&](int i) { return tile.head_q(p) + i / blocks; };
    load_rows();
    load_columns(0, list.block() % blocks, head_of(list.block()));
    copy_async_commit();
    int stage = 0;
    while (true) {
      const int block = list.block() % blocks, head = head_of(list.block());
      const bool mixed = list.mixed();
      list.advance();
      const bool ends = !list.more();
      const auto load_next = [&](int to) {
        if (!ends) load_columns(to, list.block() % blocks, head_of(list.block()));
        copy_async_commit();
      };
      copy_async_wait<0>();
      __syncthreads();  // the columns are here; nobody reads the block before any more
      if constexpr (C::kStages == 2) load_next(stage ^ 1);
      const auto b1 = static_cast<unsigned>(stage * Layout::kB1);
      const auto b2 = static_cast<unsigned>(stage * Layout::kB2);
      multiply_rows<Element, Tile1, C::kBlockN>(w.s, w.a1, w.b1 + b1);
      if constexpr (kFirst) multiply_rows<Element, Tile2, C::kBlockN>(w.dp, w.a2, w.b2 + b2);
      const bool zero = weigh(w, block, head, mixed);
      bool careful = mixed;
      if constexpr (C::kScoreHides) careful = careful || __syncthreads_or(zero) != 0;
      if constexpr (kSecond) {
        const int at = Layout::kB2At + stage * Layout::kB2;
        if (careful && any_special<Tile2>(at)) {
          add_seen<Tile2, C::kHeadDimV>(w.second, w.s, at);
        } else {
          add<Tile2>(w.second, w.s, w.b2_transposed + b2);
        }
      }
      if constexpr (kFirst) {
        const int at = Layout::kB1At + stage * Layout::kB1;
        if (careful && any_special<Tile1>(at)) {
          add_seen<Tile1, C::kHeadDim>(w.first, w.dp, at);
        } else {
          add<Tile1>(w.first, w.dp, w.b1_transposed + b1);
        }
      }
      if (ends) break;
      if constexpr (C::kStages == 1) {
        __syncthreads();  // nobody reads the columns any more
        load_next(0);
      }
      stage ^= C::kStages - 1;
    }
  }

  // Rows of a gradient that exist; 0 where they are not in use.
  template <int kColumns>
  ATTN_DEVICE void store(float (&x)[kColumns / 2], float factor, void* to,
                         const Strides& strides) const {
    if (to == nullptr) return;
    const TensorRows rows =
        kOfKeys ? tile.of_keys(to, strides, tile.head) : tile.of_queries(to, strides, tile.head);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row(i) >= rows.count) {
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) x[4 * j + 2 * i] = x[4 * j + 2 * i + 1] = 0;
      }
      store_row<Stored, kColumns>(
          x, i, factor,
          static_cast<char*>(to) + kBytesOf<Stored> * (rows.start + row(i) * rows.stride),
          row(i) < tile.rows_present());
    }
  }

  ATTN_DEVICE void run() const {
    Warp w;
    const int l = lane(), row16 = static_cast<int>(threadIdx.x / 32) * 16;
    w.a1 = row_operand<Tile1>(shared, row16);
    w.a2 = row_operand<Tile2>(shared + Layout::kA1, row16);
    w.b1 = column_operand<Tile1>(shared + Layout::kB1At);
    w.b2 = column_operand<Tile2>(shared + Layout::kB2At);
    w.b1_transposed = Tile1::lane(shared + Layout::kB1At, l % 16, l / 16);
    w.b2_transposed = Tile2::lane(shared + Layout::kB2At, l % 16, l / 16);
#pragma unroll
    for (float& x : w.first) x = 0;
#pragma unroll
    for (float& x : w.second) x = 0;
    const int blocks = tile.blocks();
    const auto coverage_of = [&](int i) {
      return tile.coverage(e, i % blocks, tile.head_q(p) + i / blocks);
    };
    BlockList list(coverage_of, blocks * tile.heads(p));
    if (list.more()) accumulate(w, list, blocks);
    if constexpr (kFirst) {
      store<C::kHeadDim>(w.first, p.scale, kOfKeys ? p.dk : p.dq,
                         kOfKeys ? p.dk_strides : p.dq_strides);
    }
    if constexpr (kSecond) {
      store<C::kHeadDimV>(w.second, C::kDropout ? p.dropout_scale : 1.f, p.dv, p.dv_strides);
    }
  }
};

template <class C, class Expressions, class Slope>
ATTN_DEVICE void backward_sm80_deterministic(const BackwardParams& p, const Expressions& e,
                                             const Slope& slope) {
  // What the launch gives.
  static_assert(BackwardSm80DeterministicLayout<C>::kBytes == C::kSharedBytes);
  extern __shared__ __align__(128) char memory[];
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const auto tile = GradientTile<C>::at(p, static_cast<int>(blockIdx.x));
  if (tile.first >= tile.rows_present()) return;
  BackwardSm80Deterministic<C, Expressions, Slope>{p, e, slope, tile, shared}.run();
}

}  // namespace attn::device
