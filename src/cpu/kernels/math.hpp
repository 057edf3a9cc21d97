// Vector functions that expressions need. Accurate to 2 ulp over the whole range, subnormal results
// of exp included; NaN in, NaN out. Polynomials are own minimax fits (Remez exchange).
#pragma once

#include "cpu/kernels/vec.hpp"

namespace attn::cpu::ATTN_ISA {

#if ATTN_VECTOR_BYTES != 64
// 2^n for integer n in [-126, 127].
ATTN_INLINE F power_of_two(I n) { return bit_cast<F>((n + 127) << 23); }
#endif

// p 2^n for a whole n of at most 152 in magnitude, rounded once; NaN where x is.
ATTN_INLINE F scaled(F p, F n, F x) {
#if ATTN_VECTOR_BYTES == 64
  (void)x;
  return _mm512_scalef_ps(p, n);
#else
  // 2^n is multiplied in two steps, because it alone leaves the range of normal floats for n > 127
  // and n < -126.
  const I k = to_int(select(x == x, n, F{}));
  const I half = k >> 1;
  return p * power_of_two(half) * power_of_two(k - half);
#endif
}

ATTN_INLINE F exp(F x) {
  // Past these bounds the result is inf or 0 whatever x is; in between the integers below fit.
  x = select(x > 89.0f, set1(89.0f), max(set1(-104.0f), x));
  const F n = round_to_nearest(x * 1.44269504089f);
  // ln 2 = 355/512 - 2.12e-4. n has at most 8 bits and 355 has 9, so n * 355/512 is exact and so is
  // the difference, whether or not the products are fused.
  const F r = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), x));
  return scaled(exp2_fraction(r * 1.44269504089f), n, x);
}

// Over the whole range, unlike exp2() of probabilities.
ATTN_INLINE F full_exp2(F x) {
  x = select(x > 129.0f, set1(129.0f), max(set1(-152.0f), x));  // inf and 0 from there on
  const F n = round_to_nearest(x);
  return scaled(exp2_fraction(x - n), n, x);
}

ATTN_INLINE F log(F x) {
  const I subnormal = x < 0x1p-126f;
  const F scaled = select(subnormal, x * 0x1p23f, x);
  // x = 2^e m with m in [sqrt(1/2), sqrt(2)): 0x3f3504f3 is sqrt(1/2).
  const U bits = bit_cast<U>(scaled) - 0x3f3504f3u;
  const I e = (bit_cast<I>(bits) >> 23) - select(subnormal, set1(23), I{});
  const F f = bit_cast<F>((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  // log(1 + f) = f - f^2 / 2 + f^3 p(f); relative error of the fit 6e-9.
  F p = fma(set1(-7.6344948905e-02f), f, set1(1.2761575187e-01f));
  p = fma(p, f, set1(-1.3160182112e-01f));
  p = fma(p, f, set1(1.4201758278e-01f));
  p = fma(p, f, set1(-1.6623357412e-01f));
  p = fma(p, f, set1(2.0001226864e-01f));
  p = fma(p, f, set1(-2.5000821032e-01f));
  p = fma(p, f, set1(3.3333331708e-01f));
  const F n = to_float(e);
  const F square = f * f;
  const F y = (square * (f * p) - n * 2.12194440e-4f) - 0.5f * square;
  const F result = n * 0.693359375f + (f + y);
  const F infinity = set1(__builtin_inff());
  const F outside = select(x == 0.0f, -infinity, select(x < 0.0f, set1(__builtin_nanf("")), x));
  return select(x > 0.0f, select(x < infinity, result, x), outside);
}

ATTN_INLINE F tanh(F x) {
  const F size = bit_cast<F>(bit_cast<U>(x) & 0x7fffffffu);
  // Near 0: x + x^3 p(x^2), relative error of the fit 4e-9, no cancellation.
  const F bounded = select(size > 10.0f, set1(10.0f), size);
  const F z = bounded * bounded;
  F p = fma(set1(-5.7170451920e-03f), z, set1(2.0650587462e-02f));
  p = fma(p, z, set1(-5.3743498152e-02f));
  p = fma(p, z, set1(1.3331491288e-01f));
  p = fma(p, z, set1(-3.3333283925e-01f));
  const F small = fma(p * z, x, x);
  // From 0.625 on, at most 0.45 is subtracted from 1. tanh(10) rounds to 1.
  const F large = 1.0f - 2.0f / (exp(bounded + bounded) + 1.0f);
  const F signed_large = bit_cast<F>(bit_cast<U>(large) | (bit_cast<U>(x) & 0x80000000u));
  return select(size < 0.625f, small, signed_large);
}

ATTN_INLINE F erf(F x) {
  const F size = bit_cast<F>(bit_cast<U>(x) & 0x7fffffffu);
  // Near 0: x + x p(x^2), relative error of the fit 1.2e-8.
  const F near = select(size > 1.0f, set1(1.0f), size);
  const F z = near * near;
  F p = fma(set1(-6.0903673822e-04f), z, set1(5.0119642856e-03f));
  p = fma(p, z, set1(-2.6778909945e-02f));
  p = fma(p, z, set1(1.1282140843e-01f));
  p = fma(p, z, set1(-3.7612523280e-01f));
  p = fma(p, z, set1(1.2837915380e-01f));
  const F small = fma(p, x, x);
  // From 0.9 on, at most 0.21 is subtracted from 1. That is e^q, where q is a fit of log(1 - erf)
  // whose error is 2e-9 of erf. erf(4) rounds to 1.
  const F far = select(size > 4.0f, set1(4.0f), size);
  F q = fma(set1(1.9821890142e-04f), far, set1(-3.0654834639e-03f));
  q = fma(q, far, set1(2.2315187621e-02f));
  q = fma(q, far, set1(-1.0411362895e-01f));
  q = fma(q, far, set1(-6.3697613730e-01f));
  q = fma(q, far, set1(-1.1277972117e+00f));
  q = fma(q, far, set1(-1.6645488206e-04f));
  const F large = 1.0f - exp(q);
  const F signed_large = bit_cast<F>(bit_cast<U>(large) | (bit_cast<U>(x) & 0x80000000u));
  return select(size < 0.9f, small, signed_large);
}

// Toward minus infinity. Exact; -0.0, infinities and NaN stay.
ATTN_INLINE F floor(F x) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#elif ATTN_VECTOR_BYTES == 32
  return _mm256_round_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  return vrndmq_f32(x);
#else
  const U sign = bit_cast<U>(x) & 0x80000000u;
  // From 2^23 on every float is an integer.
  const I has_fraction = bit_cast<I>((bit_cast<U>(x) ^ sign) < 0x4b000000u);
  const F small = select(has_fraction, x, F{});
  const F toward_zero = to_float(to_int(small));
  const F lower = toward_zero - select(small < toward_zero, set1(1.0f), F{});
  return select(has_fraction, bit_cast<F>(bit_cast<U>(lower) | sign), x);
#endif
}

// Correctly rounded.
ATTN_INLINE F sqrt(F x) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_sqrt_ps(x);
#elif ATTN_VECTOR_BYTES == 32
  return _mm256_sqrt_ps(x);
#elif defined(__aarch64__)
  return vsqrtq_f32(x);
#else
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

}  // namespace attn::cpu::ATTN_ISA
