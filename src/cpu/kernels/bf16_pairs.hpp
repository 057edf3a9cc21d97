// bf16 operands as pairs: each 32-bit lane holds two neighbours along the summed dimension. Shared
// by VDPBF16PS (bf16.hpp) and AMX tiles (amx.hpp).
#pragma once

#include "cpu/kernels/pack_f32.hpp"

namespace attn::cpu::ATTN_ISA {

// The source is bf16 (scale 1). Rows of an odd dim end in a pair with zero.
static void pack_q_bf16(const std::byte* const* row, int count, int dim, DType, float, void* q_t) {
  std::uint32_t* out = static_cast<std::uint32_t*>(q_t);
  const int pairs = (dim + 1) / 2;
  for (int r0 = 0; r0 < kRows; r0 += kLanes) {
    for (int d0 = 0; d0 < pairs; d0 += kLanes) {
      const int bytes = 2 * dim - 4 * d0;
      F x[kLanes] = {};
      for (int r = 0; r < kLanes && r0 + r < count; ++r) {
        const std::byte* p = row[r0 + r];
        if (p == nullptr) continue;
        __builtin_memcpy(&x[r], p + 4 * d0, static_cast<std::size_t>(bytes < 64 ? bytes : 64));
      }
      transpose(x);
      for (int d = 0; d < kLanes && d0 + d < pairs; ++d) {
        store(out + (d0 + d) * kRows + r0, bit_cast<U>(x[d]));
      }
    }
  }
}

// Pairs of dims [d, d + kLanes) of two rows: the low half from `even`, the high half from `odd`; a
// null row and dims past the end are zero.
ATTN_INLINE U load_pairs(const std::byte* even, const std::byte* odd, int d, int dim) {
  const int rest = dim - d < kLanes ? dim - d : kLanes;
  H low{}, high{};
  if (rest > 0) {
    const auto bytes = 2 * static_cast<std::size_t>(rest);
    if (even != nullptr) __builtin_memcpy(&low, even + 2 * static_cast<std::ptrdiff_t>(d), bytes);
    if (odd != nullptr) __builtin_memcpy(&high, odd + 2 * static_cast<std::ptrdiff_t>(d), bytes);
  }
  return widen(low) | (widen(high) << 16);
}

}  // namespace attn::cpu::ATTN_ISA
