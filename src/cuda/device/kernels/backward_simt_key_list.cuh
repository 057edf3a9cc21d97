// dQ, dK and dV over lists of keys (Problem::key_list) without tensor cores: for float32 and for
// any head_dim up to 576, any strides, any alignment. FlashAttention-2, algorithm 2, all in
// float32, with a row of Q outside and the keys of its list inside.
//
// A block of threads has one row of Q, and a warp one key at a time, whose columns its lanes share.
// dQ stays in registers; dK and dV are added to sums in memory (schedule/list_sums.cuh), which a
// second launch stores.
//
// Reads of C:
//   Element                Float32, BFloat16 or Float16
//   Stored                 of dK and dV: Element or Float32
//   kHeadDim, kHeadDimV    1 to 576
//   kGradient              Gradient::all; dk_dv, which stores the sums
//   kBlockM                keys of a block of threads of dk_dv
//   kBlockN                1
//   kWarps                 4
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide
//   kScoreHides            a score may be -inf
//   kFarRows               softmax/far_rows.cuh
// Slope: src/cuda/codegen/expression_gradients.hpp. Grid: a block of 32 kWarps threads for each
// batch entry, query and head of Q, with BackwardSimtKeyListLayout<C>::kBytes of dynamic shared
// memory.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "params.cuh"
#include "ptx/math.cuh"
#include "schedule/list_sums.cuh"
#include "schedule/listed_query.cuh"
#include "softmax/scalar_probability.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

// dQ of each warp, as a row of sums.
template <class C>
struct BackwardSimtKeyListLayout {
  static constexpr int kBytes =
      C::kGradient == Gradient::dk_dv ? 0 : 4 * C::kWarps * ListSums<C::kHeadDim>::kWidth;
};

template <class C, class Expressions, class Slope>
struct BackwardSimtKeyList {
  using Element = typename C::Element;
  using SumsK = ListSums<C::kHeadDim>;
  using SumsV = ListSums<C::kHeadDimV>;
  // Columns of a lane, four at a time in the order of sums.
  template <class Sums>
  using Lane = float[divide_up<128>(Sums::kWidth)][4];

  const BackwardParams& p;
  const Expressions& e;
  const Slope& slope;
  const ListedQuery<C> row;
  float* const shared;

  static ATTN_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
  // Where the lane's numbers begin that are number `block` of it.
  static ATTN_DEVICE int place(int block) {
    return 128 * block + 4 * static_cast<int>(threadIdx.x % 32);
  }

  // f(block, i, column) for the columns of the lane that there are.
  template <int kColumns, class F>
  static ATTN_DEVICE void for_each_column(F f) {
    using Sums = ListSums<kColumns>;
#pragma unroll
    for (int block = 0; block < divide_up<128>(Sums::kWidth); ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = Sums::column(place(block), i);
        if (column < kColumns) f(block, i, column);
      }
    }
  }
  // Elements that there are not are 0.
  template <int kColumns>
  static ATTN_DEVICE void load(Lane<ListSums<kColumns>>& to, const void* data, long long start) {
    const auto* const from = element<Element>(data, start);
    for (auto& four : to) {
      for (float& x : four) x = 0;
    }
    for_each_column<kColumns>(
        [&](int block, int i, int column) { to[block][i] = Scalar<Element>::from(from[column]); });
  }
  template <int kBlocks>
  static ATTN_DEVICE float dot(const float (&a)[kBlocks][4], const float (&b)[kBlocks][4]) {
    float sum = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum = fmaf(a[block][i], b[block][i], sum);
    }
