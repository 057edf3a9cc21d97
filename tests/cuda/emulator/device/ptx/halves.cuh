#pragma once

namespace attn::device {

inline unsigned halves_at_least(unsigned x, unsigned t) {
  return ((x & 0xffffu) >= t ? 1u : 0u) | (x >> 16 >= t ? 0x10000u : 0u);
}
inline unsigned keep_halves(unsigned both, unsigned x, unsigned t) {
  return both & halves_at_least(x, t) * 0xffffu;
}
template <int kFirst>
unsigned signs_of_bytes(unsigned x) {
  const unsigned lowest = x >> (7 + 8 * kFirst) & 0x10001u;
  return lowest * 0xffffu;
}

}  // namespace attn::device
