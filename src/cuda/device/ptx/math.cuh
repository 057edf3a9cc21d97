// Arithmetic that has an instruction of its own.
#pragma once

namespace attn::device {

__device__ __forceinline__ float minus_infinity() {
  return __int_as_float(static_cast<int>(0xff800000));
}

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_approximate(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 2^x for x <= 0 on the FMA pipe. x = n + f, n = floor(x): adding 1.5 * 2^23 rounded down leaves n
// in the low bits; 2^f by a minimax polynomial (relative error 9e-5, a twentieth of a bf16
// rounding); n goes into the exponent. Below -127 the result is a number smaller than 2^-126.
__device__ __forceinline__ float exp2_polynomial(float x) {
  constexpr float kMagic = 12582912.f;  // 1.5 * 2^23
  x = fmaxf(x, -127.f);
  float n;
  asm("add.rm.ftz.f32 %0, %1, %2;" : "=f"(n) : "f"(x), "f"(kMagic));
  const float f = x - (n - kMagic);
  float p = fmaf(f, 0.077119089663028717f, 0.227564394474029540f);
  p = fmaf(p, f, 0.695146143436431885f);
  p = fmaf(p, f, 1.0f);
  return __int_as_float(__float_as_int(p) + (__float_as_int(n) << 23));
}

// Two floats rounded to the 16-bit type, the first in the low half.
struct BFloat16 {
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
};
struct Float16 {
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
};

// Elements of tensors that no tensor core reads.
struct Float32 {};

}  // namespace attn::device
