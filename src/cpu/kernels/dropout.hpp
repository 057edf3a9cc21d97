// The dropout bits of a tile, sixteen (eight, four) Philox generators at a time. Bit for bit
// core/philox.hpp.
#pragma once

#include "core/philox.hpp"
#include "cpu/kernels/vec.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

// High and low halves of the 64-bit products a * b.
ATTN_INLINE void multiply_wide(U a, std::uint32_t b, U& high, U& low) {
  low = a * b;
#if ATTN_VECTOR_BYTES == 64
  const __m512i x = bit_cast<__m512i>(a);
  const __m512i y = _mm512_set1_epi64(b);
  const U even = bit_cast<U>(_mm512_mul_epu32(x, y));
  const U odd = bit_cast<U>(_mm512_mul_epu32(_mm512_srli_epi64(x, 32), y));
  high = bit_cast<U>(_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(bit_cast<__m512i>(even), 32),
                                             bit_cast<__m512i>(odd)));
#else
  for (int i = 0; i < kLanes; ++i) {
    high[i] = static_cast<std::uint32_t>((std::uint64_t{a[i]} * b) >> 32);
  }
#endif
}

// Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", with the constants of the
// paper.
ATTN_INLINE void philox4x32(U (&x)[4], std::uint32_t key0, std::uint32_t key1) {
  for (std::uint32_t round = 0; round < core::kPhiloxRounds; ++round) {
    U high0, low0, high1, low1;
    multiply_wide(x[0], 0xD2511F53u, high0, low0);
    multiply_wide(x[2], 0xCD9E8D57u, high1, low1);
    x[0] = high1 ^ x[1] ^ key0;
    x[1] = low1;
    x[2] = high0 ^ x[3] ^ key1;
    x[3] = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

ATTN_INLINE std::uint32_t lane_bits(I condition) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_movepi32_mask(bit_cast<__m512i>(condition));
#elif ATTN_VECTOR_BYTES == 32
  return static_cast<std::uint32_t>(_mm256_movemask_ps(bit_cast<__m256>(condition)));
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= condition[i] != 0 ? 1u << i : 0u;
  return bits;
#endif
}

static void dropout_keep(const DropoutTile& tile, int key0, int keys, std::uint32_t* keep) {
  const auto seed_low = static_cast<std::uint32_t>(tile.seed);
  const auto seed_high =
      static_cast<std::uint32_t>(tile.seed >> 32) ^ static_cast<std::uint32_t>(tile.offset >> 32);
  const core::DropoutRule rule = core::dropout_rule(tile.threshold);
  const std::uint32_t limit = rule.least << 17;
  for (int j = 0; j < keys; ++j) keep[j] = rule.flipped ? ~0u : 0u;
  for (int v = 0; v < kVectors; ++v) {
    const int lane = v * kLanes;
    for (int group = -(key0 % 64); group < keys; group += 64) {  // of 64 keys
      for (int quad = 0; quad < 4; ++quad) {
        const auto call = static_cast<std::uint32_t>((key0 + group) / 64 * 4 + quad);
        U x[4] = {call + U{}, bit_cast<U>(load(tile.query + lane)), load(tile.batch_head + lane),
                  static_cast<std::uint32_t>(tile.offset) + U{}};
        philox4x32(x, seed_low, seed_high);
#pragma GCC unroll 8  // so that words stay in registers
        for (int t = 0; t < 8; ++t) {
          const int j = group + t * 8 + quad * 2;
          if (j < 0) continue;
          if (j >= keys) break;
          const U tie = x[(t + 1) % 4] ^ x[(t + 2) % 4] ^ x[(t + 3) % 4];
          const U pair = t < 4 ? (x[t] & 0xff00ff00u) | (tie & 0x00ff00ffu)
                               : (x[t - 4] << 8 & 0xff00ff00u) | (tie >> 8 & 0x00ff00ffu);
          // The 15 bits are compared as the highest ones, where lower bits do not matter.
          keep[j] ^= lane_bits(pair << 17 >= limit) << lane;
          if (j + 1 < keys) keep[j + 1] ^= lane_bits(pair << 1 >= limit) << lane;
        }
      }
    }
  }
}

}  // namespace attn::cpu::ATTN_ISA
