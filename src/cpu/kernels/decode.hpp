// Decoding: a handful of query rows against a long cache. The work is reading K and V once, so dims
// lie in lanes, rows of the cache are read where they are, and one loaded vector serves every query
// row.
#pragma once

#include "cpu/kernels/convert.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

template <int kCount>
ATTN_INLINE void decode_scores_rows(const float* q, const std::byte* const* k, int keys, int dim,
                                    DType source, float* s) {
  const int ld = leading_dim(dim);
  for (int j = 0; j < keys; ++j) {
    F acc[kCount] = {};
    int d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      const F x = load_row(k[j], d, source);
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) acc[r] = fma(x, load(q + r * ld + d), acc[r]);
    }
    if (d < dim) {
      const F x = load_row_part(k[j], d, dim - d, source);
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) acc[r] = fma(x, load(q + r * ld + d), acc[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) s[j * kRows + r] = reduce_add(acc[r]);
  }
}

template <int kCount>
ATTN_INLINE void decode_accumulate_rows(const float* p, const std::byte* const* v, int keys,
                                        int dim, DType source, const float* alpha, float* o) {
  const int ld = leading_dim(dim);
  for (int d = 0; d < dim; d += kLanes) {
    const int width = dim - d < kLanes ? dim - d : kLanes;
    F acc[kCount];
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) acc[r] = load(o + r * ld + d) * set1(alpha[r]);
    for (int j = 0; j < keys; ++j) {
      const F x =
          width == kLanes ? load_row(v[j], d, source) : load_row_part(v[j], d, width, source);
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) acc[r] = fma(set1(p[j * kRows + r]), x, acc[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) store(o + r * ld + d, acc[r]);
  }
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

static void decode_scores(const float* q, int count, const std::byte* const* k, int keys, int dim,
                          DType source, float* s) {
  with_row_count(count,
                 [&]<int kCount>() { decode_scores_rows<kCount>(q, k, keys, dim, source, s); });
}

static void decode_accumulate(const float* p, int count, const std::byte* const* v, int keys,
                              int dim, DType source, const float* alpha, float* o) {
  with_row_count(count, [&]<int kCount>() {
    decode_accumulate_rows<kCount>(p, v, keys, dim, source, alpha, o);
  });
}

}  // namespace attn::cpu::ATTN_ISA
