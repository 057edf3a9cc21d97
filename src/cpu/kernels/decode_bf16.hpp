// Decoding with products of bf16: pairs of dims of K times pairs of Q as they are, and pairs of
// keys of V times P, rounded to bf16 as the tiles of more rows round it. K of bf16 needs no
// widening; other types are rounded to bf16 once for all rows, which is exact for 8-bit numbers.
// This file puts K, V and P into the order of the products of AMX (decode_amx.hpp) and of VDPBF16PS
// (decode_dot.hpp). Head sizes are multiples of 32.
#pragma once

#include <algorithm>

#include "attn/problem.hpp"
#include "cpu/kernels/bf16_pairs.hpp"
#include "cpu/kernels/decode.hpp"

namespace attn::cpu::ATTN_ISA {

inline constexpr int kKeyPairs = kDecodeKeys / 2;
inline constexpr int kStagedPairs = kStagedKeys / 2;

// Stands in for keys that are not there: zero in every type.
alignas(64) static constexpr std::byte kZeroKey[kMaxHeadDim * sizeof(float)] = {};

// Whether numbers of the type, without scales of Inputs, are numbers of bf16.
template <CacheType kSource>
inline constexpr bool kIsExactBf16 = kSource == CacheType::bf16 || kSource == CacheType::i8 ||
                                     kSource == CacheType::e4m3 || kSource == CacheType::e5m2;

// Elements [d, d + 32) of a row.
template <CacheType kSource>
ATTN_INLINE U load_dim_pairs(const std::byte* row, int d) {
  if constexpr (kSource == CacheType::bf16) {
    return load_as<U>(row + 2 * static_cast<std::ptrdiff_t>(d));
  } else {
    return bit_cast<U>(
        _mm512_cvtne2ps_pbh(load_row(row, d + kLanes, kSource), load_row(row, d, kSource)));
  }
}

// The rows of kDecodeKeys keys, [key][dim], zero past the last.
struct StagedKeys {
  alignas(64) std::uint32_t words[kDecodeKeys * kMaxHeadDim / 2];
};
template <CacheType kSource>
ATTN_INLINE void stage_keys(const std::byte* const* k, int keys, int dim, StagedKeys& out) {
  for (int j = 0; j < kDecodeKeys; ++j) {
    const std::byte* const row = j < keys ? k[j] : kZeroKey;
    std::uint32_t* const to = out.words + j * dim / 2;
    for (int d = 0; d < dim; d += 2 * kLanes) store(to + d / 2, load_dim_pairs<kSource>(row, d));
  }
}

// A block's scale is made one quiet NaN where it is any, so that round_pairs() keeps it.
ATTN_INLINE F scale_or_nan(const std::byte* block) {
  const float scale = scale_of_block(block);
  return set1(scale == scale ? scale : __builtin_nanf(""));
}

// Two halves of elements [d, d + 32) of two rows as pairs: of the first row in the lower halves.
template <CacheType kSource>
struct KeyPairLoader {
  const std::byte *even, *odd;
  int d;
  inline __attribute__((always_inline))
  KeyPairLoader(const std::byte* of_even, const std::byte* of_odd, int at)
      : even(of_even), odd(of_odd), d(at) {}
  inline __attribute__((always_inline)) U operator()(int half) const {
    const F low = load_row(even, d + half, kSource), high = load_row(odd, d + half, kSource);
    if constexpr (kIsExactBf16<kSource>) {
      return (bit_cast<U>(low) >> 16) | bit_cast<U>(high);
    } else {
      return widen(bit_cast<H>(_mm512_cvtneps_pbh(low))) |
             widen(bit_cast<H>(_mm512_cvtneps_pbh(high))) << 16;
    }
  }
};
template <>
struct KeyPairLoader<CacheType::q8_0> {
  const std::byte *even, *odd;
  F scale_even, scale_odd;
  inline __attribute__((always_inline))
  KeyPairLoader(const std::byte* of_even, const std::byte* of_odd, int at)
      : even(of_even + at / 32 * std::ptrdiff_t{34}),
        odd(of_odd + at / 32 * std::ptrdiff_t{34}),
        scale_even(scale_or_nan(even)),
        scale_odd(scale_or_nan(odd)) {}
  inline __attribute__((always_inline)) U operator()(int half) const {
    const F low = from_i8(load_as<B>(even + 2 + half)) * scale_even;
    const F high = from_i8(load_as<B>(odd + 2 + half)) * scale_odd;
    // Halves go away from zero: four operations, where the conversion takes two cycles.
    return bit_cast<U>(
        _mm512_mask_blend_epi16(0xaaaaaaaau, bit_cast<__m512i>((bit_cast<U>(low) + 0x8000u) >> 16),
                                bit_cast<__m512i>(bit_cast<U>(high) + 0x8000u)));
  }
};

// out [pair][dim] <- kKeyPairs pairs of neighbouring keys, zero past the last.
template <CacheType kSource>
ATTN_INLINE void stage_values(const std::byte* const* v, int keys, int dim, std::uint32_t* out) {
  for (int t = 0; t < kKeyPairs; ++t) {
    const std::byte* const even = 2 * t < keys ? v[2 * t] : kZeroKey;
    const std::byte* const odd = 2 * t + 1 < keys ? v[2 * t + 1] : kZeroKey;
    std::uint32_t* const to = out + t * dim;
    for (int d = 0; d < dim; d += 2 * kLanes) {
      if constexpr (kSource == CacheType::bf16) {
        // Interleaving takes the lower eight bytes of each 16, which these bring there: one slot
        // each, where a permutation of words of two vectors takes three on Intel.
        const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        const std::ptrdiff_t at = 2 * static_cast<std::ptrdiff_t>(d);
        const __m512i x = _mm512_permutexvar_epi64(order, load_as<__m512i>(even + at));
        const __m512i y = _mm512_permutexvar_epi64(order, load_as<__m512i>(odd + at));
        store(to + d, bit_cast<U>(_mm512_unpacklo_epi16(x, y)));
        store(to + d + kLanes, bit_cast<U>(_mm512_unpackhi_epi16(x, y)));
      } else {
        const KeyPairLoader<kSource> load_pairs_of(even, odd, d);
        store(to + d, load_pairs_of(0));
        store(to + d + kLanes, load_pairs_of(kLanes));
      }
    }
  }
}

// P of kStagedKeys keys rounded to bf16, [row][key], zero past the last.
struct StagedWeights {
  alignas(64) std::uint32_t words[kMaxDecodeRows * kStagedPairs];
};
template <int kStride>
ATTN_INLINE void stage_weights_of(const float* p, int keys, StagedWeights& out) {
  // Vectors of kDecodeKeys keys. Word i of what is made of them: key i % kDecodeKeys of row
  // i / kDecodeKeys.
  constexpr int kParts = kStride == kMaxDecodeRows ? 4 : kStride == 4 ? 2 : 1;
  alignas(64) std::uint16_t order[2 * kLanes];
  for (int i = 0; i < 2 * kLanes; ++i) {
    order[i] = static_cast<std::uint16_t>((i % kDecodeKeys) * kStride + i / kDecodeKeys);
  }
  const __m512i index = _mm512_load_si512(order);
  const auto round = [&](int i) __attribute__((always_inline)) {
    const int rest = keys * kStride - i * kLanes;
    const auto within = static_cast<__mmask16>(rest >= kLanes ? 0xffff
                                               : rest <= 0    ? 0
                                                              : (1 << rest) - 1);
    return bit_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(within, p + i * kLanes)));
  };
  const auto round_two = [&](int i) __attribute__((always_inline)) {
    const __m512i low = _mm512_castsi256_si512(round(i));
    return kParts == 1 ? low : _mm512_inserti64x4(low, round(i + 1), 1);
  };
  for (int group = 0; group < kStagedKeys / kDecodeKeys;
       ++group, p += kDecodeKeys * kStride, keys -= kDecodeKeys) {
    const auto save = [&](int first_row, __m512i rows) __attribute__((always_inline)) {
      std::uint32_t* const to = out.words + first_row * kStagedPairs + group * kKeyPairs;
      _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm512_castsi512_si128(rows));
      const auto save_row = [&]<int kRow>() __attribute__((always_inline)) {
        _mm_store_si128(reinterpret_cast<__m128i*>(to + (kRow + 1) * kStagedPairs),
                        _mm512_extracti32x4_epi32(rows, kRow + 1));
      };
      for_each_number<std::min(kStride, 4) - 1>(save_row);
    };
    const __m512i first = round_two(0);
    if constexpr (kStride == kMaxDecodeRows) {
      const __m512i second = round_two(2);
      const __m512i later = _mm512_add_epi16(index, _mm512_set1_epi16(4));
      save(0, _mm512_permutex2var_epi16(first, index, second));
      save(4, _mm512_permutex2var_epi16(first, later, second));
    } else {
      save(0, _mm512_permutexvar_epi16(index, first));
    }
  }
}
ATTN_INLINE void stage_weights(const float* p, int count, int keys, StagedWeights& out) {
  switch (decode_row_stride(count)) {
    case 1:
      return stage_weights_of<1>(p, keys, out);
    case 2:
      return stage_weights_of<2>(p, keys, out);
    case 4:
      return stage_weights_of<4>(p, keys, out);
    default:
      return stage_weights_of<kMaxDecodeRows>(p, keys, out);
  }
}

static void decode_stage_values(const std::byte* const* v, const std::byte* const* ahead, int keys,
                                int dim, CacheType source, void* pairs) {
  ask_for(ahead, keys, static_cast<int>(core::row_bytes(source, dim)));
  with_cache_type(source, [&]<CacheType kSource>() {
    stage_values<kSource>(v, keys, dim, static_cast<std::uint32_t*>(pairs));
  });
}

}  // namespace attn::cpu::ATTN_ISA
