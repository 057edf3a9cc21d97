// Sine and cosine of vectors, within 2 ulp for every argument: x = n pi/2 + r with |r| <= pi/4
// first, then a polynomial of r. NaN of infinities and NaN. Polynomials are own minimax fits.
#pragma once

#include "cpu/kernels/vec.hpp"

namespace attn::cpu::ATTN_ISA {

// An angle of `quarters` right angles and the rest, at most pi/4 in magnitude. Only the last two
// bits of quarters count.
struct Angle {
  F rest;
  I quarters;
};

// Up to here n has at most 22 bits, and the error of r below, 2^-60, is small beside any r: no
// float that is not 0 comes closer to a multiple of pi/2 than 2^-30.
inline constexpr float kNearAngle = 0x1p22f;

// x = n pi/2 + r in double, 0 <= x <= kNearAngle.
ATTN_INLINE Angle near_angle(F x) {
  typedef float Half __attribute__((vector_size(ATTN_VECTOR_BYTES / 2)));
  typedef double Double __attribute__((vector_size(ATTN_VECTOR_BYTES)));
  Half in[2], rests[2], quarters[2];
  __builtin_memcpy(in, &x, sizeof(x));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const Double d = __builtin_convertvector(in[i], Double);
    constexpr double kMagic = 0x1.8p52;  // adding it leaves the integer in the low mantissa bits
    const Double n = (d * 0x1.45f306dc9c883p-1 + kMagic) - kMagic;
    // The first part of pi/2 has 27 bits, so that its product with n is exact, as the difference
    // is.
    const Double r = (d - n * 0x1.921fb54p+0) - n * 0x1.10b4611a62633p-30;
    rests[i] = __builtin_convertvector(r, Half);
    quarters[i] = __builtin_convertvector(n, Half);
  }
  Angle out;
  F whole;
  __builtin_memcpy(&out.rest, rests, sizeof(F));
  __builtin_memcpy(&whole, quarters, sizeof(F));
  out.quarters = to_int(whole);
  return out;
}

// The angle of a float above kNearAngle by Payne and Hanek's method ("Radian reduction for
// trigonometric functions", 1983): x is m 2^s with an m of 24 bits, so bits of 2/pi whose product
// with x is a multiple of 4 are left out, and 96 of the bits after them are enough.
ATTN_INLINE void far_angle(std::uint32_t bits, float* rest, std::int32_t* quarters) {
  // 32 bits before the point, then 2/pi.
  static constexpr std::uint32_t kTwoOverPi[] = {0x00000000, 0xa2f9836e, 0x4e441529, 0xfc2757d1,
                                                 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};
  if (bits >= 0x7f800000) {  // infinite or NaN
    *rest = __builtin_nanf("");
    *quarters = 0;
    return;
  }
  const std::uint64_t m = (bits & 0x007fffff) | 0x00800000;
  // s is (bits >> 23) - 150. The first bit taken has the weight 2^(1-s), and bit 0 of the table
  // 2^31.
  const std::uint32_t first = (bits >> 23) - 120;
  const std::uint32_t* const words = kTwoOverPi + first / 32;
  std::uint32_t window[3];
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t two = std::uint64_t{words[i]} << 32 | words[i + 1];
    window[i] = static_cast<std::uint32_t>(two << first % 32 >> 32);
  }
  // The product modulo 2^96, of which 2^94 is a right angle; its last 32 bits only carry.
  const std::uint64_t low = m * window[1] + (m * window[2] >> 32);
  const std::uint64_t product = (m * window[0] << 32) + low;
  const std::uint64_t nearest = (product + (std::uint64_t{1} << 61)) >> 62;
  const auto fraction = static_cast<std::int64_t>(product - (nearest << 62));
  *rest = static_cast<float>(static_cast<double>(fraction) * 0x1.921fb54442d18p-62);
  *quarters = static_cast<std::int32_t>(nearest);
}

static __attribute__((noinline)) void add_far_angles(const F* size, Angle* angle) {
  for (int i = 0; i < kLanes; ++i) {
    if ((*size)[i] <= kNearAngle) continue;
    float rest;
    std::int32_t quarters;
    far_angle(bit_cast<U>(*size)[i], &rest, &quarters);
    angle->rest[i] = rest;
    angle->quarters[i] = quarters;
  }
}

// size >= 0, or NaN.
ATTN_INLINE Angle reduced_angle(F size) {
  const I near = size <= kNearAngle;
  Angle angle = near_angle(select(near, size, F{}));
  std::int32_t all = -1;
  for (int i = 0; i < kLanes; ++i) all &= near[i];
  if (__builtin_expect(all == 0, 0)) add_far_angles(&size, &angle);
  return angle;
}

// The sine of an angle.
ATTN_INLINE F sine(const Angle& angle) {
  const F r = angle.rest;
  const F z = r * r;
  // r + r^3 p(r^2), relative error of the fit 4e-9.
  F p = fma(set1(-1.9514957633e-04f), z, set1(8.3321584097e-03f));
  p = fma(p, z, set1(-1.6666654573e-01f));
  const F of_rest = fma(p * z, r, r);
  // cos(r) = 1 - r^2 / 2 + r^4 q(r^2), relative error of the fit 2e-10.
  F q = fma(set1(2.4432785131e-05f), z, set1(-1.3887313063e-03f));
  q = fma(q, z, set1(4.1666645619e-02f));
  const F of_odd = fma(q * z, z, 1.0f - 0.5f * z);
  const F value = select((angle.quarters & 1) != 0, of_odd, of_rest);
  return bit_cast<F>(bit_cast<U>(value) ^ bit_cast<U>((angle.quarters & 2) << 30));
}

ATTN_INLINE F sin(F x) {
  const U sign = bit_cast<U>(x) & 0x80000000u;
  return bit_cast<F>(bit_cast<U>(sine(reduced_angle(bit_cast<F>(bit_cast<U>(x) ^ sign)))) ^ sign);
}

ATTN_INLINE F cos(F x) {
  Angle angle = reduced_angle(bit_cast<F>(bit_cast<U>(x) & 0x7fffffffu));
  angle.quarters += 1;
  return sine(angle);
}

}  // namespace attn::cpu::ATTN_ISA
