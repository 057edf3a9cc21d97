// The range of a float32 operation whose operands lie in given ranges (bounds.hpp). Rounding to
// nearest is monotone, so rounded bounds bound the rounded values;
// src/cuda/device/expr/range_float.cuh has the same rules.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/expr/bounds.hpp"
#include "core/expr/scalar.hpp"

namespace attn::expr {
namespace {

// +, -, *, /, sqrt and conversions round to nearest, which is monotone: the rounded bounds bound
// the rounded values. exp, exp2, log, tanh, erf, sin and cos are only accurate to a few units in
// the last place (2 in the tile evaluator, 1 in the C library), so their bounds move outward by
// more than both.
constexpr int kUlps = 6;

float down(float x) noexcept {
  for (int i = 0; i < kUlps; ++i) x = std::nextafter(x, -kInfinity);
  return x;
}
float up(float x) noexcept {
  for (int i = 0; i < kUlps; ++i) x = std::nextafter(x, kInfinity);
  return x;
}

bool has(const Bounds& a, float x) noexcept { return a.flo <= x && x <= a.fhi; }
bool has_infinity(const Bounds& a) noexcept { return a.flo == -kInfinity || a.fhi == kInfinity; }

Bounds add(const Bounds& a, const Bounds& b) noexcept {
  const bool cancels =
      (a.flo == -kInfinity && b.fhi == kInfinity) || (a.fhi == kInfinity && b.flo == -kInfinity);
  const float lo = a.flo + b.flo;
  const float hi = a.fhi + b.fhi;
  return float_bounds(lo == lo ? lo : -kInfinity, hi == hi ? hi : kInfinity,
                      a.nan || b.nan || cancels);
}

Bounds negate(const Bounds& a) noexcept { return float_bounds(-a.fhi, -a.flo, a.nan); }

// Bilinear operations take their extremes at corners. A corner that is NaN (0 * inf, inf / inf)
// borders values that reach down to 0.
template <class Function>
Bounds over_corners(const Bounds& a, const Bounds& b, bool nan, Function f) noexcept {
  const auto corner = [&](float x, float y) {
    const float value = f(x, y);
    return value == value ? value : 0.0f;
  };
  const auto [lo, hi] = std::minmax(
      {corner(a.flo, b.flo), corner(a.flo, b.fhi), corner(a.fhi, b.flo), corner(a.fhi, b.fhi)});
  return float_bounds(lo, hi, nan);
}

Bounds multiply(const Bounds& a, const Bounds& b) noexcept {
  const bool nan =
      a.nan || b.nan || (has(a, 0) && has_infinity(b)) || (has(b, 0) && has_infinity(a));
  return over_corners(a, b, nan, [](float x, float y) { return x * y; });
}

Bounds divide(const Bounds& a, const Bounds& b) noexcept {
  const bool nan =
      a.nan || b.nan || (has(a, 0) && has(b, 0)) || (has_infinity(a) && has_infinity(b));
  if (has(b, 0)) return float_bounds(-kInfinity, kInfinity, nan);
  return over_corners(a, b, nan, [](float x, float y) { return x / y; });
}

// min and max give their second operand when either is NaN.
Bounds choose(Op op, const Bounds& a, const Bounds& b) noexcept {
  Bounds result = op == Op::min
                      ? float_bounds(std::min(a.flo, b.flo), std::min(a.fhi, b.fhi), b.nan)
                      : float_bounds(std::max(a.flo, b.flo), std::max(a.fhi, b.fhi), b.nan);
  return a.nan ? hull(result, b) : result;
}

Bounds absolute(const Bounds& a) noexcept {
  if (a.flo >= 0) return a;
  if (a.fhi <= 0) return negate(a);
  return float_bounds(0, std::max(-a.flo, a.fhi), a.nan);
}

Bounds exponential(const Bounds& a, float (*power)(float)) noexcept {
  // Results below the smallest normal number may be flushed to zero.
  constexpr float kTiny = std::numeric_limits<float>::min();
  const float lo = down(power(a.flo));
  return float_bounds(lo < 2 * kTiny ? 0 : lo, std::max(up(power(a.fhi)), kTiny), a.nan);
}

// Bounds tanh and erf, which are odd and rise from -1 to 1.
Bounds sigmoid(const Bounds& a, float (*function)(float)) noexcept {
  return float_bounds(std::max(down(function(a.flo)), -1.0f), std::min(up(function(a.fhi)), 1.0f),
                      a.nan);
}

// Bounds sin and cos, which are 1 where their argument is `phase` plus an even multiple of pi, and
// -1 at the odd multiples.
Bounds wave(const Bounds& a, float (*function)(float), double phase) noexcept {
  const bool nan = a.nan || has_infinity(a);
  // Up to kFar the multiples are right to 1e-9, by which the range of them is widened.
  constexpr float kFar = 0x1p+20F;
  if (a.flo < -kFar || a.fhi > kFar) return float_bounds(-1, 1, nan);
  const double first = (a.flo - phase) / std::numbers::pi - 1e-9;
  const double last = (a.fhi - phase) / std::numbers::pi + 1e-9;
  const bool has_even = 2 * std::ceil(first / 2) <= last;
  const bool has_odd = 2 * std::ceil((first - 1) / 2) + 1 <= last;
  const float lo = has_odd ? -1.0F : std::min(function(a.flo), function(a.fhi));
  const float hi = has_even ? 1.0F : std::max(function(a.flo), function(a.fhi));
  return float_bounds(std::max(down(lo), -1.0F), std::min(up(hi), 1.0F), nan);
}

Bounds logarithm(const Bounds& a) noexcept {
  const bool nan = a.nan || a.flo < 0;
  if (a.fhi < 0) return float_bounds(-kInfinity, kInfinity, true);
  const float lo = a.flo <= 0 ? -kInfinity : down(std::log(a.flo));
  return float_bounds(lo, up(std::log(std::max(a.fhi, 0.0f))), nan);
}

Bounds root(const Bounds& a) noexcept {
  const bool nan = a.nan || a.flo < 0;
  if (a.fhi < 0) return float_bounds(-kInfinity, kInfinity, true);
  return float_bounds(std::sqrt(std::max(a.flo, 0.0f)), std::sqrt(std::max(a.fhi, 0.0f)), nan);
}

Bounds integer(const Bounds& a) noexcept {
  const std::int64_t lo = truncate(a.flo), hi = truncate(a.fhi);
  return a.nan ? int_bounds(std::min<std::int64_t>(lo, 0), std::max<std::int64_t>(hi, 0))
               : int_bounds(lo, hi);
}

}  // namespace

Bounds hull(const Bounds& a, const Bounds& b) noexcept {
  return {std::min(a.lo, b.lo), std::max(a.hi, b.hi), std::min(a.flo, b.flo),
          std::max(a.fhi, b.fhi), a.nan || b.nan};
}

Bounds to_float(const Bounds& a) noexcept {
  return float_bounds(static_cast<float>(a.lo), static_cast<float>(a.hi), false);
}

Bounds apply_float(Op op, const Bounds& a, const Bounds& b) noexcept {
  const bool nan = a.nan || b.nan;
  const bool apart = a.fhi < b.flo || b.fhi < a.flo;
  const bool equal = a.flo == a.fhi && b.flo == b.fhi && a.flo == b.flo;
  switch (op) {
    case Op::neg:
      return negate(a);
    case Op::abs:
      return absolute(a);
    case Op::exp:
      return exponential(a, std::exp);
    case Op::exp2:
      return exponential(a, std::exp2);
    case Op::log:
      return logarithm(a);
    case Op::tanh:
      return sigmoid(a, std::tanh);
    case Op::erf:
      return sigmoid(a, std::erf);
    case Op::sin:
      return wave(a, std::sin, std::numbers::pi / 2);
    case Op::cos:
      return wave(a, std::cos, 0);
    case Op::sqrt:
      return root(a);
    case Op::floor:
      return float_bounds(std::floor(a.flo), std::floor(a.fhi), a.nan);
    case Op::to_int:
      return integer(a);
    case Op::add:
      return add(a, b);
    case Op::sub:
      return add(a, negate(b));
    case Op::mul:
      return multiply(a, b);
    case Op::div:
      return divide(a, b);
    case Op::min:
    case Op::max:
      return choose(op, a, b);
    case Op::lt:  // false on NaN, as <= and ==
      return condition_bounds(a.fhi < b.flo && !nan, a.flo >= b.fhi);
    case Op::le:
      return condition_bounds(a.fhi <= b.flo && !nan, a.flo > b.fhi);
    case Op::eq:
      return condition_bounds(equal && !nan, apart);
    case Op::ne:
      return condition_bounds(apart, equal && !nan);
    default:
      return any_float();
  }
}

}  // namespace attn::expr
