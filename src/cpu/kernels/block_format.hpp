// Weights in blocks (attn::BlockFormat) as f32 vectors. Each element is what the format says,
// rounded once: numbers of q8_0 and q4_0 are f32 numbers, d q + m is rounded by an FMA.
#pragma once

#include "core/block_format.hpp"
#include "cpu/kernels/convert.hpp"

namespace attn::cpu::ATTN_ISA {

inline constexpr int kBlockVectors = static_cast<int>(core::kBlockElements) / kLanes;

ATTN_INLINE F load_q4_1(const std::byte* row, int i) {
  const std::byte* const block = row + static_cast<std::ptrdiff_t>(i / 32) * 20;
  return fma(from_nibbles(block + 4, i), set1(scale_of_block(block)),
             set1(scale_of_block(block + 2)));
}

// kLanes elements from i on, a multiple of kLanes. The format is one of blocks.
ATTN_INLINE F load_block(const std::byte* row, int i, BlockFormat format) {
  switch (format) {
    case BlockFormat::none:
      break;
    case BlockFormat::q8_0:
      return load_q8_0(row, i);
    case BlockFormat::q4_0:
      return load_q4_0(row, i);
    case BlockFormat::q4_1:
      return load_q4_1(row, i);
  }
  return F{};
}

// Runs body<format>() of a format of blocks.
template <class Body>
ATTN_INLINE void with_block_format(BlockFormat format, const Body& body) {
  switch (format) {
    case BlockFormat::none:
    case BlockFormat::q8_0:
      break;
    case BlockFormat::q4_0:
      return body.template operator()<BlockFormat::q4_0>();
    case BlockFormat::q4_1:
      return body.template operator()<BlockFormat::q4_1>();
  }
  body.template operator()<BlockFormat::q8_0>();
}

#if ATTN_VECTOR_BYTES == 64
// The sixteen numbers that 4 bits stand for are a vector, which the bits pick from.
template <BlockFormat kFormat>
ATTN_INLINE F numbers_of_nibbles(const std::byte* block) {
  const F codes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const F d = from_f16(H{} + load_as<std::uint16_t>(block));
  if constexpr (kFormat == BlockFormat::q4_0) return (codes - set1(8.0F)) * d;
  return fma(codes, d, from_f16(H{} + load_as<std::uint16_t>(block + 2)));
}
#endif

// y <- the elements of a block.
template <BlockFormat kFormat>
ATTN_INLINE void widen_block(const std::byte* block, F (&y)[kBlockVectors]) {
#if ATTN_VECTOR_BYTES == 64
  if constexpr (kFormat != BlockFormat::q8_0) {
    const F numbers = numbers_of_nibbles<kFormat>(block);
    const std::byte* const codes = block + (kFormat == BlockFormat::q4_0 ? 2 : 4);
    const __m512i pairs = _mm512_cvtepu8_epi32(load_as<__m128i>(codes));
    y[0] = _mm512_permutexvar_ps(pairs, numbers);  // by the lower four bits
    y[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), numbers);
    return;
  }
#endif
#pragma GCC unroll 8
  for (int v = 0; v < kBlockVectors; ++v) y[v] = load_block(block, v * kLanes, kFormat);
}

}  // namespace attn::cpu::ATTN_ISA
