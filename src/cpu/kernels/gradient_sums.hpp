// Sums of dS over a tile, for the gradients of the buffers that a score expression reads. Sums and
// products are float64: the product of two float32 numbers is exact.
#pragma once

#include "cpu/kernels/vec.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

typedef double D __attribute__((vector_size(ATTN_VECTOR_BYTES)));
typedef std::int64_t L __attribute__((vector_size(ATTN_VECTOR_BYTES)));
typedef float HalfF __attribute__((vector_size(ATTN_VECTOR_BYTES / 2)));
inline constexpr int kDoubles = kLanes / 2;  // of D and of HalfF

ATTN_INLINE D load_doubles(const float* p) {
  const HalfF x = load_as<HalfF>(p);
#if ATTN_VECTOR_BYTES == 64
  return _mm512_cvtps_pd(bit_cast<__m256>(x));
#elif ATTN_VECTOR_BYTES == 32
  return _mm256_cvtps_pd(bit_cast<__m128>(x));
#else
  return __builtin_convertvector(x, D);
#endif
}

ATTN_INLINE double sum_of_lanes(D x) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_reduce_add_pd(x);
#else
  double sum = x[0];
  for (int i = 1; i < kDoubles; ++i) sum += x[i];
  return sum;
#endif
}

// The lanes of piece `piece` of the rows that are below count: -1, the others 0.
ATTN_INLINE L lanes_below(int count, int piece) {
  L lane;
  for (int i = 0; i < kDoubles; ++i) lane[i] = i;
  return lane < std::int64_t{count - piece * kDoubles};
}

template <bool kByRow, bool kByKey>
static void sum_gradient_by(const float* ds, const float* factor, int keys, int count,
                            double* sums) {
  constexpr int kPieces = kRows / kDoubles;
  L inside[kPieces];
  D of_row[kPieces] = {};
  for (int v = 0; v < kPieces; ++v) inside[v] = lanes_below(count, v);
  for (int j = 0; j < keys; ++j) {
    D of_key[kPieces];
    for (int v = 0; v < kPieces; ++v) {
      const int at = j * kRows + v * kDoubles;
      const D gradient = load_doubles(ds + at);
      const D x = factor == nullptr ? gradient : gradient * load_doubles(factor + at);
      of_key[v] = (inside[v] & (gradient != 0.0)) ? x : D{};
      if (kByRow && kByKey) __builtin_memcpy(sums + at, &of_key[v], sizeof(D));
      if (!kByKey) of_row[v] += of_key[v];
    }
    if (!kByRow && kByKey)
      sums[j] = sum_of_lanes((of_key[0] + of_key[1]) + (of_key[2] + of_key[3]));
  }
  if (kByRow && !kByKey) __builtin_memcpy(sums, of_row, sizeof(of_row));
  if (!kByRow && !kByKey) *sums = sum_of_lanes((of_row[0] + of_row[1]) + (of_row[2] + of_row[3]));
}

static void sum_gradient(const float* ds, const float* factor, int keys, int count,
                         expr::Dependence by, double* sums) {
  switch (by) {
    case expr::Dependence::uniform:
      return sum_gradient_by<false, false>(ds, factor, keys, count, sums);
    case expr::Dependence::row:
      return sum_gradient_by<true, false>(ds, factor, keys, count, sums);
    case expr::Dependence::key:
      return sum_gradient_by<false, true>(ds, factor, keys, count, sums);
    case expr::Dependence::full:
      return sum_gradient_by<true, true>(ds, factor, keys, count, sums);
  }
}

}  // namespace attn::cpu::ATTN_ISA
