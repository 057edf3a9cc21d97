// Decoding on AMX tiles: K of eight keys is A, where it lies if its rows are equally far apart; Q^T
// is B. P of the rows is A, V in pairs of keys is B.
#pragma once

#include "cpu/kernels/amx.hpp"
#include "cpu/kernels/decode_bf16.hpp"

namespace attn::cpu::ATTN_ISA {

// Tiles 0 to 2: O, 3: P, 4: V. Of scores, 5: S [key][row], 6: Q^T, 7: K.
static void configure_decode_tiles(int count) {
  TileConfig config;
  for (const int tile : {0, 1, 2, 3}) config.rows[tile] = static_cast<std::uint8_t>(count);
  config.rows[5] = config.rows[7] = kDecodeKeys;
  config.row_bytes[5] = config.row_bytes[6] =
      static_cast<std::uint16_t>(4 * decode_row_stride(count));
  asm volatile("ldtilecfg %0" : : "m"(config));
}

// q [dim / 2][decode_row_stride(count)] pairs, zero where there is no row.
static void decode_pack_q_amx(const std::byte* const* row, int count, int dim, void* q) {
  std::uint32_t* out = static_cast<std::uint32_t*>(q);
  const int stride = decode_row_stride(count);
  for (int d = 0; d < dim / 2; ++d) {
    for (int r = 0; r < stride; ++r) {
      out[d * stride + r] = r < count ? load_as<std::uint32_t>(row[r] + 4 * d) : 0;
    }
  }
}

static void decode_scores_amx(const void* q, int count, const std::byte* const* k,
                              const std::byte* const* ahead, int keys, int dim, CacheType source,
                              float* s) {
  const int stride = decode_row_stride(count);
  ask_for(ahead, keys, static_cast<int>(core::row_bytes(source, dim)));
  const auto multiply = [&](const void* rows, std::ptrdiff_t apart) __attribute__((always_inline)) {
    const std::byte* at = static_cast<const std::byte*>(rows);
    const std::uint32_t* pairs = static_cast<const std::uint32_t*>(q);
    zero_tile<5>();
    for (int d = 0; d < dim; d += kTileDepth, at += 2 * kTileDepth) {
      load_tile<7>(at, apart);
      load_tile<6>(pairs, 4 * stride);
      add_product<5, 7, 6>();
      pairs += kTileDepth / 2 * stride;
    }
    store_tile<5>(s, 4 * stride);
  };
  if (source == CacheType::bf16 && keys == kDecodeKeys) {
    const std::ptrdiff_t apart = k[1] - k[0];
    bool even = true;
    for (int j = 2; j < kDecodeKeys; ++j) even &= k[j] - k[j - 1] == apart;
    if (even) return multiply(k[0], apart);
  }
  StagedKeys staged;
  with_cache_type(source, [&]<CacheType kSource>() { stage_keys<kSource>(k, keys, dim, staged); });
  multiply(staged.words, 2 * dim);
}

// A sum is stored after the next has begun: a store behind its own product waits for it.
static void decode_accumulate_staged_amx(const float* p, int count, const void* values, int keys,
                                         int dim, const float* alpha, float* o) {
  const int ld = leading_dim(dim);
  for (int r = 0; r < count; ++r) {
    if (alpha[r] == 1) continue;
    for (int d = 0; d < dim; d += kLanes) {
      store(o + r * ld + d, load(o + r * ld + d) * set1(alpha[r]));
    }
  }
  StagedWeights weights;
  stage_weights(p, count, keys, weights);
  load_tile<3>(weights.words, 4 * kStagedPairs);
  const std::uint32_t* pairs = static_cast<const std::uint32_t*>(values);
  load_tile<0>(o, 4 * ld);
  load_tile<4>(pairs, 4 * dim);
  add_product<0, 3, 4>();
  for (int d = 0; d < dim; d += 2 * kTileRows) {
    load_tile<1>(o + d + kTileRows, 4 * ld);
    load_tile<4>(pairs + d + kTileRows, 4 * dim);
    add_product<1, 3, 4>();
    store_tile<0>(o + d, 4 * ld);
    if (d + 2 * kTileRows < dim) {
      load_tile<0>(o + d + 2 * kTileRows, 4 * ld);
      load_tile<4>(pairs + d + 2 * kTileRows, 4 * dim);
      add_product<0, 3, 4>();
    }
    store_tile<1>(o + d + kTileRows, 4 * ld);
  }
}

}  // namespace attn::cpu::ATTN_ISA
