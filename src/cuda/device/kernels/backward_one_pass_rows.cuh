// Before the kernels that compute S once, backward_sm90 and backward_sm80: D = rowsum(dO * O) -
// dLSE and LSE in base 2 of each row of Q (FlashAttention-2, algorithm 2, line 4), and zeros where
// dQ will be summed, or where the turns of tiles are kept.
//
// Reads of C: Element, kHeadDim, kHeadDimV, kBlockN (queries), kPackedQ, kUsedQ, kWide, kOrdered,
// kRowThreads (threads that share a row), kFarRows, and where kOrdered what schedule/dq_turns.cuh
// reads
// Grid: kBackwardOnePassRowsThreads / kRowThreads rows a block of threads, of all places
// (BackwardParams). dO is 16-byte aligned; O where kAlignedO is true.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/dq_order.cuh"
#include "params.cuh"
#include "ptx/dependent.cuh"
#include "schedule/dq_turns.cuh"
#include "schedule/sequence.cuh"
#include "softmax/far_rows.cuh"
#include "tile/accumulator.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

inline constexpr int kBackwardOnePassRowsThreads = 256;

// Loads eight elements; kAligned: they lie at a multiple of 16 bytes.
template <bool kAligned>
ATTN_DEVICE Words4 load_eight(const unsigned short* x) {
  if constexpr (kAligned) {
    return *reinterpret_cast<const Words4*>(x);
  } else {
    const auto pair = [&](int i) { return x[i] | static_cast<unsigned>(x[i + 1]) << 16; };
    return {pair(0), pair(2), pair(4), pair(6)};
  }
}

template <class C, bool kAlignedO>
ATTN_DEVICE void backward_one_pass_rows(const BackwardParams& p) {
  using Element = typename C::Element;
  constexpr int kThreads = C::kRowThreads;  // of a row
  launch_dependents();
  if constexpr (C::kOrdered) {
    const long long step = static_cast<long long>(gridDim.x) * kBackwardOnePassRowsThreads;
    const long long size = DqTurns<C>::num_words(p);
    long long i = static_cast<long long>(blockIdx.x) * kBackwardOnePassRowsThreads + threadIdx.x;
    for (; i < size; i += step) DqTurns<C>::passed(p)[i] = 0;
  }
  // Blocks of threads go from the last row to the first: what the main kernel needs first is then
  // still in L2.
  const long long row = static_cast<long long>(gridDim.x - 1 - blockIdx.x) *
                            (kBackwardOnePassRowsThreads / kThreads) +
                        threadIdx.x / kThreads;
  const int rows = p.query_blocks * C::kBlockN;
  const long long pair = row / rows;
  const int query = static_cast<int>(row - pair * rows);
  const int batch = static_cast<int>(pair / p.heads_q);
  const int head = static_cast<int>(pair - static_cast<long long>(batch) * p.heads_q);
  const int chunk = static_cast<int>(threadIdx.x % kThreads);  // of 8 elements
  float d = 0, d_lse = 0, lse2 = -minus_infinity();
  if (batch < p.batch) {
    const auto s = sequence_of<C, QueriesOfSequence>(p, batch);
    if (query < s.length_q) {
      const auto at = [&](const Strides& strides) {
        return (C::kPackedQ ? 0 : batch * strides.batch) +
               (static_cast<long long>(s.row_q) + query) * strides.row + head * strides.head;
      };
#pragma unroll
      for (int i = chunk; i < C::kHeadDimV / 8; i += kThreads) {
        const Words4 o = load_eight<kAlignedO>(element<Element>(p.o, at(p.o_strides)) + 8 * i);
        const Words4 d_o = load_eight<true>(element<Element>(p.d_o, at(p.d_o_strides)) + 8 * i);
        const auto add = [&](unsigned x, unsigned y) {
          d = fmaf(Scalar<Element>::from(static_cast<unsigned short>(x)),
                   Scalar<Element>::from(static_cast<unsigned short>(y)), d);
          d = fmaf(Scalar<Element>::from(static_cast<unsigned short>(x >> 16)),
                   Scalar<Element>::from(static_cast<unsigned short>(y >> 16)), d);
        };
        add(o.x, d_o.x);
        add(o.y, d_o.y);
        add(o.z, d_o.z);
        add(o.w, d_o.w);
      }
      const float lse = p.lse[at(p.lse_strides)];
      if (lse != minus_infinity()) {
        lse2 = lse_in_base_2<C>(lse);
        if (p.d_lse != nullptr) d_lse = p.d_lse[at(p.d_lse_strides)];
      }
    }
  }
#pragma unroll
  for (int i = kThreads / 2; i > 0; i /= 2) d += __shfl_xor_sync(~0u, d, i);
  if (batch >= p.batch) return;
  if (chunk == 0) {
    p.lse2[row] = lse2;
    p.d[row] = d - d_lse;
  }
  if constexpr (!C::kOrdered) {  // else the first tile stores what others add to
    auto* const sum = reinterpret_cast<Float4*>(p.dq_sum + row * C::kHeadDim);
#pragma unroll
    for (int i = chunk; i < C::kHeadDim / 4; i += kThreads) sum[i] = {0, 0, 0, 0};
  }
}

}  // namespace attn::device
