// The end of a row's softmax.
#pragma once

#include "ptx/math.cuh"

namespace attn::device {

// What O is divided by, as a factor, and LSE (natural logarithm).
struct Denominator {
  float inverse, lse;
};

// l = sum of exp(s - m), without the sink, which is a score that has no value. l == 0: nothing was
// seen; NaN goes through. kShort: the factor may err by an ulp, for results of 16 bits.
template <bool kSink, bool kShort>
__device__ __forceinline__ Denominator denominator(float m, float l, float sink) {
  const float nothing = minus_infinity();
  const bool seen = !(l == 0);
  const auto inverse = [](float x) { return kShort ? reciprocal_approximate(x) : 1 / x; };
  if constexpr (kSink) {
    const float top = seen ? fmaxf(m, sink) : sink;
    if (top == nothing) return {0, nothing};
    const float share = seen ? expf(m - top) : 0;
    const float sum = (seen ? l * share : 0) + expf(sink - top);
    return {share * inverse(sum), top + logf(sum)};
  }
  // There is no branch: both are computed where l is 0, too.
  const float factor = inverse(l), lse = m + logf(l);
  return {seen ? factor : 0, seen ? lse : nothing};
}

}  // namespace attn::device
