// What the backward pass needs of each row of Q (FlashAttention-2, algorithm 2, line 4):
// D = rowsum(dO * O) - dLSE, beside LSE. One warp a row.
//
// Reads of C: Element, kHeadDimV, kPackedQ, kUsedQ, kWide
// Grid: a quarter of the number of rows, batch * heads_q * seqlen_q; 128 threads.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "schedule/sequence.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

inline constexpr int kBackwardRowsThreads = 128;

template <class C>
ATTN_DEVICE void backward_rows(const BackwardParams& p) {
  using Element = typename C::Element;
  const long long row =
      static_cast<long long>(blockIdx.x) * (kBackwardRowsThreads / 32) + threadIdx.x / 32;
  const long long pair = row / p.seqlen_q;
  const int query = static_cast<int>(row - pair * p.seqlen_q);
  const int batch = static_cast<int>(pair / p.heads_q);
  const int head = static_cast<int>(pair - static_cast<long long>(batch) * p.heads_q);
  if (batch >= p.batch) return;
  const auto s = sequence_of<C, QueriesOfSequence>(p, batch);
  RowTerms terms{-minus_infinity(), 0};
  if (query < s.length_q) {
    const auto at = [&](const Strides& strides) {
      return (C::kPackedQ ? 0 : batch * strides.batch) +
             (static_cast<long long>(s.row_q) + query) * strides.row + head * strides.head;
    };
    const auto* o = element<Element>(p.o, at(p.o_strides));
    const auto* d_o = element<Element>(p.d_o, at(p.d_o_strides));
    for (int c = static_cast<int>(threadIdx.x % 32); c < C::kHeadDimV; c += 32) {
      terms.d = fmaf(Scalar<Element>::from(d_o[c]), Scalar<Element>::from(o[c]), terms.d);
    }
#pragma unroll
    for (int i = 1; i < 32; i *= 2) terms.d += __shfl_xor_sync(~0u, terms.d, i);
    const float lse = p.lse[at(p.lse_strides)];
    if (lse != minus_infinity()) {
      terms.lse = lse;
      if (p.d_lse != nullptr) terms.d -= p.d_lse[at(p.d_lse_strides)];
    }
  }
  if (threadIdx.x % 32 == 0) p.row_terms[row] = terms;
}

}  // namespace attn::device
