// Interval arithmetic on float32 values under the arithmetic of masks (expr/exact.cuh). The same
// rules as src/core/expr/bounds_float.cpp.
#pragma once

#include "device.cuh"
#include "expr/exact.cuh"
#include "expr/range.cuh"

namespace attn::device {

// Values lie in [lo, hi] or, if nan, are NaN. lo and hi are never NaN.
struct FloatRange {
  float lo, hi;
  bool nan;
};

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);

ATTN_DEVICE FloatRange range_any_float() { return {-kInfinity, kInfinity, true}; }
ATTN_DEVICE FloatRange range_of(float value) {
  return value == value ? FloatRange{value, value, false} : range_any_float();
}
ATTN_DEVICE FloatRange range_to_float(IntRange a) {
  return {static_cast<float>(a.lo), static_cast<float>(a.hi), false};
}
ATTN_DEVICE FloatRange range_hull(FloatRange a, FloatRange b) {
  return {attn_min(a.lo, b.lo), attn_max(a.hi, b.hi), a.nan || b.nan};
}
ATTN_DEVICE bool range_has(FloatRange a, float x) { return a.lo <= x && x <= a.hi; }
ATTN_DEVICE bool range_has_infinity(FloatRange a) {
  return a.lo == -kInfinity || a.hi == kInfinity;
}

// Moves x by `steps` representable values, at most to infinity. As two's complement the magnitudes
// of negative floats count backwards from zero.
ATTN_DEVICE float range_step(float x, int steps) {
  const int bits = __builtin_bit_cast(int, x);
  constexpr int kInfinityBits = 0x7f800000;
  int order = (bits < 0 ? kIntMin - bits : bits) + steps;
  order = attn_max(attn_min(order, kInfinityBits), -kInfinityBits);
  return __builtin_bit_cast(float, order < 0 ? kIntMin - order : order);
}
// exp, exp2, log, tanh, erf, sin and cos err by up to 2 ulp.
ATTN_DEVICE float range_down(float x) { return range_step(x, -6); }
ATTN_DEVICE float range_up(float x) { return range_step(x, 6); }

// Toward plus infinity, of at most 2^31 in magnitude.
ATTN_DEVICE double attn_ceil(double x) {
  const auto whole = static_cast<double>(static_cast<int>(x));
  return whole < x ? whole + 1 : whole;
}

ATTN_DEVICE FloatRange range_neg(FloatRange a) { return {-a.hi, -a.lo, a.nan}; }
// Rounding to nearest is monotone: the rounded bounds bound the rounded values.
ATTN_DEVICE FloatRange range_add(FloatRange a, FloatRange b) {
  const bool cancels =
      (a.lo == -kInfinity && b.hi == kInfinity) || (a.hi == kInfinity && b.lo == -kInfinity);
  const float lo = exact::attn_add(a.lo, b.lo);
  const float hi = exact::attn_add(a.hi, b.hi);
  return {lo == lo ? lo : -kInfinity, hi == hi ? hi : kInfinity, a.nan || b.nan || cancels};
}
ATTN_DEVICE FloatRange range_sub(FloatRange a, FloatRange b) { return range_add(a, range_neg(b)); }

// A corner that is NaN (0 * inf, inf / inf) borders values that reach down to 0.
ATTN_DEVICE float range_corner(float value) { return value == value ? value : 0.0f; }
ATTN_DEVICE FloatRange range_corners(float a, float b, float c, float d, bool nan) {
  a = range_corner(a);
  b = range_corner(b);
  c = range_corner(c);
  d = range_corner(d);
  return {attn_min(attn_min(a, b), attn_min(c, d)), attn_max(attn_max(a, b), attn_max(c, d)), nan};
}
ATTN_DEVICE FloatRange range_mul(FloatRange a, FloatRange b) {
  const bool nan = a.nan || b.nan || (range_has(a, 0) && range_has_infinity(b)) ||
                   (range_has(b, 0) && range_has_infinity(a));
  return range_corners(exact::attn_mul(a.lo, b.lo), exact::attn_mul(a.lo, b.hi),
                       exact::attn_mul(a.hi, b.lo), exact::attn_mul(a.hi, b.hi), nan);
}
ATTN_DEVICE FloatRange range_div(FloatRange a, FloatRange b) {
  const bool nan = a.nan || b.nan || (range_has(a, 0) && range_has(b, 0)) ||
                   (range_has_infinity(a) && range_has_infinity(b));
  if (range_has(b, 0)) return {-kInfinity, kInfinity, nan};
  return range_corners(exact::attn_div(a.lo, b.lo), exact::attn_div(a.lo, b.hi),
                       exact::attn_div(a.hi, b.lo), exact::attn_div(a.hi, b.hi), nan);
}

