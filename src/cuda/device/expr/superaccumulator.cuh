// Exact sums in memory: a superaccumulator, after U. Kulisch, "Computer Arithmetic and Validity"
// (2008), his complete register. It is one integer of 384 bits in units of 2^-149, the smallest
// float32, so that every float32 and every float64 sum of some is a whole number of units. Sums of
// integers do not depend on the order of additions, and nothing is rounded before `rounded`.
//
// Room: sums wrap around at +-2^383 units, which is 2^234, so 2^106 of the largest float32 fit. A
// launch cannot add as many: it has fewer than 2^31 blocks, each goes through fewer than 2^31 tiles
// of up to 2^13 scores, and 32 KB of parameters name fewer than 2^9 places where a score reads a
// buffer, which makes 2^84 numbers.
#pragma once

#include "device.cuh"
#include "expr/gradient_sums.cuh"

namespace attn::device {

// Adds x, a sum of float32 rounded to float64. Threads may add to the same sum at once: each word
// tells by its value before an addition whether that carried into the next word, so that no carry
// is lost or counted twice, and the words end as the digits of the sum.
ATTN_DEVICE void add_to_sum(Superaccumulator* sum, double x) {
  constexpr int kWords = sizeof(sum->words) / sizeof(sum->words[0]);
  constexpr int kMantissa = 52, kNonFinite = 0x7ff;
  constexpr int kUnit = 1075 - 149;  // the exponent field of 2^52 units
  const auto bits = __builtin_bit_cast(unsigned long long, x);
  const bool negative = (bits >> 63) != 0;
  const int exponent = static_cast<int>(bits >> kMantissa) & kNonFinite;
  const unsigned long long fraction = bits & ((1ull << kMantissa) - 1);
  if (exponent == kNonFinite) {
    atomicOr(&sum->infinities, fraction != 0 ? 3 : negative ? 2 : 1);
    return;
  }
  if (exponent == 0) return;  // x is 0, as it is a whole number of units
  unsigned long long mantissa = fraction | 1ull << kMantissa;
  int shift = exponent - kUnit;
  if (shift < 0) {  // bits that are 0
    mantissa >>= -shift;
    shift = 0;
  }
  const int offset = shift % 64;
  unsigned long long digits = mantissa << offset;
  unsigned long long next = offset == 0 ? 0 : mantissa >> (64 - offset);
  for (int i = shift / 64; i < kWords && (digits | next) != 0; ++i) {
    bool carries = false;
    if (digits != 0) {
      const unsigned long long before = atomicAdd(&sum->words[i], negative ? 0 - digits : digits);
      carries = negative ? before < digits : before + digits < before;
    }
    digits = next + (carries ? 1 : 0);  // of 53 bits and one more: cannot wrap around
    next = 0;
  }
}
// The same without a promise about the order: the last bits depend on it.
ATTN_DEVICE void add_to_sum(double* sum, double x) { atomicAdd(sum, x); }

// The sum as the nearest float32, ties to even; past the range infinite. Where infinities or NaN
// were added, what IEEE 754 gives in any order: NaN of both infinities.
ATTN_DEVICE float rounded(const Superaccumulator& sum) {
  constexpr unsigned kInfinity = 0x7f800000u, kQuietNaN = 0x7fffffffu, kSign = 1u << 31;
  constexpr int kTop = sizeof(sum.words) / sizeof(sum.words[0]) - 1;
  if (sum.infinities != 0) {
    return __builtin_bit_cast(float, sum.infinities == 3   ? kQuietNaN
                                     : sum.infinities == 2 ? kInfinity | kSign
                                                           : kInfinity);
  }
  // The highest word of the magnitude that is not 0, the one below it, and whether others are not
  // 0.
  const bool negative = (sum.words[kTop] >> 63) != 0;
  unsigned long long digits = 0, below = 0, previous = 0;
  bool borrows = false, rest = false, older = false;
  int first = 0;
#pragma unroll
  for (int i = 0; i <= kTop; ++i) {
    const unsigned long long word = sum.words[i];
    const unsigned long long magnitude = negative ? 0 - word - (borrows ? 1 : 0) : word;
    borrows = borrows || word != 0;
    if (magnitude != 0) {
      first = i;
      digits = magnitude;
      below = previous;
      rest = older;
    }
    older = older || previous != 0;
    previous = magnitude;
  }
  if (digits == 0) return 0;
  // 64 digits from the first one on.
  const int zeros = __clzll(static_cast<long long>(digits));
  if (zeros > 0) digits = digits << zeros | below >> (64 - zeros);
  rest = rest || below << zeros != 0;
  // With 24 of them, a float32 is its digits plus 2^23 for each place by which they were shifted.
  // A sum of fewer is one as it stands, subnormal or not.
  constexpr int kDigits = 24, kDropped = 64 - kDigits;
  const int shift = 64 * first + kDropped - zeros;
  const unsigned sign = negative ? kSign : 0;
  if (shift <= 0) {
    return __builtin_bit_cast(float, sign | static_cast<unsigned>(digits >> (kDropped - shift)));
  }
  constexpr unsigned long long kHalf = 1ull << (kDropped - 1);
  const unsigned long long dropped = digits & (2 * kHalf - 1);
  unsigned magnitude_bits =
      (static_cast<unsigned>(shift) << (kDigits - 1)) + static_cast<unsigned>(digits >> kDropped);
  if (dropped > kHalf || (dropped == kHalf && (rest || magnitude_bits % 2 != 0))) ++magnitude_bits;
  return __builtin_bit_cast(float, sign | min(magnitude_bits, kInfinity));
}
ATTN_DEVICE double rounded(double sum) { return sum; }

}  // namespace attn::device
