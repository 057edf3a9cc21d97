// Interval arithmetic on int32 and boolean values: a range that holds every value an operation can
// take on operands in given ranges. The same rules as src/core/expr/bounds_int.cpp.
#pragma once

#include "device.cuh"
#include "expr/integer.cuh"
#include "tile/coverage.cuh"

namespace attn::device {

struct IntRange {
  int lo, hi;
};
// lo: true at every point; hi: true at some.
struct BoolRange {
  bool lo, hi;
};

inline constexpr int kIntMin = -2147483647 - 1;
inline constexpr int kIntMax = 2147483647;

ATTN_DEVICE IntRange range_of(int lo, int hi) { return {lo, hi}; }
ATTN_DEVICE IntRange range_of(int value) { return {value, value}; }
ATTN_DEVICE IntRange range_of(IntRange range) { return range; }
ATTN_DEVICE BoolRange range_of(bool value) { return {value, value}; }
ATTN_DEVICE Coverage coverage_of(BoolRange a) {
  return a.lo ? Coverage::full : a.hi ? Coverage::mixed : Coverage::empty;
}

// A result that leaves int32 wraps, so it can be any value.
ATTN_DEVICE IntRange range_wrapped(long long lo, long long hi) {
  if (lo < kIntMin || hi > kIntMax) return {kIntMin, kIntMax};
  return {static_cast<int>(lo), static_cast<int>(hi)};
}
ATTN_DEVICE IntRange range_hull(IntRange a, IntRange b) {
  return {attn_min(a.lo, b.lo), attn_max(a.hi, b.hi)};
}
ATTN_DEVICE BoolRange range_hull(BoolRange a, BoolRange b) { return {a.lo && b.lo, a.hi || b.hi}; }

// Sums in 32 bits: classify runs where registers are few. A sum overflows when it differs in sign
// from both operands, a difference when the operands differ in sign and the result from the first.
ATTN_DEVICE IntRange range_unless(bool overflow, int lo, int hi) {
  return {overflow ? kIntMin : lo, overflow ? kIntMax : hi};
}
ATTN_DEVICE IntRange range_add(IntRange a, IntRange b) {
  const int lo = attn_add(a.lo, b.lo);
  const int hi = attn_add(a.hi, b.hi);
  return range_unless((((a.lo ^ lo) & (b.lo ^ lo)) | ((a.hi ^ hi) & (b.hi ^ hi))) < 0, lo, hi);
}
ATTN_DEVICE IntRange range_sub(IntRange a, IntRange b) {
  const int lo = attn_sub(a.lo, b.hi);
  const int hi = attn_sub(a.hi, b.lo);
  return range_unless((((a.lo ^ b.hi) & (a.lo ^ lo)) | ((a.hi ^ b.lo) & (a.hi ^ hi))) < 0, lo, hi);
}
ATTN_DEVICE IntRange range_neg(IntRange a) {
  return range_unless(a.lo == kIntMin, attn_neg(a.hi), attn_neg(a.lo));
}
ATTN_DEVICE IntRange range_abs(IntRange a) {
  if (a.lo >= 0) return a;
  if (a.hi <= 0) return range_neg(a);
  return range_unless(a.lo == kIntMin, 0, attn_max(attn_neg(a.lo), a.hi));
}
ATTN_DEVICE IntRange range_min(IntRange a, IntRange b) {
  return {attn_min(a.lo, b.lo), attn_min(a.hi, b.hi)};
}
ATTN_DEVICE IntRange range_max(IntRange a, IntRange b) {
  return {attn_max(a.lo, b.lo), attn_max(a.hi, b.hi)};
}

// Bilinear operations take their extremes at corners.
ATTN_DEVICE IntRange range_corners(long long a, long long b, long long c, long long d) {
  const long long low = a < b ? a : b;
  const long long high = a < b ? b : a;
  const long long other_low = c < d ? c : d;
  const long long other_high = c < d ? d : c;
  return range_wrapped(low < other_low ? low : other_low, high > other_high ? high : other_high);
}
ATTN_DEVICE IntRange range_mul(IntRange a, IntRange b) {
  return range_corners(static_cast<long long>(a.lo) * b.lo, static_cast<long long>(a.lo) * b.hi,
                       static_cast<long long>(a.hi) * b.lo, static_cast<long long>(a.hi) * b.hi);
}

// The quotient is not wrapped to int32: -2^31 / -1 is 2^31.
ATTN_DEVICE long long range_quotient(int a, int b) {
  return b == -1 ? -static_cast<long long>(a) : attn_floor_div(a, b);
}
ATTN_DEVICE IntRange range_half(IntRange a, int lo, int hi) {
  return range_corners(range_quotient(a.lo, lo), range_quotient(a.lo, hi), range_quotient(a.hi, lo),
                       range_quotient(a.hi, hi));
}
// Floor division is monotone in each operand while the divisor keeps its sign: the extremes lie at
// the corners of the two halves. Division by zero gives zero.
ATTN_DEVICE IntRange range_div(IntRange a, IntRange b) {
  const bool zero = b.lo <= 0 && b.hi >= 0;
  if (zero && b.lo == b.hi) return {0, 0};
  IntRange result = zero ? IntRange{0, 0} : IntRange{kIntMax, kIntMin};
  if (b.lo < 0) result = range_hull(result, range_half(a, b.lo, attn_min(b.hi, -1)));
  if (b.hi > 0) result = range_hull(result, range_half(a, attn_max(b.lo, 1), b.hi));
  return result;
}
// The range of a value that is shifted right by kBits.
template <int kBits>
ATTN_DEVICE IntRange range_shift(IntRange a) {
  return {a.lo >> kBits, a.hi >> kBits};
}
// The remainder has the divisor's sign and is smaller than it.
ATTN_DEVICE IntRange range_mod(IntRange a, IntRange b) {
  if (b.lo == b.hi && b.lo != 0 && range_quotient(a.lo, b.lo) == range_quotient(a.hi, b.lo)) {
    return {attn_floor_mod(a.lo, b.lo), attn_floor_mod(a.hi, b.lo)};
  }
  return {b.lo < 0 ? b.lo + 1 : 0, b.hi > 0 ? b.hi - 1 : 0};
}

// The bits of a value in a range: those above the highest in which its ends differ are known.
struct BitRange {
  unsigned ones, maybe;
};
ATTN_DEVICE BitRange range_bits(IntRange a) {
  unsigned unknown = static_cast<unsigned>(a.lo ^ a.hi);
#pragma unroll
  for (int shift = 1; shift < 32; shift *= 2) unknown |= unknown >> shift;
  return {static_cast<unsigned>(a.lo) & ~unknown, static_cast<unsigned>(a.lo) | unknown};
}
// An int32 whose highest bit is set is negative: where that bit may be either, it is set in the
// least value and clear in the largest.
ATTN_DEVICE IntRange range_of_bits(unsigned ones, unsigned maybe) {
  const unsigned sign = (ones ^ maybe) & 0x80000000u;
  return {static_cast<int>(ones | sign), static_cast<int>(maybe & ~sign)};
}
ATTN_DEVICE IntRange range_bit_and(IntRange a, IntRange b) {
  const BitRange x = range_bits(a), y = range_bits(b);
  return range_of_bits(x.ones & y.ones, x.maybe & y.maybe);
}
ATTN_DEVICE IntRange range_bit_or(IntRange a, IntRange b) {
  const BitRange x = range_bits(a), y = range_bits(b);
  return range_of_bits(x.ones | y.ones, x.maybe | y.maybe);
}
ATTN_DEVICE IntRange range_bit_xor(IntRange a, IntRange b) {
  const BitRange x = range_bits(a), y = range_bits(b);
  const unsigned unknown = (x.ones ^ x.maybe) | (y.ones ^ y.maybe);
  const unsigned ones = (x.ones ^ y.ones) & ~unknown;
  return range_of_bits(ones, ones | unknown);
}
// Shifts are monotone in the value, and in an amount of 0 to 31; all others shift every bit out.
ATTN_DEVICE IntRange range_shift_left(IntRange a, IntRange b) {
  const int least = attn_max(b.lo, 0), most = attn_min(b.hi, 31);
  if (least > most) return {0, 0};
  const IntRange inside = range_corners(
      static_cast<long long>(a.lo) * (1ll << least), static_cast<long long>(a.lo) * (1ll << most),
      static_cast<long long>(a.hi) * (1ll << least), static_cast<long long>(a.hi) * (1ll << most));
  return b.lo < 0 || b.hi > 31 ? range_hull(inside, {0, 0}) : inside;
}
ATTN_DEVICE IntRange range_shift_right(IntRange a, IntRange b) {
  const IntRange outside = {a.lo >> 31, a.hi >> 31};
  const int least = attn_max(b.lo, 0), most = attn_min(b.hi, 31);
  if (least > most) return outside;
  const IntRange inside = {attn_min(a.lo >> least, a.lo >> most),
                           attn_max(a.hi >> least, a.hi >> most)};
  return b.lo < 0 || b.hi > 31 ? range_hull(inside, outside) : inside;
}

ATTN_DEVICE BoolRange range_lt(IntRange a, IntRange b) { return {a.hi < b.lo, a.lo < b.hi}; }
ATTN_DEVICE BoolRange range_le(IntRange a, IntRange b) { return {a.hi <= b.lo, a.lo <= b.hi}; }
ATTN_DEVICE BoolRange range_not(BoolRange a) { return {!a.hi, !a.lo}; }
ATTN_DEVICE BoolRange range_and(BoolRange a, BoolRange b) { return {a.lo && b.lo, a.hi && b.hi}; }
ATTN_DEVICE BoolRange range_or(BoolRange a, BoolRange b) { return {a.lo || b.lo, a.hi || b.hi}; }
ATTN_DEVICE BoolRange range_eq(IntRange a, IntRange b) {
  return {a.lo == a.hi && b.lo == b.hi && a.lo == b.lo, a.hi >= b.lo && b.hi >= a.lo};
}
ATTN_DEVICE BoolRange range_eq(BoolRange a, BoolRange b) {
  return range_eq(IntRange{a.lo, a.hi}, IntRange{b.lo, b.hi});
}
template <class Range>
ATTN_DEVICE BoolRange range_ne(Range a, Range b) {
  return range_not(range_eq(a, b));
}
template <class Range>
ATTN_DEVICE Range range_select(BoolRange condition, Range a, Range b) {
  return condition.lo ? a : condition.hi ? range_hull(a, b) : b;
}

}  // namespace attn::device
