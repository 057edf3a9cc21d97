// The meaning of each operation on scalars. Constant folding and evaluate() both use it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "attn/expr.hpp"

namespace attn::expr {

// Reduces modulo 2^32 into int32. Sums, differences and products of int32 values fit int64.
constexpr std::int32_t wrap(std::int64_t value) noexcept {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(value));
}

constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) noexcept {
  if (b == 0) return 0;
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

constexpr std::int64_t floor_mod(std::int64_t a, std::int64_t b) noexcept {
  return b == 0 ? 0 : a - floor_div(a, b) * b;
}

// Shifts: an amount outside of 0 to 31 shifts every bit out.
constexpr std::int64_t shift_left(std::int64_t a, std::int64_t amount) noexcept {
  return amount >= 0 && amount <= 31 ? a * (std::int64_t{1} << amount) : 0;
}
constexpr std::int64_t shift_right(std::int64_t a, std::int64_t amount) noexcept {
  return a >> (amount >= 0 && amount <= 31 ? amount : 31);
}

// Toward zero; the nearest bound of int32 where the value lies outside, 0 where it is NaN.
template <class Real>
constexpr std::int32_t truncate(Real value) noexcept {
  constexpr Real kEnd = 2147483648;
  if (value != value) return 0;
  if (value >= kEnd) return std::numeric_limits<std::int32_t>::max();
  return value <= -kEnd ? std::numeric_limits<std::int32_t>::min()
                        : static_cast<std::int32_t>(value);
}

// i holds int32 and boolean (0 or 1) values, f float32 ones.
template <class Real>
struct Value {
  std::int32_t i = 0;
  Real f = 0;
};

template <class Real>
Value<Real> of_int(std::int64_t value) noexcept {
  return {wrap(value), 0};
}
template <class Real>
Value<Real> of_float(Real value) noexcept {
  return {0, value};
}

// op on operands of type `operands` (of its branches for select, whose condition is c). Operations
// of fewer operands ignore the rest.
template <class Real>
Value<Real> apply_scalar(Op op, Type operands, Value<Real> a, Value<Real> b, bool c) noexcept {
  const bool is_float = operands == Type::float32;
  const std::int64_t i = a.i;
  const std::int64_t j = b.i;
  switch (op) {
    case Op::neg:
      return is_float ? of_float<Real>(-a.f) : of_int<Real>(-i);
    case Op::logical_not:
      return of_int<Real>(1 - i);
    case Op::abs:
      return is_float ? of_float<Real>(std::fabs(a.f)) : of_int<Real>(i < 0 ? -i : i);
    case Op::exp:
      return of_float<Real>(std::exp(a.f));
    case Op::exp2:
      return of_float<Real>(std::exp2(a.f));
    case Op::log:
      return of_float<Real>(std::log(a.f));
    case Op::tanh:
      return of_float<Real>(std::tanh(a.f));
    case Op::erf:
      return of_float<Real>(std::erf(a.f));
    case Op::sin:
      return of_float<Real>(std::sin(a.f));
    case Op::cos:
      return of_float<Real>(std::cos(a.f));
    case Op::sqrt:
      return of_float<Real>(std::sqrt(a.f));
    case Op::to_float:
      return of_float<Real>(static_cast<Real>(a.i));
    case Op::floor:
      return of_float<Real>(std::floor(a.f));
    case Op::to_int:
      return of_int<Real>(is_float ? truncate(a.f) : i);
    case Op::add:
      return is_float ? of_float<Real>(a.f + b.f) : of_int<Real>(i + j);
    case Op::sub:
      return is_float ? of_float<Real>(a.f - b.f) : of_int<Real>(i - j);
    case Op::mul:
      return is_float ? of_float<Real>(a.f * b.f) : of_int<Real>(i * j);
    case Op::div:
      return is_float ? of_float<Real>(a.f / b.f) : of_int<Real>(floor_div(i, j));
    case Op::mod:
      return of_int<Real>(floor_mod(i, j));
    case Op::bit_and:
    case Op::logical_and:
      return of_int<Real>(i & j);
    case Op::bit_or:
    case Op::logical_or:
      return of_int<Real>(i | j);
    case Op::bit_xor:
      return of_int<Real>(i ^ j);
    case Op::shift_left:
      return of_int<Real>(shift_left(i, j));
    case Op::shift_right:
      return of_int<Real>(shift_right(i, j));
    case Op::min:
      return (is_float ? a.f < b.f : i < j) ? a : b;
    case Op::max:
      return (is_float ? a.f > b.f : i > j) ? a : b;
    case Op::lt:
      return of_int<Real>(is_float ? a.f < b.f : i < j);
    case Op::le:
      return of_int<Real>(is_float ? a.f <= b.f : i <= j);
    case Op::eq:
      return of_int<Real>(is_float ? a.f == b.f : i == j);
    case Op::ne:
      return of_int<Real>(is_float ? a.f != b.f : i != j);
    case Op::select:
      return c ? a : b;
    default:
      return {};
  }
}

}  // namespace attn::expr
