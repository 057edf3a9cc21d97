// Decoding: a handful of query rows against a long cache. The work is reading K and V once, so dims
// lie in lanes, rows of the cache are read where they are, and kDecodeKeys of them go by side by
// side: a CPU's prefetchers follow that many streams well, where one or two reach half of the
// bandwidth (docs/log/cpu.md).
#pragma once

#include "cpu/kernels/convert.hpp"
#include "cpu/kernels/softmax.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

// Lane i of the result, i < kCount, is the sum of the lanes of x[i]: each round adds neighbours of
// two vectors and halves their number. The other lanes repeat those.
template <int kCount>
ATTN_INLINE F reduce_all(F (&x)[kCount]) {
  I even, odd;
  for (int i = 0; i < kLanes; ++i) {
    even[i] = 2 * i;
    odd[i] = 2 * i + 1;
  }
#pragma GCC unroll 4
  for (int n = kCount; n > 1; n /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      x[i] = shuffle(x[2 * i], x[2 * i + 1], even) + shuffle(x[2 * i], x[2 * i + 1], odd);
    }
  }
#pragma GCC unroll 4
  for (int n = kCount; n < kLanes; n *= 2) {
    x[0] = shuffle(x[0], x[0], even) + shuffle(x[0], x[0], odd);
  }
  return x[0];
}

// Asks for rows of `bytes` bytes that a later call will read, line after line of all of them.
ATTN_INLINE void ask_for(const std::byte* const* row, int keys, int bytes) {
  if (keys == kDecodeKeys) {
    for (int i = 0; i < bytes; i += 64) {
#pragma GCC unroll 8
      for (int j = 0; j < kDecodeKeys; ++j) __builtin_prefetch(row[j] + i, 0, 3);
    }
  } else {
    for (int j = 0; j < keys; ++j) {
      for (int i = 0; i < bytes; i += 64) __builtin_prefetch(row[j] + i, 0, 3);
    }
  }
}

// Keys whose rows go by side by side in decode_scores: their sums are one vector, or half of one
// where there is one row.
inline constexpr int kScoreKeys = kLanes < kDecodeKeys ? kLanes : kDecodeKeys;

// sums[key][row] of kScoreKeys keys with kGroup rows at q, a stride of ld apart (0 to take the
// first twice). A function of its own, so that GCC keeps all sums in registers.
template <int kGroup, DType kSource>
static __attribute__((noinline)) void decode_scores_strip(const float* q, int ld,
                                                          const std::byte* const* k, int dim,
                                                          float* sums) {
  const std::byte* row[kScoreKeys];
  for (int j = 0; j < kScoreKeys; ++j) row[j] = k[j];
  const int whole = dim / kLanes * kLanes;
  F rest[kScoreKeys];  // loaded before the sums start, since it takes calls
  if (whole < dim) {
    for (int j = 0; j < kScoreKeys; ++j)
      rest[j] = load_row_part(row[j], whole, dim - whole, kSource);
  }
  F acc[kScoreKeys * kGroup] = {};  // [key][row]
  const auto add = [&](int d, const auto& element) __attribute__((always_inline)) {
    F x[kGroup];
#pragma GCC unroll 2
    for (int r = 0; r < kGroup; ++r) x[r] = load(q + r * ld + d);
#pragma GCC unroll 8
    for (int j = 0; j < kScoreKeys; ++j) {
      const F y = element(j);
#pragma GCC unroll 2
      for (int r = 0; r < kGroup; ++r) acc[j * kGroup + r] = fma(y, x[r], acc[j * kGroup + r]);
    }
  };
  for (int d = 0; d < whole; d += kLanes) {
    add(
        d, [&](int j) __attribute__((always_inline)) { return load_row(row[j], d, kSource); });
  }
  if (whole < dim) {
    add(
        whole, [&](int j) __attribute__((always_inline)) { return rest[j]; });
  }
  store(sums, reduce_all(acc));
}

template <int kGroup, DType kSource>
ATTN_INLINE void decode_scores_rows(const float* q, int count, const std::byte* const* k, int keys,
                                    int dim, float* s, int stride) {
  float sums[kLanes];
  decode_scores_strip<kGroup, kSource>(q, count > 1 ? leading_dim(dim) : 0, k, dim, sums);
  for (int j = 0; j < keys; ++j) {
    __builtin_memcpy(s + j * stride, sums + j * kGroup, kGroup * sizeof(float));
  }
}

