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

// Asks for the bytes behind elements [d, d + kLanes) of a row that a later block will read; once a
// line where two vectors share it. Into L2: what comes before its use is several times an L1.
template <DType kSource>
ATTN_INLINE void ask_for(const std::byte* row, int d) {
  constexpr int kBytes = kSource == DType::f32 ? 4 : 2;
  if (d * kBytes % 64 == 0) __builtin_prefetch(row + static_cast<std::ptrdiff_t>(d) * kBytes, 0, 2);
}

// Scores of kLanes / kGroup keys (`keys` of them at the end: the missing ones repeat the last) with
// kGroup query rows at q (`count` of them: likewise). Each vector of K is loaded and widened once;
// the kLanes sums are reduced together.
template <int kGroup, DType kSource>
ATTN_INLINE void decode_scores_strip(const float* q, int count, const std::byte* const* k,
                                     const std::byte* const* ahead, int keys, int dim, float* s) {
  constexpr int kKeys = kLanes / kGroup;
  const int ld = leading_dim(dim);
  const std::byte* row[kKeys];
  const std::byte* next[kKeys];
  const float* query[kGroup];
  for (int j = 0; j < kKeys; ++j) {
    row[j] = k[j < keys ? j : keys - 1];
    next[j] = ahead[j < keys ? j : keys - 1];
  }
  for (int r = 0; r < kGroup; ++r) query[r] = q + (r < count ? r : count - 1) * ld;
  F acc[kLanes] = {};  // [key][row]
  const auto add = [&](int d, int width) __attribute__((always_inline)) {
    F x[kGroup];
#pragma GCC unroll 8
    for (int r = 0; r < kGroup; ++r) x[r] = load(query[r] + d);
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      const F y =
          width == kLanes ? load_row(row[j], d, kSource) : load_row_part(row[j], d, width, kSource);
      ask_for<kSource>(next[j], d);
#pragma GCC unroll 8
      for (int r = 0; r < kGroup; ++r) acc[j * kGroup + r] = fma(y, x[r], acc[j * kGroup + r]);
    }
  };
  int d = 0;
  for (; d + kLanes <= dim; d += kLanes) add(d, kLanes);
  if (d < dim) add(d, dim - d);
  float sums[kLanes];
  store(sums, reduce_all(acc));
  for (int j = 0; j < keys; ++j) {
    __builtin_memcpy(s + j * kRows, sums + j * kGroup, kGroup * sizeof(float));
  }
}

template <int kGroup, DType kSource>
ATTN_INLINE void decode_scores_group(const float* q, int count, const std::byte* const* k,
                                     const std::byte* const* ahead, int keys, int dim, float* s) {
  constexpr int kKeys = kLanes / kGroup;
  for (int first = 0; first < keys; first += kKeys) {
    const int rest = keys - first < kKeys ? keys - first : kKeys;
    decode_scores_strip<kGroup, kSource>(q, count, k + first, ahead + first, rest, dim,
                                         s + first * kRows);
  }
}

// Rows in groups of the next power of two, a whole vector of sums at most.
template <DType kSource>
ATTN_INLINE void decode_scores_of(const float* q, int count, const std::byte* const* k,
                                  const std::byte* const* ahead, int keys, int dim, float* s) {
  constexpr int kMost = kLanes < kMaxDecodeRows ? kLanes : kMaxDecodeRows;
  for (int r = 0; r < count; r += kMost) {
    const int rows = count - r < kMost ? count - r : kMost;
    const float* first = q + r * leading_dim(dim);
    if (rows == 1) {
      decode_scores_group<1, kSource>(first, rows, k, ahead, keys, dim, s + r);
    } else if (rows == 2) {
      decode_scores_group<2, kSource>(first, rows, k, ahead, keys, dim, s + r);
    } else if (rows <= 4) {
      decode_scores_group<4, kSource>(first, rows, k, ahead, keys, dim, s + r);
    } else {
      decode_scores_group<kMost, kSource>(first, rows, k, ahead, keys, dim, s + r);
    }
  }
}

// kColumns vectors of O for all rows stay in registers while V goes by once; whole lines of V are
// used together.
template <int kCount, int kColumns, DType kSource>
ATTN_INLINE void decode_accumulate_columns(const float* p, const std::byte* const* v,
                                           const std::byte* const* ahead, int keys, int d,
                                           int width, int ld, const float* alpha, float* o) {
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
      ask_for<kSource>(ahead[j], d + c * kLanes);
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
ATTN_INLINE void decode_accumulate_from(const float* p, const std::byte* const* v,
                                        const std::byte* const* ahead, int keys, int d, int dim,
                                        const float* alpha, float* o) {
  const int ld = leading_dim(dim);
  for (; d + kColumns * kLanes <= dim; d += kColumns * kLanes) {
    decode_accumulate_columns<kCount, kColumns, kSource>(p, v, ahead, keys, d, kColumns * kLanes,
                                                         ld, alpha, o);
  }
  if constexpr (kColumns > 1) {
    decode_accumulate_from<kCount, kColumns / 2, kSource>(p, v, ahead, keys, d, dim, alpha, o);
  } else if (d < dim) {
    decode_accumulate_columns<kCount, 1, kSource>(p, v, ahead, keys, d, dim - d, ld, alpha, o);
  }
}

template <int kCount, DType kSource>
ATTN_INLINE void decode_accumulate_rows(const float* p, const std::byte* const* v,
                                        const std::byte* const* ahead, int keys, int dim,
                                        const float* alpha, float* o) {
  // Eight accumulators fit every instruction set's registers beside the loads.
  constexpr int kColumns = kCount >= 8 ? 1 : kCount >= 4 ? 2 : kCount >= 2 ? 4 : 8;
  decode_accumulate_from<kCount, kColumns, kSource>(p, v, ahead, keys, 0, dim, alpha, o);
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

static void decode_scores(const float* q, int count, const std::byte* const* k,
                          const std::byte* const* ahead, int keys, int dim, DType source,
                          float* s) {
  with_source(source, [&]<DType kSource>() {
    decode_scores_of<kSource>(q, count, k, ahead, keys, dim, s);
  });
}

static void decode_accumulate(const float* p, int count, const std::byte* const* v,
                              const std::byte* const* ahead, int keys, int dim, DType source,
                              const float* alpha, float* o) {
  with_source(source, [&]<DType kSource>() {
    with_row_count(count, [&]<int kCount>() {
      decode_accumulate_rows<kCount, kSource>(p, v, ahead, keys, dim, alpha, o);
    });
  });
}

}  // namespace attn::cpu::ATTN_ISA
