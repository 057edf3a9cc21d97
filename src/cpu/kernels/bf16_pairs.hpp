// bf16 operands as pairs: each 32-bit lane holds two neighbours along the summed dimension. Shared
// by VDPBF16PS and BFDOT (bf16.hpp) and AMX tiles (amx.hpp).
#pragma once

#include "cpu/kernels/pack_f32.hpp"

namespace attn::cpu::ATTN_ISA {

// A vector of pairs, of which the first `rest` elements are at p and the others zero.
#if ATTN_VECTOR_BYTES == 64
ATTN_INLINE __mmask32 elements_within(int rest) {
  return rest < 2 * kLanes ? (std::uint32_t{1} << rest) - 1 : 0xffffffffu;
}
ATTN_INLINE U load_words(const std::byte* p, __mmask32 within) {
  return bit_cast<U>(_mm512_maskz_loadu_epi16(within, p));
}
#else
ATTN_INLINE int elements_within(int rest) { return rest < 2 * kLanes ? rest : 2 * kLanes; }
ATTN_INLINE U load_words(const std::byte* p, int within) {
  if (within == 2 * kLanes) return load_as<U>(p);
  U x{};
  __builtin_memcpy(&x, p, 2 * static_cast<std::size_t>(within));
  return x;
}
#endif

// The source is bf16 (scale 1). Rows of an odd dim end in a pair with zero.
static void pack_q_bf16(const std::byte* const* row, int count, int dim, CacheType, const float*,
                        float, void* q_t) {
  std::uint32_t* out = static_cast<std::uint32_t*>(q_t);
  const int pairs = (dim + 1) / 2;
  for (int r0 = 0; r0 < kRows; r0 += kLanes) {
    for (int d0 = 0; d0 < pairs; d0 += kLanes) {
      const auto within = elements_within(dim - 2 * d0);
      F x[kLanes] = {};
      for (int r = 0; r < kLanes && r0 + r < count; ++r) {
        const std::byte* p = row[r0 + r];
        if (p == nullptr) continue;
        x[r] = bit_cast<F>(load_words(p + 4 * d0, within));
      }
      transpose(x);
      for (int d = 0; d < kLanes && d0 + d < pairs; ++d) {
        store(out + (d0 + d) * kRows + r0, bit_cast<U>(x[d]));
      }
    }
  }
}

// Elements [d, d + kLanes) of a row as bf16, in the low halves; those past dim and all of a null
// row are zero. AVX-512 loads under a mask: a copy of a varying size is a call.
ATTN_INLINE U load_as_bf16(const std::byte* row, int d, int dim, CacheType source, float scale) {
  const int rest = dim - d;
  if (row == nullptr || rest <= 0) return U{};
  if (source == CacheType::bf16) {
#if ATTN_VECTOR_BYTES == 64
    const __mmask16 within =
        rest >= kLanes ? __mmask16{0xffff} : static_cast<__mmask16>((1u << rest) - 1);
    return bit_cast<U>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(within, row + 2 * d)));
#else
    if (rest >= kLanes) return widen(load_as<H>(row + 2 * d));
    H x{};
    __builtin_memcpy(&x, row + 2 * d, 2 * static_cast<std::size_t>(rest));
    return widen(x);
#endif
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
