#include <algorithm>

#include "core/expr/bounds.hpp"
#include "core/expr/scalar.hpp"

namespace attn::expr {
namespace {

// A result that leaves int32 wraps, so it can be any value.
Bounds wrapped(std::int64_t lo, std::int64_t hi) noexcept {
  return lo < kIntMin || hi > kIntMax ? any_int() : int_bounds(lo, hi);
}

template <class Function>
Bounds over_corners(const Bounds& a, const Bounds& b, Function f) noexcept {
  const auto [lo, hi] = std::minmax({f(a.lo, b.lo), f(a.lo, b.hi), f(a.hi, b.lo), f(a.hi, b.hi)});
  return wrapped(lo, hi);
}

// Floor division is monotone in each operand while the divisor keeps its sign: the extremes lie at
// the corners of the two halves. Division by zero gives zero.
Bounds divide(const Bounds& a, const Bounds& b) noexcept {
  const bool zero = b.lo <= 0 && b.hi >= 0;
  if (zero && b.lo == b.hi) return int_bounds(0, 0);
  Bounds result = zero ? int_bounds(0, 0) : int_bounds(kIntMax, kIntMin);
  if (b.lo < 0) {
    result = hull(result,
                  over_corners(a, int_bounds(b.lo, std::min<std::int64_t>(b.hi, -1)), floor_div));
  }
  if (b.hi > 0) {
    result =
        hull(result, over_corners(a, int_bounds(std::max<std::int64_t>(b.lo, 1), b.hi), floor_div));
  }
  return result;
}

// The remainder has the divisor's sign and is smaller than it.
Bounds modulo(const Bounds& a, const Bounds& b) noexcept {
  if (b.lo == b.hi && b.lo != 0 && floor_div(a.lo, b.lo) == floor_div(a.hi, b.lo)) {
    return int_bounds(floor_mod(a.lo, b.lo), floor_mod(a.hi, b.lo));
  }
  return int_bounds(b.lo < 0 ? b.lo + 1 : 0, b.hi > 0 ? b.hi - 1 : 0);
}

Bounds absolute(const Bounds& a) noexcept {
  if (a.lo >= 0) return a;
  if (a.hi <= 0) return wrapped(-a.hi, -a.lo);
  return wrapped(0, std::max(-a.lo, a.hi));
}

Bounds truth(bool always, bool never) noexcept { return int_bounds(always ? 1 : 0, never ? 0 : 1); }

}  // namespace

Bounds apply_int(Op op, const Bounds& a, const Bounds& b) noexcept {
  const bool apart = a.hi < b.lo || b.hi < a.lo;
  const bool equal = a.lo == a.hi && b.lo == b.hi && a.lo == b.lo;
  switch (op) {
    case Op::neg:
      return wrapped(-a.hi, -a.lo);
    case Op::logical_not:
      return int_bounds(1 - a.hi, 1 - a.lo);
    case Op::abs:
      return absolute(a);
    case Op::add:
      return wrapped(a.lo + b.lo, a.hi + b.hi);
    case Op::sub:
      return wrapped(a.lo - b.hi, a.hi - b.lo);
    case Op::mul:
      return over_corners(a, b, [](std::int64_t x, std::int64_t y) { return x * y; });
    case Op::div:
      return divide(a, b);
    case Op::mod:
      return modulo(a, b);
    case Op::min:
      return int_bounds(std::min(a.lo, b.lo), std::min(a.hi, b.hi));
    case Op::max:
      return int_bounds(std::max(a.lo, b.lo), std::max(a.hi, b.hi));
    case Op::lt:
      return truth(a.hi < b.lo, a.lo >= b.hi);
    case Op::le:
      return truth(a.hi <= b.lo, a.lo > b.hi);
    case Op::eq:
      return truth(equal, apart);
    case Op::ne:
      return truth(apart, equal);
    case Op::logical_and:
      return int_bounds(a.lo & b.lo, a.hi & b.hi);
    case Op::logical_or:
      return int_bounds(a.lo | b.lo, a.hi | b.hi);
    default:
      return any_int();
  }
}

}  // namespace attn::expr
