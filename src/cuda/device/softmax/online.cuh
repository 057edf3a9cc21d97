// Online softmax over blocks of keys (FlashAttention-2, algorithm 1) in base 2: P = 2^(c s - r), r
// the reference of a row. It is the row's maximum when it is set, and stays while the P of a block
// that a thread has in a row add up to no more than kLimit: that costs nothing in floating point,
// while O is multiplied only when the reference moves, and no maximum need be known before the
// exponentials. Or l is judged a block later (is_high, lower).
#pragma once

#include "device.cuh"
#include "ptx/math.cuh"

namespace attn::device {

ATTN_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
ATTN_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The reference for a largest score: their product rounded up, so that no exponent c s - reference,
// one fused multiply-add, is above 0, also where the product is rounded by much, as of scores of
// -1e9. No higher than that: P of the largest score is rounded to 16 bits where the sum is not, and
// of rows whose P are all a little below 1 O would come out too large. NaN or -inf for -inf, which
// fmaxf leaves out.
ATTN_DEVICE float reference_for(float top, float c) { return __fmul_ru(top, c); }

// Where a reference is far from 0, what rounding took from it is no longer small: of scores of
// -1e30 it is 2^77, and c s - r of the largest score is as far below 0, so that no P would be left.
// Such a row has its exponents from the difference to its largest score, c (s - m). Few scores get
// there but those of a key that an additive mask hides. Needs kFar of the functions below.
ATTN_DEVICE float largest_float() { return 0x1.fffffep127f; }
ATTN_DEVICE bool is_far(float r) { return fabsf(r) > 0x1p22f && fabsf(r) <= largest_float(); }
// What O and l are multiplied by where the reference of a row, or its largest score, has moved.
ATTN_DEVICE float far_alpha(float m, float next, float c) {
  return next == m ? 1.f : exp2_approximate((m - next) * c);
}
// Scores s of the two rows of a thread less the largest, m, where the row is far.
template <int kCount>
ATTN_DEVICE void subtract_far(float (&s)[kCount], const float (&r)[2], const float (&m)[2]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) s[j] -= is_far(r[j / 2 % 2]) ? m[j / 2 % 2] : 0.f;
}

// The softmax of the two rows of a thread (tile/accumulator.cuh).
struct OnlineSoftmax {
  // Any P of this size is good: f16 ends at 65504. With a smaller limit more blocks would go back.
  static constexpr float kLimit = 8192;

  // Where P of any size is good (ForwardSm90Tiles::kJudgesLate), references are raised when l is
  // above kHigh. A row that ends above kLost is lost: P, l or O may be infinite, and a sum of O
  // that is not has room for V up to 2^63 only.
  static constexpr float kHigh = 0x1p20f, kLost = 0x1p64f;

  float r[2] = {minus_infinity(), minus_infinity()};    // -inf: nothing seen yet
  float l[2] = {0, 0};                                  // sum of P over this thread's columns
  float m[2] = {minus_infinity(), minus_infinity()};    // kFar: the largest score, where r is its
  float top[2] = {minus_infinity(), minus_infinity()};  // that see() had, of this thread's columns

