// The end of a row's softmax.
#pragma once

#include "ptx/math.cuh"

namespace attn::device {

// What O is divided by, as a factor, and LSE (natural logarithm).
struct Denominator {
  float inverse, lse;
};

// l = sum of exp(s - m), without the sink, which is a score that has no value. l == 0: nothing was
// seen; NaN goes through.
template <bool kSink>
__device__ __forceinline__ Denominator denominator(float m, float l, float sink) {
  const float nothing = minus_infinity();
  const bool seen = !(l == 0);
  if constexpr (kSink) {
    const float top = seen ? fmaxf(m, sink) : sink;
    if (top == nothing) return {0, nothing};
    const float share = seen ? expf(m - top) : 0;
    const float sum = (seen ? l * share : 0) + expf(sink - top);
    return {share / sum, top + logf(sum)};
  }
  return {seen ? 1 / l : 0, seen ? m + logf(l) : nothing};
}

}  // namespace attn::device
