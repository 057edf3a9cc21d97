// The range of an int32 or boolean operation whose operands lie in given ranges (bounds.hpp).
// src/cuda/device/expr/range.cuh has the same rules.
#include <algorithm>
#include <bit>
#include <cstdint>

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
Bounds divide_integers(const Bounds& a, const Bounds& b) noexcept {
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

Bounds absolute_integer(const Bounds& a) noexcept {
  if (a.lo >= 0) return a;
  if (a.hi <= 0) return wrapped(-a.hi, -a.lo);
  return wrapped(0, std::max(-a.lo, a.hi));
}

// The bits of a value in a range, from the lowest: those above the highest in which its ends differ
// are known. Of [64, 95] these are 10xxxxx: ones is 64, and any of maybe, 95, may be set.
struct Bits {
  std::uint32_t ones, maybe;
};
Bits bits_of(const Bounds& a) noexcept {
  const auto lo = static_cast<std::uint32_t>(a.lo);
  const auto hi = static_cast<std::uint32_t>(a.hi);
  const std::uint32_t differ = lo ^ hi;
  const std::uint32_t unknown = differ == 0 ? 0 : ~std::uint32_t{0} >> std::countl_zero(differ);
  return {lo & ~unknown, lo | unknown};
}
// An int32 whose highest bit is set is negative: where that bit may be either, it is set in the
// least value and clear in the largest.
Bounds bounds_of(const Bits& bits) noexcept {
  constexpr std::uint32_t kSign = 0x80000000;
  const bool may_be_either = ((bits.ones ^ bits.maybe) & kSign) != 0;
  return int_bounds(wrap(may_be_either ? bits.ones | kSign : bits.ones),
                    wrap(may_be_either ? bits.maybe & ~kSign : bits.maybe));
}

Bounds bitwise(Op op, const Bounds& a, const Bounds& b) noexcept {
  const Bits x = bits_of(a);
  const Bits y = bits_of(b);
  if (op == Op::bit_and) return bounds_of({x.ones & y.ones, x.maybe & y.maybe});
  if (op == Op::bit_or) return bounds_of({x.ones | y.ones, x.maybe | y.maybe});
  const std::uint32_t unknown = (x.ones ^ x.maybe) | (y.ones ^ y.maybe);
  const std::uint32_t ones = (x.ones ^ y.ones) & ~unknown;
  return bounds_of({ones, ones | unknown});
}

// Both shifts are monotone in the value, and in an amount of 0 to 31. Every other amount, negative
// or above 31, gives what an amount above 31 gives: `outside`.
template <class Shift>
Bounds shifted(const Bounds& a, const Bounds& amount, const Bounds& outside, Shift shift) noexcept {
  const std::int64_t least = std::max<std::int64_t>(amount.lo, 0);
  const std::int64_t most = std::min<std::int64_t>(amount.hi, 31);
  if (least > most) return outside;
  const Bounds inside = over_corners(a, int_bounds(least, most), shift);
  return amount.lo < 0 || amount.hi > 31 ? hull(inside, outside) : inside;
}

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
      return absolute_integer(a);
    case Op::add:
      return wrapped(a.lo + b.lo, a.hi + b.hi);
    case Op::sub:
      return wrapped(a.lo - b.hi, a.hi - b.lo);
    case Op::mul:
      return over_corners(a, b, [](std::int64_t x, std::int64_t y) { return x * y; });
    case Op::div:
      return divide_integers(a, b);
    case Op::mod:
      return modulo(a, b);
    case Op::bit_and:
    case Op::bit_or:
    case Op::bit_xor:
      return bitwise(op, a, b);
    case Op::shift_left:
      return shifted(a, b, int_bounds(0, 0), shift_left);
    case Op::shift_right:
      return shifted(a, b, int_bounds(a.lo < 0 ? -1 : 0, a.hi < 0 ? -1 : 0), shift_right);
    case Op::min:
      return int_bounds(std::min(a.lo, b.lo), std::min(a.hi, b.hi));
    case Op::max:
      return int_bounds(std::max(a.lo, b.lo), std::max(a.hi, b.hi));
    case Op::lt:
      return condition_bounds(a.hi < b.lo, a.lo >= b.hi);
    case Op::le:
      return condition_bounds(a.hi <= b.lo, a.lo > b.hi);
    case Op::eq:
      return condition_bounds(equal, apart);
    case Op::ne:
      return condition_bounds(apart, equal);
    case Op::logical_and:
      return int_bounds(a.lo & b.lo, a.hi & b.hi);
    case Op::logical_or:
      return int_bounds(a.lo | b.lo, a.hi | b.hi);
    default:
      return any_int();
  }
}

}  // namespace attn::expr