#pragma unroll
    for (int i = 1; i < 32; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
    return sum;
  }
  template <class Sums>
  ATTN_DEVICE void add(float* sums, int key, float weight, const Lane<Sums>& x) const {
    float* const to = Sums::row(sums, p, row.sequence.batch, row.head_k, key);
#pragma unroll
    for (int block = 0; block < divide_up<128>(Sums::kWidth); ++block) {
      const float(&four)[4] = x[block];
      if (place(block) < Sums::kWidth) {
        add_to_memory(to + place(block), weight * four[0], weight * four[1], weight * four[2],
                      weight * four[3]);
      }
    }
  }

  ATTN_DEVICE bool sees(int key) const {
    if (key < 0) return false;
    if constexpr (Expressions::kHasMask) {
      const Sequence& s = row.sequence;
      return e.mask(row.query, key, s.batch, row.head_q, s.length_q, s.length_k);
    }
    return true;
  }

  ATTN_DEVICE void accumulate(Lane<SumsK>& dq) const {
    const RowTerms terms = row.terms(p, row.head_q);
    Lane<SumsK> q, k;
    Lane<SumsV> d_o, v;
    load<C::kHeadDim>(q, p.q, row.query_row(p.q_strides, row.head_q));
    load<C::kHeadDimV>(d_o, p.d_o, row.query_row(p.d_o_strides, row.head_q));
#pragma unroll 1
    for (int entry = warp(); entry < p.list_length; entry += C::kWarps) {
      const int key = row.key_at(p, entry);
      if (!sees(key)) continue;  // all lanes
      load<C::kHeadDim>(k, p.k, row.key_row(p.k_strides, key));
      load<C::kHeadDimV>(v, p.v, row.key_row(p.v_strides, key));
      const float s = dot(q, k);
      const float probable =
          scalar_probability<C>(p, e, row.sequence, s, terms.lse, row.query, key, row.head_q);
      if (probable == 0) continue;
      float ds = probable * (dot(d_o, v) - terms.d);
      if constexpr (Slope::kHasSlope) {
        ds *= slope.slope(s * p.scale, row.query, key, row.sequence.batch, row.head_q,
                          row.sequence.length_q, row.sequence.length_k);
      }
      for_each_column<C::kHeadDim>(
          [&](int block, int i, int) { dq[block][i] = fmaf(ds, k[block][i], dq[block][i]); });
      if (p.dk != nullptr) add<SumsK>(p.dk_sum, key, ds, q);
      if (p.dv != nullptr) add<SumsV>(p.dv_sum, key, probable, d_o);
    }
  }

  // Adds the warps' dQ in order.
  ATTN_DEVICE void store(const Lane<SumsK>& dq) const {
    for_each_column<C::kHeadDim>([&](int block, int i, int column) {
      shared[warp() * SumsK::kWidth + column] = dq[block][i];
    });
    __syncthreads();
    auto* const to = element<Element>(p.dq, row.query_row(p.dq_strides, row.head_q));
    for (int c = static_cast<int>(threadIdx.x); c < C::kHeadDim; c += 32 * C::kWarps) {
      float sum = 0;
      for (int i = 0; i < C::kWarps; ++i) sum += shared[i * SumsK::kWidth + c];
      to[c] = Scalar<Element>::to(sum * p.scale);
    }
  }

  ATTN_DEVICE void run() const {
    Lane<SumsK> dq;
    for (auto& four : dq) {
      for (float& x : four) x = 0;
    }
    if (row.is_used()) accumulate(dq);
    if (p.dq != nullptr) store(dq);
  }
};

template <class C, class Expressions, class Slope>
ATTN_DEVICE void backward_simt_key_list(const BackwardParams& p, const Expressions& e,
                                        const Slope& slope) {
  static_assert(BackwardSimtKeyListLayout<C>::kBytes == C::kSharedBytes);  // that the launch gives
  if constexpr (C::kGradient == Gradient::dk_dv) {
    store_list_gradients<C>(p);
  } else {
    extern __shared__ __align__(128) char memory[];
    const auto row = ListedQuery<C>::at(p, static_cast<int>(blockIdx.x));
    if (!row.exists()) return;
    BackwardSimtKeyList<C, Expressions, Slope>{p, e, slope, row, reinterpret_cast<float*>(memory)}
        .run();
  }
}

}  // namespace attn::device
