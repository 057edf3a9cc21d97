// Online softmax over blocks of keys (FlashAttention-2, algorithm 1) in base 2, where the scores of
// a block are at hand before their exponentials: P = 2^(c s - r). The reference r of a row follows
// its maximum only when that is more than kSlack above: P then goes up to 2^kSlack, which costs
// nothing in floating point, and O is hardly ever multiplied.
#pragma once

#include "device.cuh"
#include "softmax/online.cuh"

namespace attn::device {

// The largest score of row i of the two of a thread.
template <int kCount>
ATTN_DEVICE float row_maximum(const float (&s)[kCount], int i) {
  float best[2] = {s[2 * i], s[2 * i + 1]};
#pragma unroll
  for (int j = 1; j < kCount / 4; ++j) {
    best[0] = fmaxf(best[0], s[4 * j + 2 * i]);
    best[1] = fmaxf(best[1], s[4 * j + 2 * i + 1]);
  }
  return quad_max(fmaxf(best[0], best[1]));
}

// The softmax of the two rows of a thread (tile/accumulator.cuh).
struct LazySoftmax {
  static constexpr float kSlack = 8;

  float r[2] = {minus_infinity(), minus_infinity()};    // -inf: nothing seen yet
  float l[2] = {0, 0};                                  // sum of P over this thread's columns
  float m[2] = {minus_infinity(), minus_infinity()};    // kFar: the score that r is of
  float top[2] = {minus_infinity(), minus_infinity()};  // kMaxLogit: the largest score

  // S <- P; scores may be -inf, also all of a row. True, in the whole warp alike, when O must be
  // multiplied by alpha. kFar: references may be far (online.cuh). kMaxLogit: `top` is wanted.
  template <bool kFar, bool kMaxLogit, int kCount>
  ATTN_DEVICE bool exponentiate(float (&s)[kCount], float c, float (&alpha)[2]) {
    const float largest[2] = {row_maximum(s, 0), row_maximum(s, 1)};
    return exponentiate_below<kFar, kMaxLogit>(s, c, largest, alpha);
  }
  // Does the same where other warps have scores of the rows too; largest: of all these.
  template <bool kFar, bool kMaxLogit, int kCount>
  ATTN_DEVICE bool exponentiate_below(float (&s)[kCount], float c, const float (&largest)[2],
                                      float (&alpha)[2]) {
    float wanted[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kMaxLogit) top[i] = fmaxf(top[i], largest[i]);
      wanted[i] = reference_for(largest[i], c);
      if constexpr (kFar) wanted[i] = fminf(wanted[i], largest_float());
    }
    bool higher = wanted[0] > r[0] + kSlack || wanted[1] > r[1] + kSlack;
    if constexpr (kFar) {
#pragma unroll
      for (int i = 0; i < 2; ++i) higher = higher || (is_far(wanted[i]) && largest[i] > m[i]);
    }
    const bool raise = __any_sync(~0u, higher);
    if (raise) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float next = fmaxf(r[i], wanted[i]);
        alpha[i] = next == r[i] ? 1.f : exp2_approximate(r[i] - next);
        if constexpr (kFar) {
          const float next_m = fmaxf(m[i], largest[i]);
          if (is_far(next) || is_far(r[i])) alpha[i] = far_alpha(m[i], next_m, c);
          m[i] = next_m;
        }
        r[i] = next;
        l[i] *= alpha[i];
      }
    }
    if constexpr (kFar) {
      if (__any_sync(~0u, is_far(r[0]) || is_far(r[1]))) subtract_far(s, r, m);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float offset = r[i] == minus_infinity() ? 0.f : -r[i];
      if constexpr (kFar) offset = is_far(r[i]) ? 0.f : offset;
      float sum[2] = {0, 0};
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          float& x = s[4 * j + 2 * i + column];
          x = exp2_approximate(fmaf(x, c, offset));
          sum[column] += x;
        }
      }
      l[i] += sum[0] + sum[1];
    }
    return raise;
  }
};

}  // namespace attn::device
