// Standard attention's backward pass (FlashAttention paper, algorithm 3): matrices with an element
// for each query and key go through memory. The baseline of the others, with the arithmetic of
// backward_simt.cuh; to be read and to be measured.
//
// The paper has P from the forward pass. Here that keeps LSE alone, so the first launch makes P
// too, and lines 2 and 3 with it, since a block of threads has whole rows of P and dP. D is summed
// from tiles while they are there: 8 N^2 numbers move where the paper has 7, since P is written.
//   Gradient::ds   P_ij = exp(T_ij - LSE_i)
//                  line 2: dP = dO V^T
//                  line 3: D_i = sum_l P_il Z_il dP_il - dLSE_i
//                          dS_ij = P_ij (Z_ij dP_ij - D_i) dT/dS
//   Gradient::dq   line 4: dQ = scale dS K
//   Gradient::dk   line 5: dK = scale dS^T Q
//   Gradient::dv   line 1: dV = (Z P)^T dO
// with T the changed scores and Z what dropout multiplies by. Each is a launch, in this order. In
// the workspace lie P and Z dP, which dS replaces, [batch][heads_q][seqlen_q][seqlen_k] in float32.
//
// Reads of C: what backward_simt.cuh reads. Grid: likewise; tiles of Gradient::ds have queries.
#pragma once

#include "device.cuh"
#include "kernels/backward_simt.cuh"

namespace attn::device {

template <class C, class Expressions, class Slope>
struct BackwardStandard {
  using Step = BackwardSimt<C, Expressions, Slope>;
  using Layout = BackwardSimtLayout<C>;
  using Thread = typename Step::Thread;
  using Element = typename C::Element;
  static constexpr bool kOfKeys = Step::kOfKeys;
  static constexpr int kRows = Step::kRows, kWarps = Step::kThreads / 32;

  const Step step;

  // The row of a matrix that belongs to a query.
  ATTN_DEVICE float* row_of(float* matrix, int query, int head_q) const {
    const BackwardParams& p = step.p;
    const long long pair = static_cast<long long>(step.tile.sequence.batch) * p.heads_q + head_q;
    return matrix + (pair * p.seqlen_q + query) * p.seqlen_k;
  }

  // ---- a tile of a matrix, through shared memory, where it lies as the weights of backward_simt