  // Looks at scores: the references do not follow the largest one. NaN where one is.
  template <int kCount>
  ATTN_DEVICE void see(const float (&s)[kCount]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float best[2] = {top[i], s[2 * i]};  // two, so that they do not wait for each other
#pragma unroll
      for (int j = 1; j < kCount / 2; ++j) {
        best[j % 2] = max_or_nan(best[j % 2], s[j / 2 * 4 + 2 * i + j % 2]);
      }
      top[i] = max_or_nan(best[0], best[1]);
    }
  }

  // Moves the references to the largest of the scores s. `alpha`: what O must be multiplied by.
  // kKeepsLost: a row that is lost stays so. Example: l is 2^125 and the reference moves by 128:
  // alpha is 0, for smaller numbers are flushed, and of l and O nothing would be left that tells.
  // kRoom: P of the largest score is 2^kRoom, but of rows that are far.
  template <bool kFar, bool kKeepsLost, int kRoom, int kCount>
  ATTN_DEVICE void raise(const float (&s)[kCount], float c, float (&alpha)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = s[2 * i];
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) {
        top = fmaxf(top, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
      }
      const float largest = quad_max(top);
      float next = fmaxf(r[i], reference_for(largest, c) - static_cast<float>(kRoom));
      if constexpr (kFar) next = fminf(next, largest_float());
      alpha[i] = next == r[i] ? 1.f : exp2_approximate(r[i] - next);
      if constexpr (kFar) {
        const float next_m = fmaxf(m[i], largest);
        if (is_far(next) || is_far(r[i])) alpha[i] = far_alpha(m[i], next_m, c);
        m[i] = next_m;
      }
      r[i] = next;
      // Four threads have parts of l.
      l[i] = kKeepsLost && l[i] > kLost / 4 ? -minus_infinity() : l[i] * alpha[i];
    }
  }

  // S <- P, from exponent(s, -r, i, j) = c s - r for score j of row i of the thread. Returns
  // whether the references are still good, the same answer in the whole warp; if not, P and l are
  // of no use. Not kJudge: true. kMasked: scores may be -inf, also all of a row. Not kSums: l stays
  // as it is.
  //
  // Between the rows, between(x) is called, x >= 0 made of the first row's P; then pack(k) for each
  // pair of neighbours s[2 k], s[2 k + 1].
  template <bool kMasked, bool kJudge, bool kSums, int kCount, class Exponent, class Between,
            class Pack>
  ATTN_DEVICE bool exponentiate(float (&s)[kCount], Exponent exponent, Between between, Pack pack) {
    float sum[2][2] = {};
    // Where P are not summed, between() gets the sum of every 16th of the first row.
    constexpr int kEvery = 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float offset = kMasked && r[i] == minus_infinity() ? 0.f : -r[i];
#pragma unroll
      for (int j = 0; j < kCount / 2; ++j) {
        float& x = s[j / 2 * 4 + 2 * i + j % 2];
        x = exp2_approximate(exponent(x, offset, i, j));
        if (kSums || (i == 0 && j % kEvery == 0)) sum[i][j % 2] += x;
      }
      if (i == 0) between(sum[0][0] + sum[0][1]);
    }
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k) pack(k);
    if constexpr (!kSums) return true;
    bool good = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float both = sum[i][0] + sum[i][1];
      good = good && both <= kLimit;  // not so of NaN
      l[i] += both;
    }
    if constexpr (!kJudge) return true;
    return __all_sync(~0u, good);
  }
  // Raises the references of rows whose l is high, by a power of 2. `factor`: what must be
  // multiplied, of all that was made with them.
  ATTN_DEVICE void lower(float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float most = quad_max(l[i]);
      const int exponent = static_cast<int>(__float_as_uint(most) >> 23) - 127;
      const bool high = most > kHigh && most <= kLost;
      factor[i] = high ? __uint_as_float(static_cast<unsigned>(127 - exponent) << 23) : 1.f;
      r[i] += high ? static_cast<float>(exponent) : 0.f;
      l[i] *= factor[i];
    }
  }
  // Raises the reference of row i, of whose P the largest in any thread is `top`, so that it is
  // below 2^(room + 1). Returns what P and O must be multiplied by. An infinite P is left: the row
  // is lost.
  ATTN_DEVICE float lower_below(int i, float top, int room) {
    const int exponent = static_cast<int>(__float_as_uint(top) >> 23) - 127 - room;
    const bool high = exponent > 0 && top <= largest_float();
    const float factor = high ? __uint_as_float(static_cast<unsigned>(127 - exponent) << 23) : 1.f;
    r[i] += high ? static_cast<float>(exponent) : 0.f;
    l[i] *= factor;
    return factor;
  }
  // Whether some row of the warp has seen nothing yet.
  ATTN_DEVICE bool is_bare() const {
    return __any_sync(~0u, fminf(r[0], r[1]) == minus_infinity());
  }
  // Gives rows that have seen nothing the references of their first block.
  template <int kRoom, int kCount>
  ATTN_DEVICE void begin_bare(const float (&s)[kCount], float c) {
    OnlineSoftmax fresh;
    float alpha[2];
    fresh.raise<false, false, kRoom>(s, c, alpha);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (r[i] == minus_infinity()) r[i] = fresh.r[i];
    }
  }
  // Whether references should be raised, the same answer in the whole warp.
  ATTN_DEVICE bool is_high() const { return __any_sync(~0u, fmaxf(l[0], l[1]) > kHigh); }
};

}  // namespace attn::device
