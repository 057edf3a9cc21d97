// Decoding: a handful of query rows against a long cache. The work is reading K and V once, so dims
// lie in lanes, rows of the cache are read where they are, and one loaded vector serves every query
// row.
#pragma once

#include "cpu/kernels/convert.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

// Lane i of the result is the sum of the lanes of x[i]: each round adds neighbours of two vectors
// and halves their number.
ATTN_INLINE F reduce_all(F (&x)[kLanes]) {
  I even, odd;
  for (int i = 0; i < kLanes; ++i) {
    even[i] = 2 * i;
    odd[i] = 2 * i + 1;
  }
#pragma GCC unroll 4
  for (int n = kLanes; n > 1; n /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      x[i] = shuffle(x[2 * i], x[2 * i + 1], even) + shuffle(x[2 * i], x[2 * i + 1], odd);
    }
  }
  return x[0];
}

// Scores of kLanes keys (fewer at the end: the missing ones repeat the last) with one query row.
template <DType kSource>
ATTN_INLINE void decode_scores_strip(const float* q, const std::byte* const (&k)[kLanes], int dim,
                                     float* s, int keys) {
  F acc[kLanes] = {};
  int d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    const F x = load(q + d);
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) acc[j] = fma(load_row(k[j], d, kSource), x, acc[j]);
  }
  if (d < dim) {
    const F x = load(q + d);
    for (int j = 0; j < kLanes; ++j) {
      acc[j] = fma(load_row_part(k[j], d, dim - d, kSource), x, acc[j]);
    }
  }
  const F sums = reduce_all(acc);
  for (int j = 0; j < keys; ++j) s[j * kRows] = sums[j];
}

template <DType kSource>
ATTN_INLINE void decode_scores_of(const float* q, int count, const std::byte* const* k, int keys,
                                  int dim, float* s) {
  for (int first = 0; first < keys; first += kLanes) {
    const int rest = keys - first < kLanes ? keys - first : kLanes;
    const std::byte* row[kLanes];
    for (int j = 0; j < kLanes; ++j) row[j] = k[first + (j < rest ? j : rest - 1)];
    for (int r = 0; r < count; ++r) {
      decode_scores_strip<kSource>(q + r * leading_dim(dim), row, dim, s + first * kRows + r, rest);
    }
  }
}

// kColumns vectors of O for all rows stay in registers while V goes by once; whole lines of V are
// used together.
template <int kCount, int kColumns, DType kSource>
ATTN_INLINE void decode_accumulate_columns(const float* p, const std::byte* const* v, int keys,
                                           int d, int width, int ld, const float* alpha, float* o) {
  F acc[kCount][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c)
      acc[r][c] = load(o + r * ld + d + c * kLanes) * set1(alpha[r]);
  }
  for (int j = 0; j < keys; ++j) {
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      const F x = width == kColumns * kLanes ? load_row(v[j], d + c * kLanes, kSource)
                                             : load_row_part(v[j], d, width, kSource);
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) acc[r][c] = fma(set1(p[j * kRows + r]), x, acc[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) store(o + r * ld + d + c * kLanes, acc[r][c]);
  }
}

// As many columns at a time as fit, then half as many, ..., then the part of a vector that is left.
template <int kCount, int kColumns, DType kSource>
ATTN_INLINE void decode_accumulate_from(const float* p, const std::byte* const* v, int keys, int d,
                                        int dim, const float* alpha, float* o) {
  const int ld = leading_dim(dim);
  for (; d + kColumns * kLanes <= dim; d += kColumns * kLanes) {
    decode_accumulate_columns<kCount, kColumns, kSource>(p, v, keys, d, kColumns * kLanes, ld,
                                                         alpha, o);
  }
  if constexpr (kColumns > 1) {
    decode_accumulate_from<kCount, kColumns / 2, kSource>(p, v, keys, d, dim, alpha, o);
  } else if (d < dim) {
    decode_accumulate_columns<kCount, 1, kSource>(p, v, keys, d, dim - d, ld, alpha, o);
  }
}

template <int kCount, DType kSource>
ATTN_INLINE void decode_accumulate_rows(const float* p, const std::byte* const* v, int keys,
                                        int dim, const float* alpha, float* o) {
  // Eight accumulators fit every instruction set's registers beside the loads.
  constexpr int kColumns = kCount >= 8 ? 1 : kCount >= 4 ? 2 : kCount >= 2 ? 4 : 8;
  decode_accumulate_from<kCount, kColumns, kSource>(p, v, keys, 0, dim, alpha, o);
}

// Runs body<n>() for n = count in [1, kMaxDecodeRows].
template <int kCount = kMaxDecodeRows, class Body>
ATTN_INLINE void with_row_count(int count, const Body& body) {
  if constexpr (kCount > 0) {
    if (count == kCount) {
      body.template operator()<kCount>();
    } else {
      with_row_count<kCount - 1>(count, body);
    }
  }
}

// Runs body<dtype>().
template <class Body>
ATTN_INLINE void with_source(DType source, const Body& body) {
  switch (source) {
    case DType::bf16:
      return body.template operator()<DType::bf16>();
    case DType::f16:
      return body.template operator()<DType::f16>();
    default:
      return body.template operator()<DType::f32>();
  }
}

static void decode_scores(const float* q, int count, const std::byte* const* k, int keys, int dim,
                          DType source, float* s) {
  with_source(source,
              [&]<DType kSource>() { decode_scores_of<kSource>(q, count, k, keys, dim, s); });
}

static void decode_accumulate(const float* p, int count, const std::byte* const* v, int keys,
                              int dim, DType source, const float* alpha, float* o) {
  with_source(source, [&]<DType kSource>() {
    with_row_count(count, [&]<int kCount>() {
      decode_accumulate_rows<kCount, kSource>(p, v, keys, dim, alpha, o);
    });
  });
}

}  // namespace attn::cpu::ATTN_ISA
