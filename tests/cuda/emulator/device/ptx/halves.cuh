#pragma once

namespace attn::device {

// As f16 compares them: a `least` above infinity, 0x7c00, is not a number, and none is less.
inline unsigned halves_at_least(unsigned x, unsigned least) {
  const auto not_less = [](unsigned size, unsigned than) { return size >= than || than > 0x7c00u; };
  return (not_less(x & 0x7fffu, least & 0xffffu) ? 0xffffu : 0u) |
         (not_less(x >> 16 & 0x7fffu, least >> 16) ? 0xffff0000u : 0u);
}
inline unsigned take_bytes(unsigned x, unsigned y, unsigned bytes) {
  const unsigned from[8] = {x, x >> 8, x >> 16, x >> 24, y, y >> 8, y >> 16, y >> 24};
  unsigned z = 0;
  for (unsigned i = 0; i < 4; ++i) z |= (from[bytes >> 4 * i & 7] & 0xff) << 8 * i;
  return z;
}
template <int kFirst>
unsigned signs_of_bytes(unsigned x) {
  const unsigned lowest = x >> (7 + 8 * kFirst) & 0x10001u;
  return lowest * 0xffffu;
}

}  // namespace attn::device