// Takes as many rows at a time as one vector of sums holds; the first rows find K in memory, the
// others in L1.
template <DType kSource>
ATTN_INLINE void decode_scores_of(const float* q, int count, const std::byte* const* k,
                                  const std::byte* const* ahead, int keys, int dim, float* s) {
  constexpr int kGroup = kLanes / kScoreKeys;
  constexpr int kBytes = kSource == DType::f32 ? 4 : 2;
  const int stride = decode_row_stride(count);
  ask_for(ahead, keys, dim * kBytes);
  for (int j = 0; j < keys; j += kScoreKeys) {
    const int rest = keys - j < kScoreKeys ? keys - j : kScoreKeys;
    const std::byte* row[kScoreKeys];
    for (int i = 0; i < kScoreKeys; ++i) row[i] = k[j + (i < rest ? i : rest - 1)];
    float* out = s + j * stride;
    if (count == 1) {
      decode_scores_rows<1, kSource>(q, 1, row, rest, dim, out, stride);
      continue;
    }
    for (int r = 0; r < count; r += kGroup) {
      decode_scores_rows<kGroup, kSource>(q + r * leading_dim(dim), count - r, row, rest, dim,
                                          out + r, stride);
    }
  }
}

// Lane i of the result is the maximum (kSum: the sum) over the lanes i % kStride, + kStride, ...
template <int kStride, bool kSum>
ATTN_INLINE F fold_lanes(F x) {
#pragma GCC unroll 4
  for (int step = kLanes / 2; step >= kStride; step /= 2) {
    I other;
    for (int i = 0; i < kLanes; ++i) other[i] = i ^ step;
    const F y = shuffle(x, x, other);
    x = kSum ? x + y : max(x, y);
  }
  return x;
}

// Online softmax of scores [key][kStride], which lie after each other in vectors of several keys,
// or, where rows are more than lanes, kPeriod vectors a key.
template <F (*kExp2)(F), int kStride>
ATTN_INLINE void decode_softmax_of(float* s, int keys, float c, const std::uint32_t* keep, float* m,
                                   float* l, float* alpha) {
  constexpr int kPeriod = kStride > kLanes ? kStride / kLanes : 1;
  const int floats = keys * kStride;
  const int whole = (floats + kLanes - 1) / kLanes * kLanes;
  for (int i = floats; i < whole; ++i) s[i] = -__builtin_inff();
#pragma GCC unroll 2
  for (int v = 0; v < kPeriod; ++v) {
    const int lane = v * kLanes;
    F top = set1(-__builtin_inff());
    for (int i = lane; i < whole; i += kPeriod * kLanes) top = max(top, load(s + i));
    float row_max[kLanes];
    store(row_max, fold_lanes<kStride, false>(top));
    const F maximum = new_maximum(row_max, c, m + lane, alpha + lane);
    F sum{};
    for (int i = lane; i < whole; i += kPeriod * kLanes) {
      const F y = kExp2((load(s + i) - maximum) * set1(c));
      sum += y;
      store(s + i, y);
    }
    sum = fold_lanes<kStride, true>(sum);
    store(l + lane, fma(load(l + lane), load(alpha + lane), sum));
  }
  if (keep == nullptr) return;
  for (int i = 0; i < floats; ++i) {
    if ((keep[i / kStride] >> (i % kStride) & 1u) == 0) s[i] = 0;
  }
}

template <F (*kExp2)(F)>
static void decode_softmax(float* s, int count, int keys, float c, const std::uint32_t* keep,
                           float* m, float* l, float* alpha) {
  switch (decode_row_stride(count)) {
    case 1:
      return decode_softmax_of<kExp2, 1>(s, keys, c, keep, m, l, alpha);
    case 2:
      return decode_softmax_of<kExp2, 2>(s, keys, c, keep, m, l, alpha);
    case 4:
      return decode_softmax_of<kExp2, 4>(s, keys, c, keep, m, l, alpha);
    default:
      return decode_softmax_of<kExp2, kMaxDecodeRows>(s, keys, c, keep, m, l, alpha);
  }
}

