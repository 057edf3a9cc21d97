// bf16 operands for VDPBF16PS: each 32-bit lane holds a pair along the summed dimension, products
// are summed in f32. The instruction treats subnormal inputs as zero and rounds to nearest even
// whatever MXCSR says.
#pragma once

#include "cpu/kernels/bf16_pairs.hpp"
#include "cpu/kernels/peak.hpp"
#include "cpu/kernels/product_f32.hpp"
#include "cpu/kernels/softmax.hpp"

namespace attn::cpu::ATTN_ISA {

ATTN_INLINE F dot_pairs(U a, U b, F acc) {
  return _mm512_dpbf16_ps(acc, bit_cast<__m512bh>(a), bit_cast<__m512bh>(b));
}

static void pack_k_bf16(const std::byte* const* row, int keys, int dim, DType, void* k) {
  const std::size_t ld = 2 * static_cast<std::size_t>(leading_dim(dim));  // bytes
  const std::size_t used = 2 * static_cast<std::size_t>(dim);
  for (int j = 0; j < keys; ++j) {
    std::byte* out = static_cast<std::byte*>(k) + static_cast<std::size_t>(j) * ld;
    if (row[j] == nullptr) {
      __builtin_memset(out, 0, ld);
    } else {
      __builtin_memcpy(out, row[j], used);
      __builtin_memset(out + used, 0, ld - used);
    }
  }
}

static void pack_v_bf16(const std::byte* const* row, int keys, int dim, DType, void* v) {
  const int ld = leading_dim(dim);
  std::uint32_t* out = static_cast<std::uint32_t*>(v);
  for (int j = 0; j < keys; j += 2) {
    const std::byte* odd = j + 1 < keys ? row[j + 1] : nullptr;
    for (int d = 0; d < ld; d += kLanes) {
      store(out + j / 2 * ld + d, load_pairs(row[j], odd, d, dim));
    }
  }
}

// As scores_tiles, two dims a step.
static void scores_bf16(const ScoreTile& tile, const void* k, int keys, int dim) {
  const std::uint32_t* q = static_cast<const std::uint32_t*>(tile.q_t);
  const int ld = leading_dim(dim) / 2;
  const int pairs = (dim + 1) / 2;
  F row_max[kVectors];
  for (F& m : row_max) m = set1(-__builtin_inff());
  for_register_tiles(
      keys, [&]<int kCount>(int key) __attribute__((always_inline)) {
        const std::uint32_t* rows = static_cast<const std::uint32_t*>(k) + key * ld;
        F acc[kCount][kVectors] = {};
        for (int d = 0; d < pairs; ++d) {
          U b[kVectors];
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) b[v] = load(q + d * kRows + v * kLanes);
#pragma GCC unroll 8
          for (int r = 0; r < kCount; ++r) {
            const U x = set1(rows[r * ld + d]);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) acc[r][v] = dot_pairs(x, b[v], acc[r][v]);
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            row_max[v] = max(row_max[v], acc[r][v]);
            store(tile.s + (key + r) * kRows + v * kLanes, acc[r][v]);
          }
        }
      });
  if (tile.row_max != nullptr) {
    for (int v = 0; v < kVectors; ++v) store(tile.row_max + v * kLanes, row_max[v]);
  }
}

// As accumulate_tiles, two keys a step.
static void accumulate_bf16(const OutputTile& tile, const void* v, int keys, int dim) {
  const std::uint32_t* weights = static_cast<const std::uint32_t*>(tile.p);
  float* o_t = tile.o_t;
  const int ld = leading_dim(dim);
  const int pairs = (keys + 1) / 2;
  F scale[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    scale[i] = tile.alpha == nullptr ? set1(1.0f) : load(tile.alpha + i * kLanes);
  }
  for_register_tiles(
      dim, [&]<int kCount>(int d) __attribute__((always_inline)) {
        F acc[kCount][kVectors];
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
          for (int i = 0; i < kVectors; ++i) {
            acc[r][i] = load(o_t + (d + r) * kRows + i * kLanes) * scale[i];
          }
        }
        const std::uint32_t* column = static_cast<const std::uint32_t*>(v) + d;
        for (int j = 0; j < pairs; ++j) {
          U b[kVectors];
#pragma GCC unroll 4
          for (int i = 0; i < kVectors; ++i) b[i] = load(weights + j * kRows + i * kLanes);
#pragma GCC unroll 8
          for (int r = 0; r < kCount; ++r) {
            const U x = set1(column[j * ld + r]);
#pragma GCC unroll 4
            for (int i = 0; i < kVectors; ++i) acc[r][i] = dot_pairs(x, b[i], acc[r][i]);
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
          for (int i = 0; i < kVectors; ++i) store(o_t + (d + r) * kRows + i * kLanes, acc[r][i]);
        }
      });
}

// Pairs (low: even key, high: odd key) of two rows of probabilities.
ATTN_INLINE U interleave_bf16(F even, F odd) {
  const auto low = widen(bit_cast<H>(_mm512_cvtneps_pbh(even)));
  const auto high = widen(bit_cast<H>(_mm512_cvtneps_pbh(odd)));
  return low | (high << 16);
}

// p is rounded to bf16, where a degree 3 polynomial is enough; l sums the same values before
// rounding.
static void softmax_bf16(float* s, int keys, float c, const float* row_max,
                         const std::uint32_t* keep, float* m, float* l, float* alpha, void* p) {
  std::uint32_t* out = static_cast<std::uint32_t*>(p);
  const F scale = set1(c);
  for (int v = 0; v < kVectors; ++v) {
    const int lane = v * kLanes;
    const F maximum = new_maximum(row_max + lane, c, m + lane, alpha + lane);
    F sum[4] = {};
    const auto probability = [&](int j, int u) __attribute__((always_inline)) {
      if (j >= keys) return F{};
      const F y = exp2((load(s + j * kRows + lane) - maximum) * scale);
      sum[u] += y;
      return keep == nullptr ? y : keep_lanes(keep[j] >> lane, y);
    };
    const auto step = [&](int j, int u) __attribute__((always_inline)) {
      const F even = probability(j, u);
      const F odd = probability(j + 1, u + 1);
      store(out + j / 2 * kRows + lane, interleave_bf16(even, odd));
    };
    int j = 0;
    for (; j + 4 <= keys; j += 4) {
      step(j, 0);
      step(j + 2, 2);
    }
    for (; j < keys; j += 2) step(j, 0);
    const F total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    store(l + lane, fma(load(l + lane), load(alpha + lane), total));
  }
}

static double peak_flops_bf16(double seconds) {
  U a = set1(0x3f003f00u);  // 0.5, 0.5
  ATTN_OPAQUE(a);
  return run_peak(seconds, 4.0 * kLanes, [&](F acc) { return dot_pairs(a, a, acc); });
}

}  // namespace attn::cpu::ATTN_ISA
