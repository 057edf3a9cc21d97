// Before the other kernels of a backward pass whose score adds what may be large, as a mask of the
// lowest float: the largest score and the sum of exponentials of each row whose LSE is far from 0
// (softmax/far_rows.cuh). Other rows are left out, so that where there are no such rows this takes
// as long as reading LSE.
//
// Reads of C: Element, kGradient (any), kHeadDim, kPackedQ, kPackedK, kUsedQ, kUsedK, kWide,
// kKeyList (keys by list)
// Grid: a block of 128 threads for each 32 of the rows, batch * heads_q * seqlen_q.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "params.cuh"
#include "schedule/gradient_tile.cuh"
#include "schedule/listed_query.cuh"
#include "softmax/far_rows.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

template <class C, class Expressions>
struct BackwardFarRows {
  using Element = typename C::Element;
  using Tile = GradientTile<C>;
  static constexpr float kLog2E = 1.4426950408889634f;
  static constexpr float kExponent = Expressions::kScoreFactor * kLog2E;
  static constexpr int kRows = 8;                              // of a warp
  static constexpr int kColumns = divide_up<32>(C::kHeadDim);  // of a thread

  const BackwardParams& p;
  const Expressions& e;

  struct Row {
    Tile tile;
    int head, query;
  };
  // 2^(c (score - m)) of some scores add up to l, m being the largest. Of none l is 0.
  struct Sums {
    float m = minus_infinity(), l = 0;
    ATTN_DEVICE void add(const Sums& other) {
      if (other.l == 0) return;
      const float next = fmaxf(m, other.m);
      l = (l == 0 ? 0 : l * exp2f((m - next) * kExponent)) +
          other.l * exp2f((other.m - next) * kExponent);
      m = next;
    }
  };

  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }

  ATTN_DEVICE Row row_at(long long row) const {
    const long long pair = row / p.seqlen_q;
    const int batch = static_cast<int>(pair / p.heads_q);
    const int head = static_cast<int>(pair - static_cast<long long>(batch) * p.heads_q);
    return {{sequence_of<C>(p, batch), head, 0}, head, static_cast<int>(row - pair * p.seqlen_q)};
  }
  ATTN_DEVICE bool is_far(long long row) const {
    if (row >= static_cast<long long>(p.batch) * p.heads_q * p.seqlen_q) return false;
    const Row r = row_at(row);
    if (r.query >= r.tile.sequence.length_q) return false;
    const TensorRows rows = r.tile.of_queries(p.lse, p.lse_strides, r.head);
    const float lse = p.lse[rows.start + r.query * rows.stride];
    return lse != minus_infinity() && is_far_lse(lse);
  }

  // q.k of 32 keys, or as many as there are, from `first` on: a key a lane. key: the lane's, or -1.
  ATTN_DEVICE float dot(const float (&q)[kColumns], const TensorRows& k, int first, int key) const {
    float own = 0;
    const int count = C::kKeyList ? 32 : min(32, k.count - first);
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const int of = C::kKeyList ? __shfl_sync(~0u, key, i) : first + i;
      if (C::kKeyList && of < 0) continue;
      const auto* const from = element<Element>(k.data, k.start + of * k.stride);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int column = lane() + 32 * j;
        if (column < C::kHeadDim) sum = fmaf(q[j], Scalar<Element>::from(from[column]), sum);
      }
#pragma unroll
      for (int j = 1; j < 32; j *= 2) sum += __shfl_xor_sync(~0u, sum, j);
      if (i == lane()) own = sum;
    }
    return own;
  }

  ATTN_DEVICE int key_at(const Row& r, int place) const {
    if constexpr (!C::kKeyList) return place;
    return listed_key<C>(p, r.tile.sequence, r.query, r.head / (p.heads_q / p.heads_k), place);
  }
  // The sums of a row, the same in all lanes.
  ATTN_DEVICE Sums sums_of(const Row& r) const {
    const Sequence& s = r.tile.sequence;
    const TensorRows rows = r.tile.of_queries(p.q, p.q_strides, r.head);
    const TensorRows k = r.tile.of_keys(p.k, p.k_strides, r.head / (p.heads_q / p.heads_k));
    const auto* const from = element<Element>(p.q, rows.start + r.query * rows.stride);
    float q[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int column = lane() + 32 * j;
      q[j] = column < C::kHeadDim ? Scalar<Element>::from(from[column]) : 0;
    }
    Sums sums;
#pragma unroll 1
    for (int first = 0; first < (C::kKeyList ? p.list_length : s.length_k); first += 32) {
      const int key = key_at(r, first + lane());
      const float x = dot(q, k, first, key);
      bool visible = C::kKeyList ? key >= 0 : key < s.length_k;
      if constexpr (Expressions::kHasMask) {
        visible = visible && e.mask(r.query, key, s.batch, r.head, s.length_q, s.length_k);
      }
      if (visible) {
        const float score = e.score(x, r.query, key, s.batch, r.head, s.length_q, s.length_k);
        if (score != minus_infinity()) sums.add({score, 1});
      }
      __syncwarp();
    }
#pragma unroll
    for (int j = 1; j < 32; j *= 2) {
      sums.add({__shfl_xor_sync(~0u, sums.m, j), __shfl_xor_sync(~0u, sums.l, j)});
    }
    return sums;
  }

  // A sink is a score without a key.
  ATTN_DEVICE FarRow far_row(const Row& r) const {
    const Sums sums = sums_of(r);
    FarRow far{sums.l == 0 ? 0 : sums.m, log2f(sums.l)};
    if (p.sink == nullptr) {
      if (sums.l == 0) far.log2_l = -minus_infinity();
      return far;
    }
    const float sink = sink_exponent(p.sink[r.head], Expressions::kScoreFactor, far.m);
    far.log2_l = sums.l == 0 ? sink
                 : sink > 0  ? sink + log2f(1 + sums.l * exp2f(-sink))
                             : log2f(sums.l + exp2f(sink));
    return far;
  }

  ATTN_DEVICE void run() const {
    const long long first =
        (static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32) * kRows;
    unsigned left = __ballot_sync(~0u, lane() < kRows && is_far(first + lane()));
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      const Row r = row_at(first + __ffs(static_cast<int>(left)) - 1);
      const FarRow far = far_row(r);
      if (lane() == 0) {
        far_rows(p, r.tile.sequence.batch, r.head)[r.query] = far;
        *any_far_row(p) = 1;
      }
    }
  }
};

template <class C, class Expressions>
ATTN_DEVICE void backward_far_rows(const BackwardParams& p, const Expressions& e) {
  BackwardFarRows<C, Expressions>{p, e}.run();
}

}  // namespace attn::device
