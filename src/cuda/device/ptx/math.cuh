// Arithmetic that has an instruction of its own.
#pragma once

#include "device.cuh"

namespace attn::device {

ATTN_DEVICE float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000)); }
ATTN_DEVICE float not_a_number() { return __int_as_float(0x7fffffff); }

ATTN_DEVICE float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// NaN where one of them is.
ATTN_DEVICE float max_or_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
// 1 / x, off by an ulp.
ATTN_DEVICE float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// x y + z, cut to [0, 1]; NaN becomes 0.
ATTN_DEVICE float fma_saturated(float x, float y, float z) {
  float r;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(x), "f"(y), "f"(z));
  return r;
}
ATTN_DEVICE float float_of_half(unsigned short half) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
}

// Two floats rounded to the 16-bit type, the first in the low half; x y + z of both halves.
struct BFloat16 {
  static constexpr unsigned kExponent = 0x7f80;  // all ones in infinities and NaN
  static ATTN_DEVICE unsigned fma(unsigned x, unsigned y, unsigned z) {
    unsigned r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
    return r;
  }
  static ATTN_DEVICE unsigned pack(float low, float high) {
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
};
struct Float16 {
  static constexpr unsigned kExponent = 0x7c00;
  static ATTN_DEVICE unsigned fma(unsigned x, unsigned y, unsigned z) {
    unsigned r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
    return r;
  }
  static ATTN_DEVICE unsigned pack(float low, float high) {
    unsigned r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
};

// Elements of tensors that no tensor core reads.
struct Float32 {};
// 8-bit floats, which the tensor cores of matrix products read.
struct Float8E4M3 {
  // Four floats rounded, the first in the lowest byte; larger ones become 448.
  static ATTN_DEVICE unsigned pack(float a, float b, float c, float d) {
    unsigned r;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(r)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return r;
  }
};
struct Float8E5M2 {};
// The operands of a product of 8-bit floats, each of its own format.
template <class A, class B>
struct Float8Pair {};

}  // namespace attn::device