  // copy(there, in memory) for each element; null where the sequence has no such query or key.
  template <class Copy>
  ATTN_DEVICE void for_each_element(float* matrix, int block, int head_q, Copy copy) const {
    constexpr int kKeys = kOfKeys ? C::kBlockM : C::kBlockN;
    const Sequence& s = step.tile.sequence;
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < C::kBlockM * C::kBlockN; i += Step::kThreads) {
      const int row = kOfKeys ? i % kKeys : i / kKeys, column = kOfKeys ? i / kKeys : i % kKeys;
      const int at_row = step.tile.first + Step::row_of(row);
      const int at_column = block * C::kBlockN + Step::column_of(column);
      const int query = kOfKeys ? at_column : at_row, key = kOfKeys ? at_row : at_column;
      const bool exists = query < s.length_q && key < s.length_k;
      copy(step.shared[Layout::kWeightsAt + column * Layout::kRows + row],
           exists ? row_of(matrix, query, head_q) + key : nullptr);
    }
    __syncthreads();
  }
  // Calls each for the thread's elements.
  template <class Each>
  ATTN_DEVICE void for_each_of_thread(Each each) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = Step::group() * kRows + r, column = 4 * Step::member() + i;
        each(r, i, row, column, step.shared[Layout::kWeightsAt + column * Layout::kRows + row]);
      }
    }
  }
  ATTN_DEVICE void store(const Thread& t, float* matrix, int block, int head_q) const {
    for_each_of_thread([&](int r, int i, int, int, float& x) { x = t.s[r][i]; });
    for_each_element(matrix, block, head_q, [](float x, float* to) {
      if (to != nullptr) *to = x;
    });
  }
  ATTN_DEVICE void load(Thread& t, float* matrix, int block, int head_q) const {
    for_each_element(matrix, block, head_q,
                     [](float& x, const float* from) { x = from == nullptr ? 0 : *from; });
    for_each_of_thread([&](int r, int i, int, int, float x) { t.s[r][i] = x; });
  }

  // ---- Gradient::ds

  // -inf where a query sees no key.
  ATTN_DEVICE float lse_of(int query, int head_q) const {
    const TensorRows rows = step.tile.of_queries(step.p.lse, step.p.lse_strides, head_q);
    return query < rows.count ? step.p.lse[rows.start + query * rows.stride] : minus_infinity();
  }

  // S <- P.
  ATTN_DEVICE void probabilities(Thread& t, int block, int head_q) const {
    const Sequence& s = step.tile.sequence;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int query = step.tile.first + Step::group() * kRows + r;
      const float lse = lse_of(query, head_q);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = block * C::kBlockN + Step::column_of(4 * Step::member() + i);
        bool visible = lse != minus_infinity() && key < s.length_k;
        if constexpr (Expressions::kHasMask) {
          visible = visible && step.e.mask(query, key, s.batch, head_q, s.length_q, s.length_k);
        }
        t.s[r][i] = visible ? step.probability(t.s[r][i], lse, query, key, head_q) : 0;
      }
    }
  }

  // dT/dS of an element, whose score is computed again.
  ATTN_DEVICE float slope(int query, int key, int head_q) const {
    const GradientTile<C>& tile = step.tile;
    const BackwardParams& p = step.p;
    const TensorRows q = tile.of_queries(p.q, p.q_strides, head_q);
    const TensorRows k = tile.of_keys(p.k, p.k_strides, tile.head_k(p));
    const auto* const a = element<Element>(q.data, q.start + query * q.stride);
    const auto* const b = element<Element>(k.data, k.start + key * k.stride);
    float dot = 0;
    for (int c = 0; c < C::kHeadDim; ++c) {
      dot = fmaf(Scalar<Element>::from(a[c]), Scalar<Element>::from(b[c]), dot);
    }
    return step.derivatives.slope(dot * p.scale, query, key, tile.sequence.batch, head_q,
                                  tile.sequence.length_q, tile.sequence.length_k);
  }

  // sum_l P Z dP of a tile, Z dP in t. Where P is 0, dP may be anything.
  ATTN_DEVICE void add_to_d(float (&d)[kRows], const float (&weights)[kRows][4],
                            const Thread& t) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (weights[r][i] != 0) d[r] = fmaf(weights[r][i], t.s[r][i], d[r]);
      }
    }
  }

  // Line 3 of a row, by a warp, but for the sum.
  ATTN_DEVICE void differentiate(int query, int head_q, float d) const {
    const BackwardParams& p = step.p;
    const Sequence& s = step.tile.sequence;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float* const probable = row_of(p.probabilities, query, head_q);
    float* const ds = row_of(p.ds, query, head_q);
    if (p.d_lse != nullptr) {
      const TensorRows rows = step.tile.of_queries(p.d_lse, p.d_lse_strides, head_q);
      d -= p.d_lse[rows.start + query * rows.stride];
    }
    for (int key = lane; key < s.length_k; key += 32) {
      const float weight = probable[key];
      float x = weight * (ds[key] - d);
      if constexpr (Slope::kHasSlope) x *= slope(query, key, head_q);
      ds[key] = weight == 0 ? 0 : x;
    }
  }

  ATTN_DEVICE void scores() const {
    const GradientTile<C>& tile = step.tile;
    const BackwardParams& p = step.p;
    const int head = tile.head_q(p);
    const TensorRows q = tile.of_queries(p.q, p.q_strides, head);
    const TensorRows d_o = tile.of_queries(p.d_o, p.d_o_strides, head);
    const TensorRows k = tile.of_keys(p.k, p.k_strides, tile.head_k(p));
    const TensorRows v = tile.of_keys(p.v, p.v_strides, tile.head_k(p));
    Thread t;
    float d[kRows] = {};
#pragma unroll 1
    for (int block = 0; block < tile.blocks(); ++block) {
      step.template multiply_rows<C::kHeadDim>(t.s, q, k, block);
      probabilities(t, block, head);
      store(t, p.probabilities, block, head);
      float weights[kRows][4];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[r][i] = t.s[r][i];
      }
      step.template multiply_rows<C::kHeadDimV>(t.s, d_o, v, block);
      if constexpr (C::kDropout) drop(t, block, head);
      store(t, p.ds, block, head);
      add_to_d(d, weights, t);
    }
    // The sixteen threads that share rows add theirs up.
    float* const sums = step.shared + Layout::kWeightsAt;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 1; i < 16; i *= 2) d[r] += __shfl_xor_sync(~0u, d[r], i);
      if (Step::member() == 0) sums[Step::group() * kRows + r] = d[r];
    }
    __syncthreads();
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) / 32; row < C::kBlockM; row += kWarps) {
      if (tile.first + row < tile.rows_used()) differentiate(tile.first + row, head, sums[row]);
    }
  }

  // ---- the gradients

  // Multiplies x, which is P or dP, by Z.
  ATTN_DEVICE void drop(Thread& t, int block, int head_q) const {
    step.draw(t, block, head_q);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        t.s[r][i] = t.kept >> (4 * r + i) & 1 ? t.s[r][i] * step.p.dropout_scale : 0;
      }
    }
  }

  ATTN_DEVICE void gradient() const {
    const GradientTile<C>& tile = step.tile;
    const BackwardParams& p = step.p;
    constexpr bool kOfValues = C::kGradient == Gradient::dv;
    Thread t;
    Step::clear(t);
#pragma unroll 1
    for (int head = tile.head_q(p); head < tile.head_q(p) + tile.heads(p); ++head) {
      const TensorRows columns = kOfValues ? tile.of_queries(p.d_o, p.d_o_strides, head)
                                 : kOfKeys ? tile.of_queries(p.q, p.q_strides, head)
                                           : tile.of_keys(p.k, p.k_strides, tile.head_k(p));
#pragma unroll 1
      for (int block = 0; block < tile.blocks(); ++block) {
        load(t, kOfValues ? p.probabilities : p.ds, block, head);
        if constexpr (C::kDropout && kOfValues) drop(t, block, head);
        step.add(t, columns, block, true);
      }
    }
    step.store(t);
  }
};

template <class C, class Expressions, class Slope>
ATTN_DEVICE void backward_standard(const BackwardParams& p, const Expressions& e,
                                   const Slope& slope) {
  static_assert(BackwardSimtLayout<C>::kBytes == C::kSharedBytes);  // that the launch gives
  const auto tile = GradientTile<C>::at(p, static_cast<int>(blockIdx.x));
  if (tile.first >= tile.rows_present()) return;
  const BackwardStandard<C, Expressions, Slope> standard{{p, e, slope, tile, shared_memory()}};
  if constexpr (C::kGradient == Gradient::ds) {
    standard.scores();
  } else {
    standard.gradient();
  }
}

}  // namespace attn::device
