// 8-bit floats by their bits (Open Compute Project, OFP8, 2023), for the reference and for tests.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attn/matmul.hpp"

namespace attn::core {

constexpr double power_of_two(int exponent) {  // as std::ldexp(1, exponent), which is not constexpr
  double power = 1;
  for (; exponent > 0; --exponent) power *= 2;
  for (; exponent < 0; ++exponent) power /= 2;
  return power;
}

// The number of a code by the definition; float8_value has it from a table.
constexpr double computed_float8_value(std::uint8_t bits, Float8 format) {
  const bool e4m3 = format == Float8::e4m3;
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const int magnitude = bits & 0x7f, exponent = magnitude >> mantissa_bits;
  const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
  double value = exponent == 0 ? mantissa * power_of_two(1 - bias - mantissa_bits)
                               : (mantissa + (1 << mantissa_bits)) *
                                     power_of_two(exponent - bias - mantissa_bits);
  if (e4m3 && magnitude == 0x7f) value = std::numeric_limits<double>::quiet_NaN();
  if (!e4m3 && magnitude >= 0x7c) {
    value = magnitude == 0x7c ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  }
  return bits >> 7 != 0 ? -value : value;
}

using Float8Values = std::array<double, 256>;  // of each code
constexpr Float8Values float8_values(Float8 format) {
  Float8Values values{};
  for (std::size_t bits = 0; bits < values.size(); ++bits) {
    values[bits] = computed_float8_value(static_cast<std::uint8_t>(bits), format);
  }
  return values;
}
inline constexpr Float8Values kE4m3Values = float8_values(Float8::e4m3);
inline constexpr Float8Values kE5m2Values = float8_values(Float8::e5m2);
inline double float8_value(std::uint8_t bits, Float8 format) {
  return format == Float8::e4m3 ? kE4m3Values[bits] : kE5m2Values[bits];
}

// The bits of the number nearest to x, ties to even; the largest number where x is larger.
inline std::uint8_t float8_bits(double x, Float8 format) {
  const int largest = format == Float8::e4m3 ? 0x7e : 0x7b;
  const double size = std::abs(x);
  int low = 0, high = largest;  // codes of positive numbers grow with them
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (float8_value(static_cast<std::uint8_t>(middle), format) <= size ? low : high) = middle;
  }
  const double below = size - float8_value(static_cast<std::uint8_t>(low), format);
  const double above = float8_value(static_cast<std::uint8_t>(high), format) - size;
  const bool up = above < below || (above == below && low % 2 != 0);
  return static_cast<std::uint8_t>((up ? high : low) | (std::signbit(x) ? 0x80 : 0));
}

}  // namespace attn::core
