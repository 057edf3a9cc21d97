// float32 arithmetic of scores: contraction into FMA is welcome, and exp, exp2, log, tanh, sqrt and
// division take short forms. How short, ATTN_PRECISE_MATH says:
//
//           2 (default)              1                           0
//   tanh    2 MUFU, 2 ulp            2 MUFU, 3 others,           1 MUFU,
//                                    absolute error 2e-7         relative error 5e-4
//   exp     1 MUFU, 2 ulp            1 MUFU, relative error 2^-22 + |x| 2^-24
//   exp2    1 MUFU, 2 ulp            1 MUFU, relative error 2^-22
//   erf     2 ulp
//   sin     2 ulp, as cos; some 40 instructions, of integers mostly
//   log     1 MUFU, 1 ulp            1 MUFU, absolute error 2^-22 near 1
//   sqrt    1 MUFU, rounded          1 MUFU, 1 ulp
//   a / b   1 MUFU, 2 ulp; by a constant a multiplication, 1 ulp
//
// Problems of float32 take 2, of f16 1 and of bf16 0 (precise_math in src/cuda/forward/source.hpp).
// At softcap(30) the scores of 1 err by 6e-6. 0 errs by a quarter of what rounding the scores to
// bf16 does, but by more than rounding them to fp16. The MUFU pipe gives 16 results a cycle, an
// eighth of the FMA pipe, and softmax already needs it once for each score. So where an argument of
// tanh is mostly small, a score's exponent has a polynomial instead (small_tanh.cuh), for kernels
// that can go back to the score.
#pragma once

#include "device.cuh"

#ifndef ATTN_PRECISE_MATH
#define ATTN_PRECISE_MATH 2
#endif

#include "expr/exact.cuh"
#include "expr/small_tanh.cuh"

namespace attn::device {
namespace mufu {

#ifdef __CUDACC__
ATTN_DEVICE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ATTN_DEVICE float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ATTN_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ATTN_DEVICE float square_root(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ATTN_DEVICE float tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Scales operands, so that it holds over the full range, unlike a * reciprocal(b).
ATTN_DEVICE float divide(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#else
inline float exp2(float x) { return __builtin_exp2f(x); }
inline float log2(float x) { return __builtin_log2f(x); }
inline float reciprocal(float x) { return 1 / x; }
inline float square_root(float x) { return __builtin_sqrtf(x); }
inline float tanh(float x) { return __builtin_tanhf(x); }
inline float divide(float a, float b) { return a / b; }
#endif

}  // namespace mufu

namespace fast {

inline constexpr float kLog2e = 0x1.715476p+0f;
inline constexpr float kLn2 = 0x1.62e430p-1f;

ATTN_DEVICE float attn_add(float a, float b) { return a + b; }
ATTN_DEVICE float attn_sub(float a, float b) { return a - b; }
ATTN_DEVICE float attn_mul(float a, float b) { return a * b; }
ATTN_DEVICE float attn_div(float a, float b) { return mufu::divide(a, b); }
ATTN_DEVICE float attn_fma(float a, float b, float c) {
#ifdef __CUDACC__
  return fmaf(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

#if ATTN_PRECISE_MATH >= 2
ATTN_DEVICE float attn_exp(float a) { return exact::attn_exp(a); }
ATTN_DEVICE float attn_exp2(float a) { return exact::attn_exp2(a); }
ATTN_DEVICE float attn_log(float a) { return exact::attn_log(a); }
ATTN_DEVICE float attn_sqrt(float a) { return exact::attn_sqrt(a); }
#else
ATTN_DEVICE float attn_exp(float a) { return mufu::exp2(a * kLog2e); }
ATTN_DEVICE float attn_exp2(float a) { return mufu::exp2(a); }
ATTN_DEVICE float attn_log(float a) { return mufu::log2(a) * kLn2; }
ATTN_DEVICE float attn_sqrt(float a) { return mufu::square_root(a); }
#endif

ATTN_DEVICE float attn_erf(float a) { return exact::attn_erf(a); }
ATTN_DEVICE float attn_sin(float a) { return exact::attn_sin(a); }
ATTN_DEVICE float attn_cos(float a) { return exact::attn_cos(a); }

// tanh by two MUFU, with an absolute error of 2e-7.
ATTN_DEVICE float tanh_of_exp(float a) {
  return 1 - 2 * mufu::reciprocal(mufu::exp2(2 * kLog2e * a) + 1);
}
ATTN_DEVICE float attn_tanh(float a) {
#if ATTN_PRECISE_MATH >= 2
  return exact::attn_tanh(a);
#elif ATTN_PRECISE_MATH == 1
  return tanh_of_exp(a);
#else
  return mufu::tanh(a);
#endif
}

// tanh(x) / x where |x| is small, times what `tanh` was multiplied by. `room` becomes the lesser of
// itself and the bits of p as an integer: below those of tanh.least where |x| is too large. Of NaN
// they are above all, and the result is NaN.
template <int kPreciseMath = ATTN_PRECISE_MATH>
ATTN_DEVICE float small_tanh_ratio(float x, SmallTanh tanh, int& room) {
  const float p = x * tanh.second * x + tanh.first;
  room = attn_min(room, __builtin_bit_cast(int, p));
  if constexpr (kPreciseMath == 0) {
    return p;
  } else {
    return p * p + tanh.rest;
  }
}
template <int kPreciseMath = ATTN_PRECISE_MATH>
ATTN_DEVICE float attn_small_tanh(float x, int& room) {
  constexpr SmallTanh kTanh = SmallTanhOf<kPreciseMath>::kValue;
  return x * small_tanh_ratio<kPreciseMath>(x, kTanh, room);
}

}  // namespace fast

// Derivatives of scores: as fast, but for tanh. 1 - tanh^2 is small where tanh is near 1, and the
// error of one MUFU, 5e-4, would be all of it: at tanh = 0.999 it is 0.002.
namespace slope {

using fast::attn_add;
using fast::attn_cos;
using fast::attn_div;
using fast::attn_erf;
using fast::attn_exp;
using fast::attn_exp2;
using fast::attn_log;
using fast::attn_mul;
using fast::attn_sin;
using fast::attn_sqrt;
using fast::attn_sub;

ATTN_DEVICE float attn_tanh(float a) {
#if ATTN_PRECISE_MATH >= 2
  return exact::attn_tanh(a);
#else
  return fast::tanh_of_exp(a);
#endif
}

}  // namespace slope
}  // namespace attn::device
