#pragma once

namespace attn::device {

inline unsigned halves_at_least(unsigned x, unsigned t) {
  return ((x & 0xffffu) >= t ? 1u : 0u) | (x >> 16 >= t ? 0x10000u : 0u);
}
inline unsigned keep_halves(unsigned both, unsigned x, unsigned t) {
  return both & halves_at_least(x, t) * 0xffffu;
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
