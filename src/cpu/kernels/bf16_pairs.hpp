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
      const int rest = dim - 2 * d0;
      const __mmask32 within = rest < 2 * kLanes ? (std::uint32_t{1} << rest) - 1 : 0xffffffffu;
      F x[kLanes] = {};
      for (int r = 0; r < kLanes && r0 + r < count; ++r) {
        const std::byte* p = row[r0 + r];
        if (p == nullptr) continue;
        x[r] = bit_cast<F>(_mm512_maskz_loadu_epi16(within, p + 4 * d0));
      }
      transpose(x);
      for (int d = 0; d < kLanes && d0 + d < pairs; ++d) {
        store(out + (d0 + d) * kRows + r0, bit_cast<U>(x[d]));
      }
    }
  }
}

// Pairs of dims [d, d + kLanes) of two rows: the low half from `even`, the high half from `odd`; a
// null row and dims past the end are zero. Loads under a mask: a copy of a varying size is a call.
ATTN_INLINE U load_pairs(const std::byte* even, const std::byte* odd, int d, int dim) {
  const int rest = dim - d;
  const __mmask16 within = rest >= kLanes
                               ? __mmask16{0xffff}
                               : static_cast<__mmask16>((1u << (rest > 0 ? rest : 0)) - 1);
  const auto half = [&](const std::byte* row) __attribute__((always_inline)) {
    if (row == nullptr) return U{};
    return bit_cast<U>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(within, row + 2 * d)));
  };
  return half(even) | (half(odd) << 16);
}

}  // namespace attn::cpu::ATTN_ISA
