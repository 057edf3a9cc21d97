// 16-bit floats as float, exactly: for loops over many of them.
#pragma once

#include <bit>
#include <cstdint>

#include "attn/tensor.hpp"

namespace attn::core {

inline float widen(bfloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
inline float widen(float16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = x.bits & 0x3ffu;
  // Of a subnormal, in units of 2^-24.
  std::uint32_t magnitude = std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
  if (exponent == 0x1fu) {
    magnitude = 0x7f800000u | mantissa << 13;
  } else if (exponent != 0) {
    magnitude = (exponent + 112u) << 23 | mantissa << 13;
  }
  return std::bit_cast<float>(sign | magnitude);
}

}  // namespace attn::core
