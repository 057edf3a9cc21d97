// Gradients of the backward pass on any architecture from sm_80 on, with asynchronous copies and
// products of single warps: dQ, or dK and dV, or one of these. FlashAttention-2, algorithm 2, in
// two passes: a tile of a gradient's rows stays in registers and meets blocks of columns, so that
// nothing is added in memory and equal inputs give equal bits; S and dP are computed in both.
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
//   kHeadDim, kHeadDimV    multiples of 8, up to 256
//   kGradient              Gradient::dq, dk, dv or dk_dv
//   kBlockM, kWarps        16 rows a warp
//   kBlockN                a multiple of 16; with dropout of 32
//   kStages                1 or 2
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kDropout
//   kScoreHides            a score may be -inf
// Slope: src/cuda/codegen/expression_gradients.hpp.
// All tensors are 16-byte aligned, and so are their strides. Grid: a block of 32 kWarps threads for
// each tile, batch entry and head (of Q for dQ, else of K), with BackwardSm80Layout<C>::kBytes of
// dynamic shared memory.
#pragma once

#include "params.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "schedule/block_list.cuh"
#include "schedule/gradient_tile.cuh"
#include "softmax/dropout.cuh"
#include "tile/accumulator.cuh"
#include "tile/scalar.cuh"
#include "tile/shared_tile.cuh"

