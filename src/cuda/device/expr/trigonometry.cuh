// Sine and cosine without a branch, within 2 ulp for every argument: x = n pi/2 + r with
// |r| <= pi/4 first, then a polynomial of r. CUDA's own sinf has a branch with an array in local
// memory for large arguments: a kernel that holds 64 scores a thread takes a minute to compile
// then.
#pragma once

#include "device.cuh"

namespace attn::device {

// 32 bits before the point, then 2/pi.
#ifdef __CUDACC__
__constant__
#else
inline constexpr
#endif
    unsigned kTwoOverPi[8] = {0x00000000, 0xa2f9836e, 0x4e441529, 0xfc2757d1,
                              0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};

// The upper word of high:low shifted left, shift < 32.
ATTN_DEVICE unsigned shifted_word(unsigned high, unsigned low, unsigned shift) {
#ifdef __CUDACC__
  return __funnelshift_l(low, high, shift);
#else
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) << shift >> 32);
#endif
}

// a * b + c, rounded once.
ATTN_DEVICE float fused_sum(float a, float b, float c) {
#ifdef __CUDACC__
  return fmaf(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// The sine of size + quarters pi/2, size >= 0 or NaN. By Payne and Hanek's method ("Radian
// reduction for trigonometric functions", 1983): size is m 2^s with an m of 24 bits, so bits of
// 2/pi whose product with it is a multiple of 4 are left out, and 96 of the bits after them are
// enough, as no float but 0 comes closer to a multiple of pi/2 than 2^-30.
ATTN_DEVICE float sine_of(float size, unsigned quarters) {
  using Wide = unsigned long long;
  const unsigned bits = __builtin_bit_cast(unsigned, size);
  const bool is_near = bits <= 0x3f490fdau;  // pi/4
  // s is (bits >> 23) - 150. The first bit taken has the weight 2^(1-s), and bit 0 of the table
  // 2^31.
  const unsigned first = ((is_near ? 0x3f000000u : bits) >> 23) - 120;
  const unsigned* const words = kTwoOverPi + first / 32;
  const unsigned at = first % 32;
  const unsigned m = (bits & 0x007fffffu) | 0x00800000u;
  // The product modulo 2^96, of which 2^94 is a right angle; its last 32 bits only carry.
  const Wide last = static_cast<Wide>(m) * shifted_word(words[2], words[3], at);
  Wide product = static_cast<Wide>(m) * shifted_word(words[1], words[2], at) + (last >> 32);
  product += static_cast<Wide>(m * shifted_word(words[0], words[1], at)) << 32;
  const unsigned nearest = static_cast<unsigned>((product + (1ull << 61)) >> 62);
  const auto fraction = static_cast<long long>(product - (static_cast<Wide>(nearest) << 62));
  // The fraction in two floats, times pi/2 in two.
  const auto high = static_cast<float>(fraction);
  const auto low = static_cast<float>(fraction - static_cast<long long>(high));
  const float rest = low * 0x1.921fb6p-62f - high * 0x1.777a5cp-87f;
  float r = is_near ? size : fused_sum(high, 0x1.921fb6p-62f, rest);
  quarters += is_near ? 0u : nearest;
  if (bits >= 0x7f800000u) r = __builtin_bit_cast(float, 0x7fc00000u);  // of infinities NaN
  const float z = r * r;
  // r + r^3 p(r^2) and 1 - r^2 / 2 + r^4 q(r^2), relative errors of the fits 4e-9 and 2e-10.
  const float p = (-1.9514957633e-04f * z + 8.3321584097e-03f) * z - 1.6666654573e-01f;
  const float q = (2.4432785131e-05f * z - 1.3887313063e-03f) * z + 4.1666645619e-02f;
  const float value = (quarters & 1) != 0 ? q * z * z + (1.0f - 0.5f * z) : p * z * r + r;
  return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, value) ^ (quarters & 2) << 30);
}

ATTN_DEVICE float sine(float x) {
  const unsigned sign = __builtin_bit_cast(unsigned, x) & 0x80000000u;
  const float of_size =
      sine_of(__builtin_bit_cast(float, __builtin_bit_cast(unsigned, x) ^ sign), 0);
  return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, of_size) ^ sign);
}
ATTN_DEVICE float cosine(float x) {
  return sine_of(__builtin_bit_cast(float, __builtin_bit_cast(unsigned, x) & 0x7fffffffu), 1);
}

}  // namespace attn::device
