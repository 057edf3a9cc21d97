// The codes of numbers in caches of 8 bits and of blocks (attn/cache_type.hpp).
#pragma once

#include "device.cuh"
#include "ptx/math.cuh"

namespace attn::device {

// How rows are stored: attn::CacheType without those that no kernel sees.
enum class CacheTarget { f32, bf16, f16, e4m3, e5m2, i8, q8_0, q4_0 };

// The integer nearest to x in [low, high], ties to even, low for NaN.
ATTN_DEVICE int nearest_integer(float x, float low, float high) {
  const float bounded = fminf(fmaxf(x, low), high);
  // Adding 1.5 x 2^23 leaves the integer in the low bits.
  return __float_as_int(bounded + 0x1.8p23f) - 0x4b400000;
}

// The e4m3 number nearest to x, ties to even; 448 at most.
ATTN_DEVICE unsigned e4m3_code(float x) {
  const float size = fminf(fabsf(x), 448.f);
  const unsigned u = __float_as_uint(size);
  const unsigned sign = __float_as_uint(x) >> 24 & 0x80u;
  // Below 2^-6 adding 2^14 leaves multiples of 2^-9 in the low bits.
  if (size < 0x1p-6f) return (__float_as_uint(size + 0x1p14f) - 0x46800000u) | sign;
  // f32's exponent less 120 is e4m3's, and 20 bits are rounded away.
  return (u - (120u << 23) + 0x7ffffu + (u >> 20 & 1u)) >> 20 | sign;
}

// The e5m2 number nearest to x, likewise; 57344 at most.
ATTN_DEVICE unsigned e5m2_code(float x) {
  const float size = fminf(fabsf(x), 57344.f);
  const unsigned u = __float_as_uint(size);
  const unsigned sign = __float_as_uint(x) >> 24 & 0x80u;
  // Below 2^-14 adding 2^7 leaves multiples of 2^-16 in the low bits.
  if (size < 0x1p-14f) return (__float_as_uint(size + 0x1p7f) - 0x43000000u) | sign;
  // f32's exponent less 112 is e5m2's, and 21 bits are rounded away.
  return (u - (112u << 23) + 0xfffffu + (u >> 21 & 1u)) >> 21 | sign;
}

// The number of a type with scales that is nearest to y, and the largest that there is.
template <CacheTarget kTarget>
ATTN_DEVICE unsigned nearest_code(float y) {
  if constexpr (kTarget == CacheTarget::e4m3) return e4m3_code(y);
  if constexpr (kTarget == CacheTarget::e5m2) return e5m2_code(y);
  return static_cast<unsigned>(nearest_integer(y, -128, 127)) & 0xffu;
}
template <CacheTarget kTarget>
inline constexpr float kLargestCode = kTarget == CacheTarget::e4m3   ? 448.f
                                      : kTarget == CacheTarget::e5m2 ? 57344.f
                                                                     : 127.f;

// Divides finite numbers x so that every code rounds the result as it would x / scale: where f32
// does not hold the quotient, it is the neighbour whose last bit is 1, which lies on no middle of
// two codes (rounding to odd: Boldo and Melquiond 2008). What all codes round to 0 may be another
// such number, and what is past every code may be infinite. Results are 0 where the scale is 0 or
// infinite.
class ScaleDivisor {
 public:
  explicit ATTN_DEVICE ScaleDivisor(float scale) {
    const bool nothing = scale == 0 || fabsf(scale) > 3.4028235e38f;
    // So that the rest below is exact.
    const bool tiny = fabsf(scale) < 0x1p-64f;
    factor_ = nothing ? 0 : tiny ? 0x1p64f : 1;
    scale_ = nothing ? 1 : tiny ? scale * 0x1p64f : scale;
    inverse_ = __fdiv_rn(1.f, scale_);
    plain_ = !nothing && !tiny && fabsf(scale) <= 0x1p126f;  // whose inverse is no denormal number
    // A power of two leaves quotients exact; else 2^-22 is more than three roundings may cost.
    const float off = (__float_as_uint(scale_) & 0x7fffffu) == 0 ? 0.f : 0x1p-22f;
    least_ = inverse_ * (1 - off);
    most_ = inverse_ * (1 + off);
    zero_ = nothing ? 0.f : -0.f;
  }
  ATTN_DEVICE float operator()(float x) const {
    x *= factor_;
    const float near = fmaf(x, inverse_, zero_);   // of the right sign, also of -0
    if (fabsf(near) > 3.4028235e38f) return near;  // no rest would be a number
    const float quotient = fmaf(fmaf(-near, scale_, x), inverse_, near);  // off by less than an ulp
    const float rest = fmaf(-quotient, scale_, x);
    const unsigned bits = __float_as_uint(quotient);
    // Of the two neighbours of the quotient the one toward zero, with 1 as its last bit.
    const unsigned beyond = (bits ^ __float_as_uint(rest) ^ __float_as_uint(scale_)) >> 31;
    const unsigned odd = (bits - beyond) | 1u;
    return copysignf(__uint_as_float(rest == 0 ? bits : odd), near);
  }
  // Where plain(), x / scale lies between these two.
  ATTN_DEVICE float one_end(float x) const { return x * least_; }
  ATTN_DEVICE float other_end(float x) const { return x * most_; }
  ATTN_DEVICE bool plain() const { return plain_; }

 private:
  float factor_, scale_, inverse_, zero_, least_, most_;
  bool plain_;
};

// Codes of four numbers, the first in the lowest byte; NaN becomes a code of NaN, or as in
// nearest_code().
template <CacheTarget kTarget>
ATTN_DEVICE unsigned four_codes(const float* y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (kTarget == CacheTarget::e4m3) return Float8E4M3::pack(y[0], y[1], y[2], y[3]);
#endif
  return nearest_code<kTarget>(y[0]) | nearest_code<kTarget>(y[1]) << 8 |
         nearest_code<kTarget>(y[2]) << 16 | nearest_code<kTarget>(y[3]) << 24;
}
// Codes of x / scale. Mostly both ends of where it lies have the same, which is cheaper to see than
// how it is rounded.
template <CacheTarget kTarget>
ATTN_DEVICE unsigned four_codes(const ScaleDivisor& divided, const float* x) {
  float ends[2][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    ends[0][i] = divided.one_end(x[i]);
    ends[1][i] = divided.other_end(x[i]);
  }
  const unsigned codes = four_codes<kTarget>(ends[0]);
  bool sure = divided.plain() && codes == four_codes<kTarget>(ends[1]);
  // In codes of NaN the lower seven bits are ones; an integer may have them too.
  if constexpr (kTarget == CacheTarget::e4m3 || kTarget == CacheTarget::e5m2) {
    sure = sure && (((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) == 0;
  }
  if (sure) return codes;
  unsigned exact = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) exact |= nearest_code<kTarget>(divided(x[i])) << 8 * i;
  return exact;
}

}  // namespace attn::device
