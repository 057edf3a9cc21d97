// Online softmax over one tile (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1, lines 9
// and 10), and the elementwise steps of the backward pass. The difference to the maximum (to LSE)
// is taken before it is scaled: it is exact where it is small, so that a row with one key has P
// = 1.
#pragma once

#include "cpu/kernels/vec.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

static inline void row_max(const float* s, int keys, float* out) {
  constexpr int kUnroll = 4;  // a maximum takes 4 cycles and two start in each
  for (int v = 0; v < kVectors; ++v) {
    F m[kUnroll];
#pragma GCC unroll 4
    for (F& x : m) x = set1(-__builtin_inff());
    int j = 0;
    for (; j + kUnroll <= keys; j += kUnroll) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) {
        m[u] = max_score(m[u], load(s + (j + u) * kRows + v * kLanes));
      }
    }
    for (; j < keys; ++j) m[0] = max_score(m[0], load(s + j * kRows + v * kLanes));
    store(out + v * kLanes, max_score(max_score(m[0], m[1]), max_score(m[2], m[3])));
  }
}

// x where bit `lane` of bits is set, else 0.
ATTN_INLINE F keep_lanes(std::uint32_t bits, F x) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_maskz_mov_ps(static_cast<__mmask16>(bits), x);
#else
  I lane_bit;
  for (int i = 0; i < kLanes; ++i) lane_bit[i] = 1 << i;
  return select((set1(static_cast<std::int32_t>(bits)) & lane_bit) != 0, x, F{});
#endif
}

// m' = max(m, row_max), alpha = 2^(c (m - m')).
ATTN_INLINE F new_maximum(const float* row_max, float c, float* m, float* alpha) {
  const F before = load(m);
  // A row without visible keys so far stays at -FLT_MAX, where 2^(-inf - m) is 0 and never NaN.
  const F after = max_score(load(row_max), before);
  // The floor keeps -FLT_MAX times c from overflowing.
  store(alpha, exp2(at_least(set1(-1e30f), before - after) * set1(c)));
  store(m, after);
  return after;
}

template <F (*kExp2)(F)>
static void softmax_f32(float* s, int keys, float c, const float* row_max,
                        const std::uint32_t* keep, float* m, float* l, float* alpha, void* p) {
  float* out = static_cast<float*>(p);
  const F scale = set1(c);
  for (int v = 0; v < kVectors; ++v) {
    const int lane = v * kLanes;
    const F maximum = new_maximum(row_max + lane, c, m + lane, alpha + lane);
    constexpr int kUnroll = 4;  // independent exponentials in flight, and partial sums
    F sum[kUnroll] = {};
    const auto step = [&](int j, int u) __attribute__((always_inline)) {
      const F y = kExp2((load(s + j * kRows + lane) - maximum) * scale);
      sum[u] += y;
      store(out + j * kRows + lane, keep == nullptr ? y : keep_lanes(keep[j] >> lane, y));
    };
    int j = 0;
    for (; j + kUnroll <= keys; j += kUnroll) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) step(j + u, u);
    }
    for (; j < keys; ++j) step(j, 0);
    const F total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    store(l + lane, fma(load(l + lane), load(alpha + lane), total));
  }
}

ATTN_INLINE bool any_nan(F x) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0;
#else
  bool nan = false;
  for (int i = 0; i < kLanes; ++i) nan |= x[i] != x[i];
  return nan;
#endif
}

static inline void probabilities(const float* s, int keys, float scale, const float* lse,
                                 float* p) {
  const F factor = set1(scale);
  for (int v = 0; v < kVectors; ++v) {
    const int lane = v * kLanes;
    const F row_lse = load(lse + lane);
    if (!any_nan(row_lse)) {
      for (int j = 0; j < keys; ++j) {
        const F d = fma(load(s + j * kRows + lane), factor, -row_lse);
        store(p + j * kRows + lane, exp_of_difference(d));
      }
      continue;
    }
    for (int j = 0; j < keys; ++j) {
      const F score = load(s + j * kRows + lane);
      const F y = exp_of_difference(fma(score, factor, -row_lse));
      store(p + j * kRows + lane, select(score == -__builtin_inff(), F{}, y));
    }
  }
}

// x where `weight` is not 0, else 0.
ATTN_INLINE F where_not_zero(F weight, F x) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(weight, F{}, _CMP_NEQ_UQ), x);
#else
  return select(weight == 0.0f, F{}, x);
#endif
}

static inline void score_gradient(float* p, const float* dp, int keys, const std::uint32_t* keep,
                                  float keep_scale, const float* delta, float* ds) {
  const F scale = set1(keep_scale);
  for (int v = 0; v < kVectors; ++v) {
    const int lane = v * kLanes;
    const F d = load(delta + lane);
    for (int j = 0; j < keys; ++j) {
      const int at = j * kRows + lane;
      const F probability = load(p + at);
      F gradient = load(dp + at);
      if (keep != nullptr) {
        gradient = keep_lanes(keep[j] >> lane, gradient * scale);
        store(p + at, keep_lanes(keep[j] >> lane, probability));
      }
      store(ds + at, where_not_zero(probability, probability * (gradient - d)));
    }
  }
}

static inline void multiply_gradient(const float* factor, int keys, float* ds) {
  for (int i = 0; i < keys * kRows; i += kLanes) {
    const F gradient = load(ds + i);
    store(ds + i, select(gradient == 0.0f, F{}, gradient * load(factor + i)));
  }
}

}  // namespace attn::cpu::ATTN_ISA
