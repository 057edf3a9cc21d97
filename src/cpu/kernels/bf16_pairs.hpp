// bf16 operands as pairs: each 32-bit lane holds two neighbours along the summed dimension. Shared
// by VDPBF16PS (bf16.hpp) and AMX tiles (amx.hpp).
#pragma once

#include "cpu/kernels/pack_f32.hpp"

namespace attn::cpu::ATTN_ISA {

// The source is bf16 (scale 1). Rows of an odd dim end in a pair with zero.
static void pack_q_bf16(const std::byte* const* row, int count, int dim, CacheType, const float*,
                        float, void* q_t) {
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

// Elements [d, d + kLanes) of a row as bf16, in the low halves; those past dim and all of a null
// row are zero. Loads under a mask: a copy of a varying size is a call.
ATTN_INLINE U load_as_bf16(const std::byte* row, int d, int dim, CacheType source, float scale) {
  const int rest = dim - d;
  if (row == nullptr || rest <= 0) return U{};
  if (source == CacheType::bf16) {
    const __mmask16 within =
        rest >= kLanes ? __mmask16{0xffff} : static_cast<__mmask16>((1u << rest) - 1);
    return bit_cast<U>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(within, row + 2 * d)));
  }
  const F x = rest >= kLanes ? load_row(row, d, source) : load_row_part(row, d, rest, source);
  return widen(to_bf16(x * set1(scale)));
}

// Pairs of dims [d, d + kLanes) of two rows of bf16, of which either may be null: the low half from
// `even`, the high half from `odd`.
ATTN_INLINE U load_pairs(const std::byte* even, const std::byte* odd, int d, int dim) {
  return load_as_bf16(even, d, dim, CacheType::bf16, 1) |
         (load_as_bf16(odd, d, dim, CacheType::bf16, 1) << 16);
}

// out[0, bytes) <- the row as bf16, zero past dim; bytes: 2 dim or up to a whole vector of pairs.
ATTN_INLINE void pack_row_bf16(const std::byte* row, int dim, CacheType source, float scale,
                               std::size_t bytes, std::byte* out) {
  const std::size_t used = 2 * static_cast<std::size_t>(dim);
  if (row == nullptr) {
    __builtin_memset(out, 0, bytes);
  } else if (source == CacheType::bf16) {
    __builtin_memcpy(out, row, used);
    __builtin_memset(out + used, 0, bytes - used);
  } else {
    int d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      const H x = narrow(load_as_bf16(row, d, dim, source, scale));
      __builtin_memcpy(out + 2 * d, &x, sizeof(x));
    }
    if (d < dim) {
      const H x = narrow(load_as_bf16(row, d, dim, source, scale));
      __builtin_memcpy(out + 2 * d, &x, static_cast<std::size_t>(dim - d) * 2);
    }
    __builtin_memset(out + used, 0, bytes - used);
  }
}

// The same of rows j and j + 1 of `keys`, in any type of caches. scale: of each row; null: 1.
ATTN_INLINE U load_pairs(const std::byte* const* row, const float* scale, int j, int keys, int d,
                         int dim, CacheType source) {
  const auto half = [&](int of) __attribute__((always_inline)) {
    if (of >= keys) return U{};
    return load_as_bf16(row[of], d, dim, source, scale == nullptr ? 1.0f : scale[of]);
  };
  return half(j) | (half(j + 1) << 16);
}

}  // namespace attn::cpu::ATTN_ISA
