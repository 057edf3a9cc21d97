// float32 arithmetic of masks: each operation is rounded by itself and never contracted, so that
// every backend masks alike. exp, exp2, log, tanh, erf, sin and cos err by at most 2 ulp. Not for
// use with the compiler's fast-math switches.
#pragma once

#include "device.cuh"
#include "expr/integer.cuh"
#include "expr/trigonometry.cuh"

#ifdef __CUDACC__
#define ATTN_EXACT(device, portable) device
#else
#define ATTN_EXACT(device, portable) portable
#endif

namespace attn::device {

ATTN_DEVICE float attn_bits(unsigned bits) { return __builtin_bit_cast(float, bits); }
ATTN_DEVICE float attn_neg(float a) { return -a; }
ATTN_DEVICE float attn_abs(float a) { return ATTN_EXACT(fabsf, __builtin_fabsf)(a); }
// False where an operand is NaN. ptxas (13.0) makes `true` of a comparison that the range of an
// operand decides, as -2 < |x|, and forgets NaN: so whether both are numbers is asked beside it.
#ifdef __CUDACC__
#define ATTN_COMPARE(name, unordered, portable)                      \
  ATTN_DEVICE bool name(float a, float b) {                          \
    int r;                                                           \
    asm("{ .reg .pred p, q; setp.num.f32 p, %1, %2; setp." unordered \
        ".and.f32 q, %1, %2, p; selp.s32 %0, 1, 0, q; }"             \
        : "=r"(r)                                                    \
        : "f"(a), "f"(b));                                           \
    return r != 0;                                                   \
  }
#else
#define ATTN_COMPARE(name, unordered, portable) \
  inline bool name(float a, float b) { return a portable b; }
#endif
ATTN_COMPARE(attn_lt, "ltu", <)
ATTN_COMPARE(attn_le, "leu", <=)
#undef ATTN_COMPARE
// A NaN operand gives b; fminf and fmaxf treat NaN otherwise.
ATTN_DEVICE float attn_min(float a, float b) { return attn_lt(a, b) ? a : b; }
ATTN_DEVICE float attn_max(float a, float b) { return attn_lt(b, a) ? a : b; }
ATTN_DEVICE float attn_to_float(int a) { return static_cast<float>(a); }
ATTN_DEVICE float attn_floor(float a) { return ATTN_EXACT(floorf, __builtin_floorf)(a); }
// Toward zero, saturating; 0 of NaN.
ATTN_DEVICE int attn_to_int(float a) {
#ifdef __CUDACC__
  return __float2int_rz(a);
#else
  constexpr float kEnd = 0x1p+31f;
  if (a != a) return 0;
  return a >= kEnd ? 2147483647 : a <= -kEnd ? -2147483647 - 1 : static_cast<int>(a);
#endif
}
// Converts sums and differences of positions and lengths. Conversions share the pipe of exp (16
// results a cycle); in short sequences (expr/integer.cuh) the operand lies in [-2^22, 2^22) and
// becomes the low bits of 1.5 * 2^23, exactly.
ATTN_DEVICE float attn_position_to_float(int a) {
#if ATTN_SHORT_SEQUENCES
  return __builtin_bit_cast(float, 0x4b400000 + a) - 0x1.8p+23f;
#else
  return static_cast<float>(a);
#endif
}
// Converts a + step, both of which are small.
ATTN_DEVICE float attn_position_to_float(int a, int step) {
#if ATTN_SHORT_SEQUENCES
  const float first = attn_position_to_float(a);
  return step == 0 ? first : first + static_cast<float>(step);  // x + 0 would be an instruction
#else
  return static_cast<float>(attn_add(a, step));
#endif
}

namespace exact {

ATTN_DEVICE float attn_add(float a, float b) { return ATTN_EXACT(__fadd_rn(a, b), a + b); }
ATTN_DEVICE float attn_sub(float a, float b) { return ATTN_EXACT(__fsub_rn(a, b), a - b); }
ATTN_DEVICE float attn_mul(float a, float b) { return ATTN_EXACT(__fmul_rn(a, b), a * b); }
ATTN_DEVICE float attn_div(float a, float b) { return ATTN_EXACT(__fdiv_rn(a, b), a / b); }
ATTN_DEVICE float attn_sqrt(float a) { return ATTN_EXACT(__fsqrt_rn, __builtin_sqrtf)(a); }
ATTN_DEVICE float attn_exp(float a) { return ATTN_EXACT(expf, __builtin_expf)(a); }
ATTN_DEVICE float attn_exp2(float a) { return ATTN_EXACT(exp2f, __builtin_exp2f)(a); }
ATTN_DEVICE float attn_erf(float a) { return ATTN_EXACT(erff, __builtin_erff)(a); }
ATTN_DEVICE float attn_sin(float a) { return sine(a); }
ATTN_DEVICE float attn_cos(float a) { return cosine(a); }
ATTN_DEVICE float attn_log(float a) { return ATTN_EXACT(logf, __builtin_logf)(a); }
ATTN_DEVICE float attn_tanh(float a) { return ATTN_EXACT(tanhf, __builtin_tanhf)(a); }

}  // namespace exact
}  // namespace attn::device

#undef ATTN_EXACT
