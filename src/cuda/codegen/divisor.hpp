// What kernels know of a number that they divide by.
#pragma once

#include <bit>
#include <cstdint>

namespace attn::cuda {

// Both mirror those of attn::device in src/cuda/device/expr/integer.cuh, which says what the
// numbers are for.
struct Multiples {
  std::uint32_t inverse = 0, offset = 0, twos = 0, most = 0;
};
struct Divisor {
  std::int32_t value = 0;
  std::uint32_t multiplier = 0, shift = 0, one = 0;
  std::int32_t mask = 0;
  Multiples multiples;
};

// The number that x is multiplied by, modulo 2^32, for 1; x is odd. Each step of Newton's method
// doubles the bits that are right, of which x itself has three.
constexpr std::uint32_t inverse_of(std::uint32_t x) {
  std::uint32_t inverse = x;
  for (int bits = 3; bits < 32; bits *= 2) inverse *= 2 - x * inverse;
  return inverse;
}

// What tells whether d > 0 divides an int32 x. It does where it divides y = x + 2^31 - r, with r =
// 2^31 mod d; y is in [-r, 2^32 - 1 - r], and wraps to 2^32 + y where it is below 0. With d = o 2^t
// and o odd, a word's product by the inverse of o, rotated to the right by t, is another for each
// word, and q for q d (H. S. Warren, "Hacker's Delight", section 10-17). So the words q d up to
// 2^32 - 1 - r are those whose results are q <= (2^32 - 1 - r) / d, and words above are y below 0.
constexpr Multiples multiples_of(std::uint32_t d) {
  constexpr std::uint32_t kHalf = 1U << 31;
  const std::uint32_t rest = kHalf % d;
  const auto twos = static_cast<std::uint32_t>(std::countr_zero(d));
  const std::uint32_t inverse = inverse_of(d >> twos);
  return {inverse, (kHalf - rest) * inverse, twos, (~0U - rest) / d};
}

constexpr std::uint32_t magnitude_of(std::int32_t value) {
  const auto word = static_cast<std::uint32_t>(value);
  return value < 0 ? 0U - word : word;
}

// With d = |value| and 2^(s - 1) < d <= 2^s the multiplier is m = ceil(2^(31 + s) / d), below 2^32,
// and m d = 2^(31 + s) + e with e < d. So m x / 2^(31 + s) is above x / d by x e / (d 2^(31 + s)),
// for x <= 2^31 less than 1 / d, which leaves the quotient as it is (Granlund and Montgomery,
// "Division by Invariant Integers using Multiplication", 1994, theorem 4.2). The shift is s - 1, as
// the upper word is shifted by 32 already; where d = 1 it would be -1, and the quotient is x.
constexpr Divisor divisor_of(std::int32_t value) {
  if (value == 0) return {};
  const std::uint32_t d = magnitude_of(value);
  Divisor divisor{.value = value, .mask = -1, .multiples = multiples_of(d)};
  if (d == 1) {
    divisor.one = 1;
    return divisor;
  }
  const auto s = static_cast<unsigned>(std::bit_width(d - 1));
  const std::uint64_t power = std::uint64_t{1} << (31 + s);
  divisor.multiplier = static_cast<std::uint32_t>((power + d - 1) / d);
  divisor.shift = s - 1;
  return divisor;
}

}  // namespace attn::cuda
