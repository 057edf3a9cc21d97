// bf16 operands as pairs: each 32-bit lane holds two neighbours along the summed dimension. Shared
// by VDPBF16PS (bf16.hpp) and AMX tiles (amx.hpp).
#pragma once

#include "cpu/kernels/pack_f32.hpp"
#include "cpu/kernels/softmax.hpp"

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

}  // namespace attn::cpu::ATTN_ISA
