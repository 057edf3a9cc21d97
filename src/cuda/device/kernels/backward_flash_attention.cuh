// FlashAttention's backward pass, algorithm 4 (Dao et al. 2022), in the order of the paper, and its
// block-sparse form (of algorithm 5): the outer loop goes over blocks of K and V, whose gradients
// stay in shared memory; the inner one over all queries, whose dQ is read from memory and written
// back each time. To be read and to be measured; FlashAttention-2's order (backward_sm90.cuh,
// backward_sm80.cuh) moves less, and the arithmetic here is that of float32 without tensor cores.
//
// A block of 128 threads has one K, V head of one sequence, and meets the queries of every head of
// its group. Between two blocks of keys dQ lies in the workspace in float32. What differs from the
// paper: LSE = m + log l is read in place of l and m; dQ begins as zeros in registers instead of in
// memory (line 5), and after the last block of keys goes from registers to its tensor.
//
// The threads are 8 groups of 16. Of a product with R rows, a group has R / 8 neighbours; a thread
// of it has every 16th column. The five products read matrices of shared memory whose rows are an
// odd number of floats apart, so that neither rows nor columns share banks.
//
// Reads of C:
//   Element, kHeadDim, kHeadDimV, kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kDropout, kRngState,
//   kScoreHides            as backward_simt.cuh
//   Stored                 of dK and dV: Element or Float32
//   kGradient              Gradient::all
//   kBlockM, kBlockN       B_c and B_r, 16, 32 or 64
//   kSkipsEmpty            algorithm 5: tiles that the mask's bounds prove empty are left out
// Grid: a block for each K, V head of each sequence, with BackwardFlashLayout<C>::kBytes of dynamic
// shared memory.
#pragma once

#include "device.cuh"
#include "kernels/backward_simt.cuh"

namespace attn::device {

// Shared memory, in floats: K, V and their gradients [key][column], Q and dO [query][column], P and
// dS [key][query], LSE and D of the queries.
template <class C>
struct BackwardFlashLayout {
  static constexpr int kKeys = C::kBlockM, kQueries = C::kBlockN;
  // Rows begin so many floats apart.
  static constexpr int kRow = C::kHeadDim | 1, kRowV = C::kHeadDimV | 1, kRowP = kQueries + 1;
  static constexpr int kVAt = kKeys * kRow, kDkAt = kVAt + kKeys * kRowV;
  static constexpr int kDvAt = kDkAt + kKeys * kRow, kQAt = kDvAt + kKeys * kRowV;
  static constexpr int kDoAt = kQAt + kQueries * kRow, kPAt = kDoAt + kQueries * kRowV;
  static constexpr int kDsAt = kPAt + kKeys * kRowP, kLseAt = kDsAt + kKeys * kRowP;
  static constexpr int kDAt = kLseAt + kQueries;
  static constexpr int kBytes = 4 * (kDAt + kQueries);
};

template <class C, class Expressions, class Slope>
struct BackwardFlashAttention {
  using Step = BackwardSimt<C, Expressions, Slope>;
  using Layout = BackwardFlashLayout<C>;
  using Element = typename C::Element;
  using Stored = typename C::Stored;
  static constexpr int kKeys = Layout::kKeys, kQueries = Layout::kQueries;
  static constexpr int kThreads = 128, kGroups = 8, kMembers = 16;
  static constexpr int kPiece = 4 * kMembers;  // columns of a gradient that are summed at a time
  static constexpr int kKeysOf = kKeys / kGroups, kQueriesOf = kQueries / kGroups;  // of a thread
  static constexpr int kColumnsOf = kQueries / kMembers;
  static_assert(kKeys % 16 == 0 && kQueries % 16 == 0);

  const BackwardParams& p;
  const Expressions& e;
  const Slope& slope;
  float* const shared;

  static ATTN_DEVICE int group() { return static_cast<int>(threadIdx.x) / kMembers; }
  static ATTN_DEVICE int member() { return static_cast<int>(threadIdx.x) % kMembers; }

  // ---- products

  // A matrix of shared memory: element (i, j) is at[i * row + j * column].
  struct Matrix {
    const float* at;
    int row, column;
  };