// min and max give their second operand when either is NaN.
ATTN_DEVICE FloatRange range_min(FloatRange a, FloatRange b) {
  const FloatRange result{attn_min(a.lo, b.lo), attn_min(a.hi, b.hi), b.nan};
  return a.nan ? range_hull(result, b) : result;
}
ATTN_DEVICE FloatRange range_max(FloatRange a, FloatRange b) {
  const FloatRange result{attn_max(a.lo, b.lo), attn_max(a.hi, b.hi), b.nan};
  return a.nan ? range_hull(result, b) : result;
}
ATTN_DEVICE FloatRange range_abs(FloatRange a) {
  if (a.lo >= 0) return a;
  if (a.hi <= 0) return range_neg(a);
  return {0, attn_max(-a.lo, a.hi), a.nan};
}
// The range of a power, exp or exp2, that lies between `first` and `last`.
ATTN_DEVICE FloatRange range_power(float first, float last, bool nan) {
  constexpr float kTiny = 0x1p-126f;  // below it results may be flushed to zero
  const float lo = range_down(first);
  return {lo < 2 * kTiny ? 0 : lo, attn_max(range_up(last), kTiny), nan};
}
ATTN_DEVICE FloatRange range_exp(FloatRange a) {
  return range_power(exact::attn_exp(a.lo), exact::attn_exp(a.hi), a.nan);
}
ATTN_DEVICE FloatRange range_exp2(FloatRange a) {
  return range_power(exact::attn_exp2(a.lo), exact::attn_exp2(a.hi), a.nan);
}
ATTN_DEVICE FloatRange range_log(FloatRange a) {
  if (a.hi < 0) return range_any_float();
  const float lo = a.lo <= 0 ? -kInfinity : range_down(exact::attn_log(a.lo));
  return {lo, range_up(exact::attn_log(attn_max(a.hi, 0.0f))), a.nan || a.lo < 0};
}
ATTN_DEVICE FloatRange range_tanh(FloatRange a) {
  return {attn_max(range_down(exact::attn_tanh(a.lo)), -1.0f),
          attn_min(range_up(exact::attn_tanh(a.hi)), 1.0f), a.nan};
}
ATTN_DEVICE FloatRange range_erf(FloatRange a) {
  return {attn_max(range_down(exact::attn_erf(a.lo)), -1.0f),
          attn_min(range_up(exact::attn_erf(a.hi)), 1.0f), a.nan};
}
// The range of a wave that takes the values `first` and `last` at the ends of a, and is 1 where its
// argument is `phase` plus an even multiple of pi, -1 at the odd multiples.
ATTN_DEVICE FloatRange range_wave(FloatRange a, float first, float last, double phase) {
  const bool nan = a.nan || range_has_infinity(a);
  // Up to kFar the multiples are right to 1e-9, by which the range of them is widened.
  constexpr float kFar = 0x1p+20f;
  if (a.lo < -kFar || a.hi > kFar) return {-1, 1, nan};
  constexpr double kPi = 3.141592653589793;
  const double from = (a.lo - phase) / kPi - 1e-9;
  const double to = (a.hi - phase) / kPi + 1e-9;
  const bool has_even = 2 * attn_ceil(from / 2) <= to;
  const bool has_odd = 2 * attn_ceil((from - 1) / 2) + 1 <= to;
  return {has_odd ? -1.0f : attn_max(range_down(attn_min(first, last)), -1.0f),
          has_even ? 1.0f : attn_min(range_up(attn_max(first, last)), 1.0f), nan};
}
ATTN_DEVICE FloatRange range_sin(FloatRange a) {
  return range_wave(a, exact::attn_sin(a.lo), exact::attn_sin(a.hi), 1.5707963267948966);
}
ATTN_DEVICE FloatRange range_cos(FloatRange a) {
  return range_wave(a, exact::attn_cos(a.lo), exact::attn_cos(a.hi), 0);
}
ATTN_DEVICE FloatRange range_sqrt(FloatRange a) {
  if (a.hi < 0) return range_any_float();
  return {exact::attn_sqrt(attn_max(a.lo, 0.0f)), exact::attn_sqrt(attn_max(a.hi, 0.0f)),
          a.nan || a.lo < 0};
}
ATTN_DEVICE FloatRange range_floor(FloatRange a) {
  return {attn_floor(a.lo), attn_floor(a.hi), a.nan};
}
ATTN_DEVICE IntRange range_to_int(FloatRange a) {
  const IntRange range{attn_to_int(a.lo), attn_to_int(a.hi)};
  return a.nan ? range_hull(range, {0, 0}) : range;
}

// Comparisons are false on NaN, but for !=.
ATTN_DEVICE BoolRange range_lt(FloatRange a, FloatRange b) {
  return {a.hi < b.lo && !a.nan && !b.nan, a.lo < b.hi};
}
ATTN_DEVICE BoolRange range_le(FloatRange a, FloatRange b) {
  return {a.hi <= b.lo && !a.nan && !b.nan, a.lo <= b.hi};
}
ATTN_DEVICE BoolRange range_eq(FloatRange a, FloatRange b) {
  return {a.lo == a.hi && b.lo == b.hi && a.lo == b.lo && !a.nan && !b.nan,
          a.hi >= b.lo && b.hi >= a.lo};
}

}  // namespace attn::device
