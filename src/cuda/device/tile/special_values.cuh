// Infinities and NaN among 16-bit elements in shared memory: a weight of 0 does not undo them.
#pragma once

#include "device.cuh"
#include "tile/accumulator.cuh"

namespace attn::device {

// Whether this thread's share of `bytes` (a multiple of 16) at offset `at` of shared memory, a
// multiple of 16, holds one.
template <class Element, int kThreads>
ATTN_DEVICE bool holds_special(int at, int bytes) {
  extern __shared__ __align__(128) char memory[];
  const auto* words = reinterpret_cast<const Words4*>(memory + at);
  // Without its sign such an element is at least the exponent's bits, all ones: what is added
  // carries into the sign's place. Example: bf16 0x7f80 + 0x80 = 0x8000.
  constexpr unsigned kBoth = 0x10001u, kMagnitude = 0x7fff * kBoth;
  constexpr unsigned kCarry = (0x8000 - Element::kExponent) * kBoth;
  unsigned carried = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += kThreads) {
    const Words4 x = words[i];
    carried |= ((x.x & kMagnitude) + kCarry) | ((x.y & kMagnitude) + kCarry) |
               ((x.z & kMagnitude) + kCarry) | ((x.w & kMagnitude) + kCarry);
  }
  return (carried & ~kMagnitude) != 0;
}

}  // namespace attn::device