  // d <- the thread's part of a b over `steps`, of the `columns` columns of b from `first` on. What
  // weighs nothing is left out: where a query does not see a key, their rows may hold anything.
  template <int kRows, int kColumns, bool kWeights>
  static ATTN_DEVICE void multiply(float (&d)[kRows][kColumns], Matrix a, Matrix b, int steps,
                                   int first, int columns) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) d[r][i] = 0;
    }
#pragma unroll 2
    for (int step = 0; step < steps; ++step) {
      float y[kColumns];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = min(first + member() + kMembers * i, columns - 1);
        y[i] = b.at[step * b.row + column * b.column];
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float x = a.at[(group() * kRows + r) * a.row + step * a.column];
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          if (!kWeights || x != 0) d[r][i] = fmaf(x, y[i], d[r][i]);
        }
      }
    }
  }

  // each(row, column, sum) for the thread's elements of weights * b, which has kWidth columns.
  template <int kRows, int kWidth, class Each>
  static ATTN_DEVICE void for_each_sum(Matrix weights, Matrix b, int steps, Each each) {
#pragma unroll 1
    for (int first = 0; first < kWidth; first += kPiece) {
      float sum[kRows][4];
      multiply<kRows, 4, true>(sum, weights, b, steps, first, kWidth);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = first + member() + kMembers * i;
          if (column < kWidth) each(group() * kRows + r, column, sum[r][i]);
        }
      }
    }
  }

  // ---- copies. Rows past a length are zeros.

  // each(row, column, x) for rows first to first + kRows of a tensor with kWidth columns, then
  // end(row): a row is of one group.
  template <int kRows, int kWidth, class Each, class End>
  static ATTN_DEVICE void for_each_element(const TensorRows& rows, int first, Each each, End end) {
#pragma unroll 1
    for (int row = group(); row < kRows; row += kGroups) {
      const bool exists = first + row < rows.count;
      const auto* const from =
          element<Element>(rows.data, rows.start + (exists ? first + row : 0) * rows.stride);
      for (int column = member(); column < kWidth; column += kMembers) {
        each(row, column, exists ? Scalar<Element>::from(from[column]) : 0);
      }
      end(row);
    }
  }
  template <int kRows, int kWidth>
  static ATTN_DEVICE void load(const TensorRows& rows, int first, float* to) {
    for_each_element<kRows, kWidth>(
        rows, first, [&](int row, int column, float x) { to[row * (kWidth | 1) + column] = x; },
        [](int) {});
  }

  // Lines 7 and 8.
  ATTN_DEVICE void load_keys(const GradientTile<C>& tile) const {
    load<kKeys, C::kHeadDim>(tile.of_keys(p.k, p.k_strides, tile.head), tile.first, shared);
    load<kKeys, C::kHeadDimV>(tile.of_keys(p.v, p.v_strides, tile.head), tile.first,
                              shared + Layout::kVAt);
    for (int i = Layout::kDkAt + static_cast<int>(threadIdx.x); i < Layout::kQAt; i += kThreads) {
      shared[i] = 0;
    }
  }

  // Lines 10 and 19: Q_i, dO_i, LSE and D = rowsum(dO * O) - dLSE of queries from `first` on.
  ATTN_DEVICE void load_queries(const GradientTile<C>& tile, int head, int first) const {
    load<kQueries, C::kHeadDim>(tile.of_queries(p.q, p.q_strides, head), first,
                                shared + Layout::kQAt);
    const TensorRows o = tile.of_queries(p.o, p.o_strides, head);
    float d = 0;
    for_each_element<kQueries, C::kHeadDimV>(
        tile.of_queries(p.d_o, p.d_o_strides, head), first,
        [&](int row, int column, float x) {
          shared[Layout::kDoAt + row * Layout::kRowV + column] = x;
          if (first + row >= o.count) return;
          const auto* const from =
              element<Element>(o.data, o.start + (first + row) * o.stride + column);
          d = fmaf(x, Scalar<Element>::from(*from), d);
        },
        [&](int row) {
#pragma unroll
          for (int i = 1; i < kMembers; i *= 2) d += __shfl_xor_sync(~0u, d, i);
          if (member() == 0) store_terms(tile, head, first, row, d);
          d = 0;
        });
  }
  // Where a query sees no key, P is 0: its LSE counts as +inf.
  ATTN_DEVICE void store_terms(const GradientTile<C>& tile, int head, int first, int row,
                               float d) const {
    float lse = minus_infinity();
    const auto at = [&](const void* data, const Strides& strides) {
      const TensorRows rows = tile.of_queries(data, strides, head);
      return rows.start + (first + row) * rows.stride;
    };
    if (first + row < tile.sequence.length_q) lse = p.lse[at(p.lse, p.lse_strides)];
    const bool sees = lse != minus_infinity();
    if (sees && p.d_lse != nullptr) d -= p.d_lse[at(p.d_lse, p.d_lse_strides)];
    shared[Layout::kLseAt + row] = sees ? lse : -minus_infinity();
    shared[Layout::kDAt + row] = d;
  }

  // Line 24, of one gradient.
  template <int kWidth>
  ATTN_DEVICE void store_keys(const GradientTile<C>& tile, void* data, const Strides& strides,
                              const float* from, float factor) const {
    if (data == nullptr) return;
    const TensorRows rows = tile.of_keys(data, strides, tile.head);
    for (int row = group(); row < kKeys; row += kGroups) {
      const int key = tile.first + row;
      if (key >= tile.sequence.rows_k) return;
      auto* const to = element<Stored>(data, rows.start + key * rows.stride);
      for (int column = member(); column < kWidth; column += kMembers) {
        const float x = key < rows.count ? from[row * (kWidth | 1) + column] * factor : 0;
        to[column] = Scalar<Stored>::to(x);
      }
    }
  }

  // ---- the tile

  // Lines 11 to 20: P, with what dropout leaves of it, and dS.
  ATTN_DEVICE void weigh(const Step& step, int head, int first) const {
    const GradientTile<C>& tile = step.tile;
    const Sequence& s = tile.sequence;
    float dots[kKeysOf][kColumnsOf], dp[kKeysOf][kColumnsOf];
    multiply<kKeysOf, kColumnsOf, false>(dots, {shared, Layout::kRow, 1},
                                         {shared + Layout::kQAt, 1, Layout::kRow}, C::kHeadDim, 0,
                                         kQueries);
    multiply<kKeysOf, kColumnsOf, false>(dp, {shared + Layout::kVAt, Layout::kRowV, 1},
                                         {shared + Layout::kDoAt, 1, Layout::kRowV}, C::kHeadDimV,
                                         0, kQueries);
    const auto dropout = dropout_of<C::kRngState>(p, s.batch);
#pragma unroll
    for (int i = 0; i < kColumnsOf; ++i) {
      const int column = member() + kMembers * i, query = first + column;
      const RowTerms row{shared[Layout::kLseAt + column], shared[Layout::kDAt + column]};
      const DropoutRow drawn(dropout, static_cast<unsigned>(s.batch * p.heads_q + head),
                             static_cast<unsigned>(query));
#pragma unroll
      for (int r = 0; r < kKeysOf; ++r) {
        const int slot = group() * kKeysOf + r, key = tile.first + slot;
        bool visible = query < s.length_q && key < s.length_k;
        if constexpr (Expressions::kHasMask) {
          visible = visible && e.mask(query, key, s.batch, head, s.length_q, s.length_k);
        }
        float z = 1;
        if constexpr (C::kDropout) z = drawn.keeps(key) ? p.dropout_scale : 0;
        float probable = 0, ds = 0;
        if (visible) {
          probable = z * step.probability(dots[r][i], row.lse, query, key, head);
          ds = step.weight(dots[r][i], dp[r][i], z, row, query, key, head);
        }
        const int at = slot * Layout::kRowP + column;
        shared[Layout::kPAt + at] = probable;
        shared[Layout::kDsAt + at] = ds;
      }
    }
  }

  // Line 21: dQ_i of memory, but for zeros at the first block of keys; after the last one the
  // result.
  ATTN_DEVICE void add_dq(const GradientTile<C>& tile, int head, int first, bool begins,
                          bool ends) const {
    const TensorRows rows = tile.of_queries(p.dq, p.dq_strides, head);
    float* const sums =
        p.dq_sum +
        ((static_cast<long long>(tile.sequence.batch) * p.heads_q + head) * p.seqlen_q + first) *
            C::kHeadDim;
    for_each_sum<kQueriesOf, C::kHeadDim>(
        {shared + Layout::kDsAt, 1, Layout::kRowP}, {shared, Layout::kRow, 1}, kKeys,
        [&](int row, int column, float x) {
          if (first + row >= tile.sequence.rows_q) return;
          float& sum = sums[row * C::kHeadDim + column];
          if (!begins) x += sum;
          if (!ends) {
            sum = x;
          } else if (p.dq != nullptr) {
            auto* const to =
                element<Element>(p.dq, rows.start + (first + row) * rows.stride + column);
            *to = Scalar<Element>::to(x * p.scale);
          }
        });
  }

  // Lines 10 to 22: a block of keys meets queries from `first` on.
  ATTN_DEVICE void update(const Step& step, int head, int first, bool begins, bool ends) const {
    const GradientTile<C>& tile = step.tile;
    if constexpr (C::kSkipsEmpty) {
      // The first block of keys makes the rows of the workspace and the last one those of dQ.
      const bool empty = tile.coverage(e, first / kQueries, head) == Coverage::empty;
      if (empty && !begins && !ends) return;
    }
    __syncthreads();  // nobody reads the tile before
    load_queries(tile, head, first);
    __syncthreads();
    weigh(step, head, first);
    __syncthreads();
    for_each_sum<kKeysOf, C::kHeadDimV>({shared + Layout::kPAt, Layout::kRowP, 1},
                                        {shared + Layout::kDoAt, Layout::kRowV, 1}, kQueries,
                                        [&](int row, int column, float x) {
                                          shared[Layout::kDvAt + row * Layout::kRowV + column] += x;
                                        });
    for_each_sum<kKeysOf, C::kHeadDim>({shared + Layout::kDsAt, Layout::kRowP, 1},
                                       {shared + Layout::kQAt, Layout::kRow, 1}, kQueries,
                                       [&](int row, int column, float x) {
                                         shared[Layout::kDkAt + row * Layout::kRow + column] += x;
                                       });
    add_dq(tile, head, first, begins, ends);
  }

  ATTN_DEVICE void run(int batch, int head_k) const {
    const Sequence sequence = sequence_of<C>(p, batch);
    const int group_size = p.heads_q / p.heads_k;
#pragma unroll 1
    for (int key = 0; key == 0 || key < sequence.rows_k; key += kKeys) {
      const GradientTile<C> tile{sequence, head_k, key};
      const Step step{p, e, slope, tile, shared};
      const bool begins = key == 0, ends = key + kKeys >= sequence.rows_k;
      __syncthreads();  // nobody reads the keys before
      load_keys(tile);
#pragma unroll 1
      for (int head = head_k * group_size; head < (head_k + 1) * group_size; ++head) {
#pragma unroll 1
        for (int query = 0; query < sequence.rows_q; query += kQueries) {
          update(step, head, query, begins, ends);
        }
      }
      __syncthreads();
      store_keys<C::kHeadDim>(tile, p.dk, p.dk_strides, shared + Layout::kDkAt, p.scale);
      store_keys<C::kHeadDimV>(tile, p.dv, p.dv_strides, shared + Layout::kDvAt, 1);
    }
  }
};

template <class C, class Expressions, class Slope>
ATTN_DEVICE void backward_flash_attention(const BackwardParams& p, const Expressions& e,
                                          const Slope& slope) {
  static_assert(BackwardFlashLayout<C>::kBytes == C::kSharedBytes);  // that the launch gives
  const int pair = static_cast<int>(blockIdx.x);
  BackwardFlashAttention<C, Expressions, Slope>{p, e, slope, shared_memory()}.run(pair / p.heads_k,
                                                                                  pair % p.heads_k);
}

}  // namespace attn::device
