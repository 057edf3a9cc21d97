// bf16 operands for VDPBF16PS and BFDOT: each 32-bit lane holds a pair along the summed dimension,
// products are summed in f32. Both treat subnormal inputs as zero, whatever the mode of floating
// point is. VDPBF16PS rounds to nearest even. BFDOT rounds the sum of the two products, and that
// with the lane, to odd: each is off by less than one unit in the last place, not half of one, to
// either side alike.
#pragma once

#include "cpu/kernels/bf16_pairs.hpp"
#include "cpu/kernels/peak.hpp"
#include "cpu/kernels/products.hpp"
#include "cpu/kernels/softmax.hpp"

namespace attn::cpu::ATTN_ISA {

#if defined(__aarch64__)
typedef bfloat16x8_t Pairs;
ATTN_INLINE F dot_pairs(U a, U b, F acc) {
  return vbfdotq_f32(acc, bit_cast<Pairs>(a), bit_cast<Pairs>(b));
}
// The pair of lane kLane of a, with all of b.
template <int kLane>
ATTN_INLINE F dot_pair(U a, U b, F acc) {
  return vbfdotq_laneq_f32(acc, bit_cast<Pairs>(b), bit_cast<Pairs>(a), kLane);
}
#else
ATTN_INLINE F dot_pairs(U a, U b, F acc) {
  return _mm512_dpbf16_ps(acc, bit_cast<__m512bh>(a), bit_cast<__m512bh>(b));
}
#endif

// A word is two neighbours of the summed dimension.
struct Bf16Operand {
  typedef std::uint32_t Word;
  typedef U Words;
  static constexpr int kStep = 2;
  ATTN_INLINE F multiply_add(U x, U y, F sum) { return dot_pairs(x, y, sum); }
#if defined(__aarch64__)
  template <int kLane>
  ATTN_INLINE F multiply_add_element(U x, U y, F sum) {
    return dot_pair<kLane>(x, y, sum);
  }
#endif
};

static void pack_k_bf16(const std::byte* const* row, int keys, int dim, CacheType source,
                        const float* scale, void* k) {
  const std::size_t ld = 2 * static_cast<std::size_t>(leading_dim(dim));  // bytes
  for (int j = 0; j < keys; ++j) {
    pack_row_bf16(row[j], dim, source, scale == nullptr ? 1.0f : scale[j], ld,
                  static_cast<std::byte*>(k) + static_cast<std::size_t>(j) * ld);
  }
}

static void pack_v_bf16(const std::byte* const* row, int keys, int dim, CacheType source,
                        const float* scale, void* v) {
  const int ld = leading_dim(dim);
  std::uint32_t* out = static_cast<std::uint32_t*>(v);
  for (int j = 0; j < keys; j += 2) {
    for (int d = 0; d < ld; d += kLanes) {
      store(out + j / 2 * ld + d, load_pairs(row, scale, j, keys, d, dim, source));
    }
  }
}

static void pack_weighted_rows_bf16(const std::byte* const* row, int count, int dim, DType,
                                    void* x) {
  pack_v_bf16(row, count, dim, CacheType::bf16, nullptr, x);
}

// Pairs (low: even key, high: odd key) of two rows of probabilities.
ATTN_INLINE U interleave_bf16(F even, F odd) {
#if defined(__aarch64__)
  const bfloat16x8_t low = vcvtq_low_bf16_f32(even), high = vcvtq_low_bf16_f32(odd);
  return bit_cast<U>(vzip1q_u16(bit_cast<uint16x8_t>(low), bit_cast<uint16x8_t>(high)));
#else
  const auto low = widen(bit_cast<H>(_mm512_cvtneps_pbh(even)));
  const auto high = widen(bit_cast<H>(_mm512_cvtneps_pbh(odd)));
  return low | (high << 16);
#endif
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

#if defined(__aarch64__)

// Words of pairs of neighbouring rows are kRows elements of bf16 in their order.
static void round_gradients(const float* p, const float* ds, int keys, int count, void* p_rows,
                            void* ds_rows, void* ds_pairs) {
  static_assert(kRows == 2 * kLanes);
  uint16x8_t inside;
  for (int i = 0; i < kRows; ++i) inside[i] = i < count ? 0xffff : 0;
  const auto round_row = [&](const float* x) __attribute__((always_inline)) {
    const bfloat16x8_t low = vcvtq_low_bf16_f32(load(x));
    return inside & bit_cast<uint16x8_t>(vcvtq_high_bf16_f32(low, load(x + kLanes)));
  };
  std::uint32_t* of_p = static_cast<std::uint32_t*>(p_rows);
  std::uint32_t* of_ds = static_cast<std::uint32_t*>(ds_rows);
  std::uint32_t* pairs = static_cast<std::uint32_t*>(ds_pairs);
  for (int j = 0; j < keys; j += 2) {
    const bool odd = j + 1 < keys;
    const uint16x8_t first = round_row(ds + j * kRows);
    const uint16x8_t second = odd ? round_row(ds + (j + 1) * kRows) : uint16x8_t{};
    store(of_p + j * kLanes, bit_cast<U>(round_row(p + j * kRows)));
    store(of_ds + j * kLanes, bit_cast<U>(first));
    if (odd) {
      store(of_p + (j + 1) * kLanes, bit_cast<U>(round_row(p + (j + 1) * kRows)));
      store(of_ds + (j + 1) * kLanes, bit_cast<U>(second));
    }
    store(pairs + j / 2 * kRows, bit_cast<U>(vzip1q_u16(first, second)));
    store(pairs + j / 2 * kRows + kLanes, bit_cast<U>(vzip2q_u16(first, second)));
  }
}

#else

static void round_gradients(const float* p, const float* ds, int keys, int count, void* p_rows,
                            void* ds_rows, void* ds_pairs) {
  static_assert(kRows == 2 * kLanes);
  const std::uint64_t rows = (std::uint64_t{1} << count) - 1;
  const auto round_row = [&](const float* x) __attribute__((always_inline)) {
    const F low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(rows), x);
    const F high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(rows >> kLanes), x + kLanes);
    return bit_cast<U>(_mm512_cvtne2ps_pbh(high, low));
  };
  std::uint32_t* of_p = static_cast<std::uint32_t*>(p_rows);
  std::uint32_t* of_ds = static_cast<std::uint32_t*>(ds_rows);
  std::uint32_t* pairs = static_cast<std::uint32_t*>(ds_pairs);
  // Word i: row i (of the second: row 16 + i) of the even key, and above it that of the odd key.
  alignas(64) std::uint16_t order[2][2 * kLanes];
  for (int i = 0; i < 2 * kLanes; ++i) {
    order[0][i] = static_cast<std::uint16_t>(i / 2 + i % 2 * 2 * kLanes);
    order[1][i] = static_cast<std::uint16_t>(order[0][i] + kLanes);
  }
  const __m512i low = _mm512_load_si512(order[0]), high = _mm512_load_si512(order[1]);
  for (int j = 0; j < keys; j += 2) {
    const bool odd = j + 1 < keys;
    const U first = round_row(ds + j * kRows);
    const U second = odd ? round_row(ds + (j + 1) * kRows) : U{};
    store(of_p + j * kLanes, round_row(p + j * kRows));
    store(of_ds + j * kLanes, first);
    if (odd) {
      store(of_p + (j + 1) * kLanes, round_row(p + (j + 1) * kRows));
      store(of_ds + (j + 1) * kLanes, second);
    }
    const __m512i x = bit_cast<__m512i>(first), y = bit_cast<__m512i>(second);
    store(pairs + j / 2 * kRows, bit_cast<U>(_mm512_permutex2var_epi16(x, low, y)));
    store(pairs + j / 2 * kRows + kLanes, bit_cast<U>(_mm512_permutex2var_epi16(x, high, y)));
  }
}

#endif

static double peak_flops_bf16(double seconds) {
  U a = set1(0x3f003f00u);  // 0.5, 0.5
  ATTN_OPAQUE(a);
  return run_peak(seconds, 4.0 * kLanes, [&](F acc) { return dot_pairs(a, a, acc); });
}

}  // namespace attn::cpu::ATTN_ISA