namespace attn::device {

// Places in shared memory, in bytes: A1, A2, then for each stage B1 and B2. Without dP there is no
// A2.
template <class C>
struct BackwardSm80Layout {
  using Tile1 = SharedTile<C::kHeadDim>;   // of Q and K
  using Tile2 = SharedTile<C::kHeadDimV>;  // of dO and V
  static constexpr int kA1 = C::kBlockM * Tile1::kRowBytes;
  static constexpr int kA2 = C::kGradient == Gradient::dv ? 0 : C::kBlockM * Tile2::kRowBytes;
  static constexpr int kB1 = C::kBlockN * Tile1::kRowBytes, kB2 = C::kBlockN * Tile2::kRowBytes;
  static constexpr int kB1At = kA1 + kA2, kB2At = kB1At + C::kStages * kB1;
  static constexpr int kBytes = kB2At + C::kStages * kB2;
};

template <class C, class Expressions, class Slope>
struct BackwardSm80 {
  using Layout = BackwardSm80Layout<C>;
  using Tile1 = typename Layout::Tile1;
  using Tile2 = typename Layout::Tile2;
  using Element = typename C::Element;
  static constexpr int kThreads = 32 * C::kWarps;
  static constexpr bool kOfKeys = GradientTile<C>::kOfKeys;
  static constexpr bool kFirst = C::kGradient != Gradient::dv;  // of the two sums
  static constexpr bool kSecond = C::kGradient == Gradient::dv || C::kGradient == Gradient::dk_dv;
  static constexpr float kLog2E = 1.4426950408889634f;
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
    // Where this lane reads its operands (SharedTile::lane): rows, columns, columns transposed.
    unsigned a1, a2, b1, b2, b1_transposed, b2_transposed;
  };

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % 32); }
  // Row i of the thread's two, of the sequence.
  __device__ __forceinline__ int row(int i) const {
    return tile.first + static_cast<int>(threadIdx.x / 32) * 16 + lane() / 4 + 8 * i;
  }

  // ---- copies. Rows past a length are zeros: a weight of 0 would not undo a NaN.

  template <class Tile, int kRows>
  __device__ __forceinline__ void load(unsigned to, const TensorRows& rows, int first) const {
    load_tile<Tile, kRows, kThreads>(
        to, static_cast<const char*>(rows.data) + 2 * (rows.start + first * rows.stride),
        2 * rows.stride, rows.count - first);
  }
  __device__ __forceinline__ void load_rows() const {
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
  __device__ __forceinline__ void load_columns(int stage, int block, int head_q) const {
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

  // d <- A B^T
  template <class Tile>
  static __device__ __forceinline__ void multiply_rows(float (&d)[C::kBlockN / 2], unsigned a_lane,
                                                       unsigned b_lane) {
#pragma unroll
    for (int i = 0; i < C::kBlockN / 2; ++i) d[i] = 0;
#pragma unroll
    for (int step = 0; step < Tile::kChunks / 2; ++step) {
      unsigned a[4];
      load_matrices(a, Tile::further(a_lane, 0, 2 * step));
#pragma unroll
      for (int j = 0; j < C::kBlockN / 16; ++j) {
        unsigned b[4];
        load_matrices(b, Tile::further(b_lane, 16 * j, 2 * step));
        multiply(Element{}, d + 8 * j, a, b[0], b[1]);
        multiply(Element{}, d + 8 * j + 4, a, b[2], b[3]);
      }
    }
  }
  // d += weights B
  template <class Tile, int kCount>
  static __device__ __forceinline__ void add(float (&d)[kCount],
                                             const float (&weights)[C::kBlockN / 2],
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
  __device__ __forceinline__ bool any_special(int at) const {
    extern __shared__ __align__(128) char memory[];
    const auto* words = reinterpret_cast<const unsigned*>(memory + at);
    // The exponent's bits of either half, all ones.
    constexpr unsigned kExponent = Element::kExponent;
    bool special = false;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < C::kBlockN * Tile::kRowBytes / 4;
         i += kThreads) {
      const unsigned low = words[i] & kExponent, high = words[i] >> 16 & kExponent;
      special = special | (low == kExponent) | (high == kExponent);
    }
    return __syncthreads_or(special) != 0;
  }
  // As add, of rows and columns that see each other alone: a weight of 0 takes nothing, whatever B
  // holds. For tiles with infinities or NaN.
  template <class Tile, int kColumns>
  __device__ __forceinline__ void add_seen(float (&d)[kColumns / 2],
                                           const float (&weights)[C::kBlockN / 2], int at) const {
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

  // f(x, row i of two, column) for each element of a block that the thread holds.
  template <class F>
  static __device__ __forceinline__ void for_each(float (&x)[C::kBlockN / 2], F f) {
#pragma unroll
    for (int j = 0; j < C::kBlockN / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int c = 0; c < 2; ++c) f(x[4 * j + 2 * i + c], i, 8 * j + 2 * (lane() % 4) + c);
      }
    }
  }

  // Never above 1, however large the scores are.
  __device__ __forceinline__ float probability(float dot, float lse, int query, int key,
                                               int head_q) const {
    float x = dot, c = p.scale * kLog2E;
    if constexpr (Expressions::kHasScore) {
      x = e.score(dot, query, key, tile.sequence.batch, head_q, tile.sequence.length_q,
                  tile.sequence.length_k);
      if constexpr (C::kScoreHides) {
        if (x == minus_infinity()) return 0;  // also where LSE is NaN
      }
      c = Expressions::kScoreFactor * kLog2E;
    }
    const float y = fmaf(x, c, -lse * kLog2E);
    return exp2_approximate(y > 0 ? 0 : y);
  }

  // S <- P of what dropout keeps and dP <- dS, each as far as a sum needs it; 0 where a query does
  // not see a key. Whether some P is 0, with kScoreHides.
  __device__ __forceinline__ bool weigh(Warp& w, int block, int head_q, bool mixed) const {
    bool any_zero = false;
    const Sequence& q = tile.sequence;
    const RowTerms* all = tile.terms(p, head_q);
    unsigned long long kept = ~0ull;
    if constexpr (C::kDropout) kept = draw(block, head_q);
    int at = 0;
    for_each(w.s, [&](float& s, int i, int column) {
      float& dp = w.dp[at];
      const int element = at++;
      column += block * C::kBlockN;
      const int query = kOfKeys ? column : row(i), key = kOfKeys ? row(i) : column;
      // Rows past a length were copied as zeros: what they read here is of no use.
      const RowTerms terms = all[min(query, q.length_q - 1)];
      bool visible = true;
      if (mixed) {
        visible = query < q.length_q && key < q.length_k;
        if constexpr (Expressions::kHasMask) {
          visible = visible && e.mask(query, key, q.batch, head_q, q.length_q, q.length_k);
        }
      }
      const float probable = probability(s, terms.lse, query, key, head_q);
      if constexpr (C::kScoreHides) any_zero = any_zero | (probable == 0);
      float z = 1;
      if constexpr (C::kDropout) z = kept >> element & 1 ? p.dropout_scale : 0;
      if constexpr (kFirst) {
        float ds = probable * fmaf(z, dp, -terms.d);
        if constexpr (Slope::kHasSlope) {
          ds *= slope.slope(s * p.scale, query, key, q.batch, head_q, q.length_q, q.length_k);
        }
        dp = visible && probable != 0 ? ds : 0;  // 0 takes nothing of V
      }
      if constexpr (kSecond) s = visible && z != 0 ? probable : 0;  // times z with the sum
    });
    return any_zero;
  }

  // The bits of the thread's elements, in the order of for_each (docs/numerics.md).
  __device__ __forceinline__ unsigned long long draw(int block, int head_q) const {
    const Dropout dropout{p.dropout_round_keys, p.dropout_counter3, p.dropout_threshold};
    const unsigned batch_head =
        static_cast<unsigned>(tile.sequence.batch) * static_cast<unsigned>(p.heads_q) +
        static_cast<unsigned>(head_q);
    const int column0 = block * C::kBlockN + 2 * (lane() % 4);
    unsigned long long kept = 0;
    const auto keep = [&](int element, unsigned word, bool odd) {
      const unsigned number = odd ? word >> 16 : word & 0xffffu;
      kept |= static_cast<unsigned long long>(number >= p.dropout_threshold ? 1 : 0) << element;
    };
    if constexpr (kOfKeys) {
      const int key = row(0);
      const bool upper =
          key / 8 % 4 != 0;  // words 2 and 3: a warp's 16 keys begin at 0 or 16 of 32
#pragma unroll
      for (int j = 0; j < C::kBlockN / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const DropoutRow of_query(dropout, batch_head,
                                    static_cast<unsigned>(column0 + 8 * j + c));
          const PhiloxWords w = of_query.words(DropoutColumns(dropout, key / 32, key % 8 / 2));
          keep(4 * j + c, upper ? w.word[2] : w.word[0], key % 2 != 0);
          keep(4 * j + 2 + c, upper ? w.word[3] : w.word[1], key % 2 != 0);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const DropoutRow of_query(dropout, batch_head, static_cast<unsigned>(row(i)));
#pragma unroll
        for (int group = 0; group < C::kBlockN / 32; ++group) {
          const PhiloxWords w = of_query.words(
              DropoutColumns(dropout, block * (C::kBlockN / 32) + group, lane() % 4));
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            keep(4 * (4 * group + t) + 2 * i, w.word[t], false);
            keep(4 * (4 * group + t) + 2 * i + 1, w.word[t], true);
          }
        }
      }
    }
    return kept;
  }

  // ---- the tile

  // Goes through the blocks of a list that is not empty: `blocks` of each head, head after head.
  template <class List>
  __device__ __forceinline__ void accumulate(Warp& w, List& list, int blocks) const {
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
      multiply_rows<Tile1>(w.s, w.a1, w.b1 + b1);
      if constexpr (kFirst) multiply_rows<Tile2>(w.dp, w.a2, w.b2 + b2);
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
  __device__ __forceinline__ void store(float (&x)[kColumns / 2], float factor, void* to,
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
      store_row<Element, kColumns>(x, i, factor,
                                   static_cast<char*>(to) + 2 * (rows.start + row(i) * rows.stride),
                                   row(i) < tile.rows_present());
    }
  }

  __device__ __forceinline__ void run() const {
    Warp w;
    const int l = lane(), row16 = static_cast<int>(threadIdx.x / 32) * 16;
    w.a1 = Tile1::lane(shared, row16 + l % 16, l / 16);
    w.a2 = Tile2::lane(shared + Layout::kA1, row16 + l % 16, l / 16);
    w.b1 = Tile1::lane(shared + Layout::kB1At, l / 16 * 8 + l % 8, l / 8 % 2);
    w.b2 = Tile2::lane(shared + Layout::kB2At, l / 16 * 8 + l % 8, l / 8 % 2);
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
__device__ __forceinline__ void backward_sm80(const BackwardParams& p, const Expressions& e,
                                              const Slope& slope) {
  extern __shared__ __align__(128) char memory[];
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const auto tile = GradientTile<C>::at(p, static_cast<int>(blockIdx.x));
  if (tile.first >= tile.rows_present()) return;
  BackwardSm80<C, Expressions, Slope>{p, e, slope, tile, shared}.run();
}

}  // namespace attn::device
