// What a kernel divides by that is no constant of it.
#pragma once

#include <bit>
#include <cstdint>

namespace attn::cuda {

// Mirrors attn::device::Divisor in src/cuda/device/expr/integer.cuh, which says what the numbers
// are for.
struct Divisor {
  std::int32_t value = 0;
  std::uint32_t multiplier = 0, shift = 0, one = 0;
  std::int32_t mask = 0;
};

// With d = |value| and 2^(s - 1) < d <= 2^s the multiplier is m = ceil(2^(31 + s) / d), below 2^32,
// and m d = 2^(31 + s) + e with e < d. So m x / 2^(31 + s) is above x / d by x e / (d 2^(31 + s)),
// for x <= 2^31 less than 1 / d, which leaves the quotient as it is (Granlund and Montgomery,
// "Division by Invariant Integers using Multiplication", 1994, theorem 4.2). The shift is s - 1, as
// the upper word is shifted by 32 already; where d = 1 it would be -1, and the quotient is x.
constexpr Divisor divisor_of(std::int32_t value) {
  if (value == 0) return {};
  const std::uint32_t d =
      value < 0 ? 0U - static_cast<std::uint32_t>(value) : static_cast<std::uint32_t>(value);
  if (d == 1) return {value, 0, 0, 1, -1};
  const auto s = static_cast<unsigned>(std::bit_width(d - 1));
  const std::uint64_t power = std::uint64_t{1} << (31 + s);
  return {value, static_cast<std::uint32_t>((power + d - 1) / d), s - 1, 0, -1};
}

}  // namespace attn::cuda