// kColumns vectors of O for all rows stay in registers while the rows of V go by side by side.
// kKeys: `keys` where it is known, else 0.
template <int kCount, int kColumns, DType kSource, int kKeys>
ATTN_INLINE void decode_accumulate_columns(const float* p, const std::byte* const* v, int keys,
                                           int d, int width, int ld, const float* alpha, float* o) {
  constexpr int kStride = decode_row_stride(kCount);
  F acc[kCount][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c)
      acc[r][c] = load(o + r * ld + d + c * kLanes) * set1(alpha[r]);
  }
  const auto add = [&](int j) __attribute__((always_inline)) {
    F x[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      x[c] = width == kColumns * kLanes ? load_row(v[j], d + c * kLanes, kSource)
                                        : load_row_part(v[j], d, width, kSource);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const F weight = set1(p[j * kStride + r]);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) acc[r][c] = fma(weight, x[c], acc[r][c]);
    }
  };
  if constexpr (kKeys > 0) {
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; ++j) add(j);
  } else {
#pragma GCC unroll 1
    for (int j = 0; j < keys; ++j) add(j);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) store(o + r * ld + d + c * kLanes, acc[r][c]);
  }
}

// Takes as many columns at a time as fit into registers, then half as many, ..., then the part of a
// vector that is left.
template <int kCount, int kColumns, DType kSource, int kKeys>
ATTN_INLINE void decode_accumulate_from(const float* p, const std::byte* const* v, int keys, int d,
                                        int dim, const float* alpha, float* o) {
  const int ld = leading_dim(dim);
  for (; d + kColumns * kLanes <= dim; d += kColumns * kLanes) {
    decode_accumulate_columns<kCount, kColumns, kSource, kKeys>(p, v, keys, d, kColumns * kLanes,
                                                                ld, alpha, o);
  }
  if constexpr (kColumns > 1) {
    decode_accumulate_from<kCount, kColumns / 2, kSource, kKeys>(p, v, keys, d, dim, alpha, o);
  } else if (d < dim) {
    decode_accumulate_columns<kCount, 1, kSource, 0>(p, v, keys, d, dim - d, ld, alpha, o);
  }
}

template <int kCount, DType kSource>
static __attribute__((noinline)) void decode_accumulate_rows(const float* p,
                                                             const std::byte* const* v, int keys,
                                                             int dim, const float* alpha,
                                                             float* o) {
  // A line of each row of V at a time, where the accumulators leave registers for the loads: 16 of
  // the 32 of AVX-512, 8 of 16 elsewhere.
  constexpr int kLine = 64 / ((kSource == DType::f32 ? 4 : 2) * kLanes);
  constexpr int kMost = (ATTN_VECTOR_BYTES == 64 ? 16 : 8) / kCount;
  constexpr int kFit = kMost >= 4 ? 4 : kMost >= 2 ? 2 : 1;
  constexpr int kColumns = kLine < kFit ? kLine : kFit;
  if (keys == kDecodeKeys) {
    const std::byte* row[kDecodeKeys];
    for (int j = 0; j < kDecodeKeys; ++j) row[j] = v[j];
    decode_accumulate_from<kCount, kColumns, kSource, kDecodeKeys>(p, row, keys, 0, dim, alpha, o);
  } else {
    decode_accumulate_from<kCount, kColumns, kSource, 0>(p, v, keys, 0, dim, alpha, o);
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

static void decode_scores(const float* q, int count, const std::byte* const* k,
                          const std::byte* const* ahead, int keys, int dim, DType source,
                          float* s) {
  with_dtype(source,
             [&]<DType kSource>() { decode_scores_of<kSource>(q, count, k, ahead, keys, dim, s); });
}

static void decode_accumulate(const float* p, int count, const std::byte* const* v,
                              const std::byte* const* ahead, int keys, int dim, DType source,
                              const float* alpha, float* o) {
  ask_for(ahead, keys, dim * static_cast<int>(size_of(source)));
  with_dtype(source, [&]<DType kSource>() {
    with_row_count(count, [&]<int kCount>() {
      decode_accumulate_rows<kCount, kSource>(p, v, keys, dim, alpha, o);
    });
  });
}

}  // namespace attn::cpu::ATTN_ISA
