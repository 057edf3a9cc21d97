// int32 arithmetic of expressions: it wraps, divides toward minus infinity, and a division by zero
// gives zero. Unsigned arithmetic wraps by definition and costs the same.
#pragma once

#include "device.cuh"

namespace attn::device {

ATTN_DEVICE constexpr int attn_add(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
}
ATTN_DEVICE constexpr int attn_sub(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) - static_cast<unsigned>(b));
}
ATTN_DEVICE constexpr int attn_mul(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) * static_cast<unsigned>(b));
}
ATTN_DEVICE constexpr int attn_neg(int a) { return attn_sub(0, a); }
ATTN_DEVICE constexpr int attn_abs(int a) { return a < 0 ? attn_neg(a) : a; }
ATTN_DEVICE constexpr int attn_min(int a, int b) { return a < b ? a : b; }
ATTN_DEVICE constexpr int attn_max(int a, int b) { return a > b ? a : b; }

// Sums of positions and lengths. Where the host knows sequences to be of 2^20 rows at most
// (ATTN_SHORT_SEQUENCES=1) they cannot wrap, and saying so to the compiler, by signed arithmetic,
// lets it compare without keeping a difference for every score: a window takes a sixth of the
// spills.
#ifndef ATTN_SHORT_SEQUENCES
#define ATTN_SHORT_SEQUENCES 0
#endif
ATTN_DEVICE constexpr int attn_position_add(int a, int b) {
  return ATTN_SHORT_SEQUENCES ? a + b : attn_add(a, b);
}
ATTN_DEVICE constexpr int attn_position_sub(int a, int b) {
  return ATTN_SHORT_SEQUENCES ? a - b : attn_sub(a, b);
}

// A division by a constant is compiled to a multiplication, a shift and the correction of negative
// dividends; powers of two are printed as shifts.
ATTN_DEVICE constexpr int attn_floor_div(int a, int b) {
  if (b == 0) return 0;
  if (b == -1) return attn_neg(a);  // -2^31 / -1 leaves int32
  const int quotient = a / b;
  const int remainder = a - quotient * b;
  return quotient - (remainder != 0 && (remainder < 0) != (b < 0) ? 1 : 0);
}
ATTN_DEVICE constexpr int attn_floor_mod(int a, int b) {
  return b == 0 ? 0 : attn_sub(a, attn_mul(attn_floor_div(a, b), b));
}

// A divisor that is no constant of the kernel, and what the host knows of it
// (src/cuda/codegen/divisor.hpp mirrors this): for x in [0, 2^31], x / |value| is the upper word of
// multiplier * x, shifted, + one * x. mask: all ones, or where value is 0 nothing, as are all
// others there. Example: of 3 the multiplier is 0xaaaaaaab, the shift 1, one 0.
//
// Multiples tell whether a number, also a constant, divides x: where inverse * x + offset, rotated
// to the right by twos, is at most `most`. Example: of 6 these are 0xaaaaaaab, 0x2aaaaaaa, 1 and
// 0x2aaaaaaa; of 12 the sum wraps to 0x2aaaaaae, of 13 to 0xd5555559.
struct Multiples {
  unsigned inverse, offset, twos, most;
};
struct Divisor {
  int value;
  unsigned multiplier, shift, one;
  int mask;
  Multiples multiples;
};

ATTN_DEVICE unsigned attn_upper_word(unsigned a, unsigned b) {
#ifdef __CUDACC__
  return __umulhi(a, b);
#else
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
#endif
}
// As with a number, in a third of the instructions.
ATTN_DEVICE int attn_floor_div(int a, const Divisor& b) {
  // The dividend of |b| is a or -a, which is u - negative and may be 2^31. Below 0 it is ~x, and
  // floor(~x / |b|) = ~(x / |b|).
  const int negative = b.value >> 31;
  const int u = a ^ negative;
  const unsigned below = u < negative ? ~0u : 0u;
  const unsigned x = (static_cast<unsigned>(u) - static_cast<unsigned>(negative)) ^ below;
  const unsigned quotient = (attn_upper_word(x, b.multiplier) >> b.shift) + b.one * x;
  return static_cast<int>(quotient ^ below) & b.mask;
}
ATTN_DEVICE int attn_floor_mod(int a, const Divisor& b) {
  return attn_sub(a, attn_mul(attn_floor_div(a, b), b.value)) & b.mask;
}

// Whether a is one of them, which is whether a % b is 0.
ATTN_DEVICE bool attn_divides(const Multiples& b, int a) {
  const unsigned x = static_cast<unsigned>(a) * b.inverse + b.offset;
#ifdef __CUDACC__
  return __funnelshift_r(x, x, b.twos) <= b.most;
#else
  return (x >> b.twos | x << (32 - b.twos) % 32) <= b.most;
#endif
}

// An amount that is not in 0 to 31 shifts every bit out.
ATTN_DEVICE constexpr int attn_shift_left(int a, int amount) {
  const auto by = static_cast<unsigned>(amount);
  return by < 32 ? static_cast<int>(static_cast<unsigned>(a) << by) : 0;
}
ATTN_DEVICE constexpr int attn_shift_right(int a, int amount) {
  const auto by = static_cast<unsigned>(amount);
  return a >> (by < 32 ? by : 31);
}

}  // namespace attn::device
