// P of the backward pass in the kernels without tensor cores.
//
// Reads of C: kScoreHides, kFarRows
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "schedule/sequence.cuh"
#include "softmax/far_rows.cuh"

namespace attn::device {

// P of a score, given q.k and LSE. It is 0 where LSE is +inf, and never above 1, however large the
// scores are.
template <class C, class Expressions>
ATTN_DEVICE float scalar_probability(const BackwardParams& p, const Expressions& e,
                                     const Sequence& sequence, float dot, float lse, int query,
                                     int key, int head_q) {
  constexpr float kLog2E = 1.4426950408889634f;
  float x;
  if constexpr (Expressions::kHasScore) {
    x = e.score(dot, query, key, sequence.batch, head_q, sequence.length_q, sequence.length_k);
    if constexpr (C::kScoreHides) {
      if (x == minus_infinity()) return 0;  // also where LSE is NaN
    }
    if constexpr (C::kFarRows) {
      if (is_far_lse(lse)) {
        const FarRow far = far_rows(p, sequence.batch, head_q)[query];
        const float y = (x - far.m) * (Expressions::kScoreFactor * kLog2E) - far.log2_l;
        return exp2f(y > 0 ? 0 : y);
      }
    }
    x = x * Expressions::kScoreFactor - lse;
  } else {
    x = fmaf(dot, p.scale, -lse);
  }
  return exp2f(x > 0 ? 0 : x * kLog2E);
}

}  // namespace attn::device
