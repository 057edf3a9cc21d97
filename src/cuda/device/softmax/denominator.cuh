// The end of a row's softmax.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/math.cuh"
#include "softmax/online.cuh"

namespace attn::device {

// A number as the sum of two: `rest` is what rounding took from `value`.
struct TwoFloats {
  float value, rest;
};
ATTN_DEVICE TwoFloats product(float a, float b) {
  const float value = a * b;
  return {value, fmaf(a, b, -value)};
}

// What P of a row were taken against, as a natural logarithm: r, or where that is far (online.cuh)
// m, its largest score, times factor.
template <bool kFar>
ATTN_DEVICE TwoFloats natural_top(float r, float m, float factor) {
  constexpr float kLn2 = 0x1.62e43p-1f, kLn2Rest = -0x1.05c61p-29f;
  TwoFloats top = product(r, kLn2);
  top.rest = fmaf(r, kLn2Rest, top.rest);
  if constexpr (kFar) {
    if (is_far(r)) top = product(m, factor);
  }
  return top;
}

ATTN_DEVICE PartialLse nothing_seen() { return {minus_infinity(), 0}; }
// The sum of top and x, as far as two numbers hold it (TwoSum of Knuth).
ATTN_DEVICE PartialLse partial_sum(const TwoFloats& top, float x) {
  const float sum = __fadd_rn(top.value, x), x_part = __fsub_rn(sum, top.value);
  const float top_part = __fsub_rn(sum, x_part);
  const float rest = __fsub_rn(top.value, top_part) + __fsub_rn(x, x_part) + top.rest;
  return {sum, fabsf(sum) <= largest_float() ? rest : 0.f};  // also of NaN
}

// What O is divided by, as a factor, and LSE (natural logarithm); of parts of the keys also as two
// numbers.
struct Denominator {
  float inverse, lse;
  PartialLse part;
};

// l = sum of exp(s - m), without the sink, which is a score that has no value. l == 0: nothing was
// seen: O is 0 and LSE the sink, whatever that is; NaN goes through. kShort: the factor may err by
// an ulp, for results of 16 bits. kPart: `part` is asked for.
template <bool kSink, bool kShort, bool kPart>
ATTN_DEVICE Denominator denominator(const TwoFloats& m, float l, float sink) {
  const bool seen = !(l == 0);
  const auto inverse = [](float x) { return kShort ? reciprocal_approximate(x) : 1 / x; };
  Denominator d{};
  if constexpr (kSink) {
    const float top = fmaxf(m.value, sink);
    const float share = expf(m.value - top);
    const float sum = l * share + expf(sink - top);
    d.inverse = seen ? share * inverse(sum) : 0;
    d.lse = seen ? top + logf(sum) : sink;
    if constexpr (kPart) {
      d.part = partial_sum({top, top == m.value ? m.rest : 0.f}, logf(sum));
      if (!seen) d.part = {sink, 0};
    }
    return d;
  }
  // There is no branch: both are computed where l is 0, too.
  const float factor = inverse(l), lse = m.value + logf(l);
  d.inverse = seen ? factor : 0;
  d.lse = seen ? lse : minus_infinity();
  if constexpr (kPart) d.part = seen ? partial_sum(m, logf(l)) : nothing_seen();
  return d;
}

}  // namespace attn::device
