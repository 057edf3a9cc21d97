#pragma once

#include "math.cuh"

namespace attn::device {

// As f16 compares them: a `least` above infinity, 0x7c00, is not a number, and none is less.
inline unsigned halves_at_least(unsigned x, unsigned least) {
  const auto not_less = [](unsigned size, unsigned than) { return size >= than || than > 0x7c00u; };
  return (not_less(x & 0x7fffu, least & 0xffffu) ? 0xffffu : 0u) |
         (not_less(x >> 16 & 0x7fffu, least >> 16) ? 0xffff0000u : 0u);
}
inline unsigned ones_at_least(unsigned x, unsigned least) {
  return halves_at_least(x, least) & 0x3c003c00u;
}
inline constexpr float kOneOfF16AsBF16 = 0x1p-7f;
inline unsigned times_ones_f16(unsigned p, unsigned ones) { return ones / 0x3c00u * 0xffffu & p; }
inline unsigned times_ones_bf16(unsigned p, unsigned ones) {
  unsigned y = 0;
  for (const unsigned shift : {0u, 16u}) {
    const float half = __builtin_bit_cast(float, p >> shift << 16);
    const float x = (ones >> shift & 0xffffu) != 0 ? half * kOneOfF16AsBF16 : half * 0;
    y |= __builtin_bit_cast(unsigned, x) >> 16 << shift;
  }
  return y;
}
inline unsigned take_bytes(unsigned x, unsigned y, unsigned bytes) {
  const unsigned from[8] = {x, x >> 8, x >> 16, x >> 24, y, y >> 8, y >> 16, y >> 24};
  unsigned z = 0;
  for (unsigned i = 0; i < 4; ++i) z |= (from[bytes >> 4 * i & 7] & 0xff) << 8 * i;
  return z;
}
inline unsigned and_or(unsigned x, unsigned mask, unsigned bits) { return (x & mask) | bits; }
inline unsigned and_xor(unsigned x, unsigned mask, unsigned bits) { return (x & mask) ^ bits; }
template <int kFirst>
unsigned signs_of_bytes(unsigned x) {
  const unsigned lowest = x >> (7 + 8 * kFirst) & 0x10001u;
  return lowest * 0xffffu;
}

}  // namespace attn::device
