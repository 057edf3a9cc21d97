// The end of a row's softmax.
#pragma once

#include "device.cuh"
#include "ptx/math.cuh"

namespace attn::device {

// What O is divided by, as a factor, and LSE (natural logarithm).
struct Denominator {
  float inverse, lse;
};

// l = sum of exp(s - m), without the sink, which is a score that has no value. l == 0: nothing was
// seen: O is 0 and LSE the sink, whatever that is; NaN goes through. kShort: the factor may err by
// an ulp, for results of 16 bits.
template <bool kSink, bool kShort>
ATTN_DEVICE Denominator denominator(float m, float l, float sink) {
  const float nothing = minus_infinity();
  const bool seen = !(l == 0);
  const auto inverse = [](float x) { return kShort ? reciprocal_approximate(x) : 1 / x; };
  if constexpr (kSink) {
    const float top = fmaxf(m, sink);
    const float share = expf(m - top);
    const float sum = l * share + expf(sink - top);
    return {seen ? share * inverse(sum) : 0, seen ? top + logf(sum) : sink};
  }
  // There is no branch: both are computed where l is 0, too.
  const float factor = inverse(l), lse = m + logf(l);
  return {seen ? factor : 0, seen ? lse : nothing};
}

}  // namespace attn::device
