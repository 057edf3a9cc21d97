// Decoding: a handful of query rows against a long cache. The work is reading K and V once, so dims
// lie in lanes, rows of the cache are read where they are, and kDecodeKeys of them go by side by
// side: a CPU's prefetchers follow that many streams well, where one or two reach half of the
// bandwidth (docs/log/cpu.md).
#pragma once

#include "cpu/kernels/convert.hpp"
#include "cpu/kernels/softmax.hpp"
#include "cpu/tile_ops.hpp"

// The vector is in a register here.
#if ATTN_VECTOR_BYTES == 64
#define ATTN_IN_REGISTER(v) asm volatile("" : "+v"(v))
#elif defined(__x86_64__)
#define ATTN_IN_REGISTER(v) asm volatile("" : "+x"(v))
#else
#define ATTN_IN_REGISTER(v) static_cast<void>(v)
#endif

namespace attn::cpu::ATTN_ISA {

// Lane i of the result, i < kCount, is the sum of the lanes of x[i]: each round adds neighbours of
// two vectors and halves their number. The other lanes repeat those.
template <int kCount>
ATTN_INLINE F reduce_all(F (&x)[kCount]) {
#if ATTN_VECTOR_BYTES == 32
  if constexpr (kCount == kLanes) {
    // The same sums. Neighbours are in one half of a vector until the last round, and shuffles
    // that stay in a half take a cycle, where others take three or more.
#pragma GCC unroll 2
    for (int n = kCount / 2; n > 1; n /= 2) {
#pragma GCC unroll 4
      for (int i = 0; i < n; ++i) {
        x[i] = _mm256_shuffle_ps(x[2 * i], x[2 * i + 1], 0x88) +
               _mm256_shuffle_ps(x[2 * i], x[2 * i + 1], 0xdd);
      }
    }
    return _mm256_permute2f128_ps(x[0], x[1], 0x20) + _mm256_permute2f128_ps(x[0], x[1], 0x31);
  }
#elif defined(__aarch64__)
#pragma GCC unroll 2
  for (int n = kCount; n > 1; n /= 2) {
#pragma GCC unroll 2
    for (int i = 0; i < n / 2; ++i) x[i] = vpaddq_f32(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int n = kCount; n < kLanes; n *= 2) x[0] = vpaddq_f32(x[0], x[0]);
  return x[0];
#else
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
#endif
}

// sums[i] <- the sum of the lanes of x[i]; whole vectors are written.
template <int kCount>
ATTN_INLINE void store_reduced(F (&x)[kCount], float* sums) {
  if constexpr (kCount <= kLanes) {
    store(sums, reduce_all(x));
  } else {
#pragma GCC unroll 4
    for (int first = 0; first < kCount; first += kLanes) {
      F part[kLanes];
#pragma GCC unroll 4
      for (int i = 0; i < kLanes; ++i) part[i] = x[first + i];
      store(sums + first, reduce_all(part));
    }
  }
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

// decode_scores takes kGroup rows with as many keys side by side as their sums fill one vector, or
// half of one where there is one row: AVX2 one row with 8 keys, 2 with 4, 4 with 2. NEON, whose
// vectors are short, fills several: the sums of one are too few for the latency of its FMLA. Each K
// is widened once for the rows of a group, which with 16-bit types takes longer than its FMA.
template <int kGroup>
inline constexpr int kSumKeys = kByElement ? (kGroup == 1 ? 8 : 4) : kLanes / kGroup;
template <int kGroup>
inline constexpr int kScoreKeys = kSumKeys<kGroup> < kDecodeKeys ? kSumKeys<kGroup> : kDecodeKeys;

// s[key][row] <- of kGroup rows of q with `keys` keys; k holds kDecodeKeys rows that may be read.
// kPart: dim is no multiple of kLanes. A function of its own, so that GCC keeps all sums in
// registers.
template <int kGroup, CacheType kSource, bool kPart>
static __attribute__((noinline)) void decode_scores_group(const float* const* q,
                                                          const std::byte* const* k, int keys,
                                                          int dim, float* s, int stride) {
  constexpr int kKeys = kScoreKeys<kGroup>;
  const float* q_row[kGroup];
  for (int r = 0; r < kGroup; ++r) q_row[r] = q[r];
  const int whole = kPart ? dim / kLanes * kLanes : dim;
  for (int first = 0; first < keys; first += kKeys) {
    const std::byte* row[kKeys];
    for (int j = 0; j < kKeys; ++j) row[j] = k[first + j];
    F rest[kKeys] = {};  // loaded before the sums start, since it takes calls
    if constexpr (kPart) {
      for (int j = 0; j < kKeys; ++j) rest[j] = load_row_part(row[j], whole, dim - whole, kSource);
    }
    F acc[kKeys * kGroup] = {};  // [key][row]
    const auto add = [&](int d, const auto& element) __attribute__((always_inline)) {
      F x[kGroup];
#pragma GCC unroll 4
      for (int r = 0; r < kGroup; ++r) {
        x[r] = load(q_row[r] + d);
        // In a register for all keys: GCC would load it again for each.
        if constexpr (kGroup > 1) ATTN_IN_REGISTER(x[r]);
      }
#pragma GCC unroll 8
      for (int j = 0; j < kKeys; ++j) {
        const F y = element(j);
#pragma GCC unroll 4
        for (int r = 0; r < kGroup; ++r) acc[j * kGroup + r] = fma(y, x[r], acc[j * kGroup + r]);
      }
    };
    for (int d = 0; d < whole; d += kLanes) {
      add(
          d, [&](int j) __attribute__((always_inline)) { return load_row(row[j], d, kSource); });
    }
    if constexpr (kPart) {
      add(
          whole, [&](int j) __attribute__((always_inline)) { return rest[j]; });
    }
    float sums[kKeys * kGroup > kLanes ? kKeys * kGroup : kLanes];
    store_reduced(acc, sums);
    for (int j = 0; j < kKeys && first + j < keys; ++j) {
      __builtin_memcpy(s + (first + j) * stride, sums + j * kGroup, kGroup * sizeof(float));
    }
  }
}

// The scores of up to kGroup rows with all keys; the last row stands in for those that are not
// there.
template <int kGroup, CacheType kSource>
ATTN_INLINE void decode_scores_rows(const float* q, int count, const std::byte* const* k, int keys,
                                    int dim, float* s, int stride) {
  const float* q_row[kGroup];
  for (int r = 0; r < kGroup; ++r) q_row[r] = q + (r < count ? r : count - 1) * leading_dim(dim);
  if (dim % kLanes == 0) {
    decode_scores_group<kGroup, kSource, false>(q_row, k, keys, dim, s, stride);
  } else {
    decode_scores_group<kGroup, kSource, true>(q_row, k, keys, dim, s, stride);
  }
}

// The first rows find K in memory, the others in L1.
template <CacheType kSource>
ATTN_INLINE void decode_scores_of(const float* q, int count, const std::byte* const* k,
                                  const std::byte* const* ahead, int keys, int dim, float* s) {
  const int stride = decode_row_stride(count);
  ask_for(ahead, keys, static_cast<int>(core::row_bytes(kSource, dim)));
  const std::byte* row[kDecodeKeys];
  for (int j = 0; j < kDecodeKeys; ++j) row[j] = k[j < keys ? j : keys - 1];
  for (int r = 0; r < count; r += 4) {
    const float* of_q = q + r * leading_dim(dim);
    const int rest = count - r;
    if (rest == 1) {
      decode_scores_rows<1, kSource>(of_q, 1, row, keys, dim, s + r, stride);
    } else if (rest == 2) {
      decode_scores_rows<2, kSource>(of_q, 2, row, keys, dim, s + r, stride);
    } else {
      decode_scores_rows<4, kSource>(of_q, rest, row, keys, dim, s + r, stride);
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
    x = kSum ? x + y : max_score(x, y);
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
    for (int i = lane; i < whole; i += kPeriod * kLanes) top = max_score(top, load(s + i));
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
// kStride: floats of P a key. kKeys: `keys` where it is known, else 0.
template <int kCount, int kStride, int kColumns, CacheType kSource, int kKeys>
ATTN_INLINE void decode_accumulate_columns(const float* p, const std::byte* const* v, int keys,
                                           int d, int width, int ld, const float* alpha, float* o) {
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
template <int kCount, int kStride, int kColumns, CacheType kSource, int kKeys>
ATTN_INLINE void decode_accumulate_from(const float* p, const std::byte* const* v, int keys, int d,
                                        int dim, const float* alpha, float* o) {
  const int ld = leading_dim(dim);
  for (; d + kColumns * kLanes <= dim; d += kColumns * kLanes) {
    decode_accumulate_columns<kCount, kStride, kColumns, kSource, kKeys>(
        p, v, keys, d, kColumns * kLanes, ld, alpha, o);
  }
  if constexpr (kColumns > 1) {
    decode_accumulate_from<kCount, kStride, kColumns / 2, kSource, kKeys>(p, v, keys, d, dim, alpha,
                                                                          o);
  } else if (d < dim) {
    decode_accumulate_columns<kCount, kStride, 1, kSource, 0>(p, v, keys, d, dim - d, ld, alpha, o);
  }
}

// Vectors of a line of a row of V, but two where NEON widens single bytes: of four some are
// spilled.
template <CacheType kSource>
inline constexpr int kMostColumns = kByElement&& kSource != CacheType::f32&& kSource !=
                                            CacheType::bf16&& kSource != CacheType::f16
                                        ? 2
                                        : 64 / ((kSource == CacheType::f32 ? 4 : 2) * kLanes);

template <int kCount, int kStride, CacheType kSource>
static __attribute__((noinline)) void decode_accumulate_rows(const float* p,
                                                             const std::byte* const* v, int keys,
                                                             int dim, const float* alpha,
                                                             float* o) {
  // A line of each row of V at a time, where the accumulators leave registers for the loads: they
  // take 16 of 32, or 8 of 16.
  constexpr int kLine = kMostColumns<kSource>;
  constexpr int kMost = (kManyRegisters ? 16 : 8) / kCount;
  constexpr int kFit = kMost >= 4 ? 4 : kMost >= 2 ? 2 : 1;
  constexpr int kColumns = kLine < kFit ? kLine : kFit;
  if (keys == kDecodeKeys) {
    const std::byte* row[kDecodeKeys];
    for (int j = 0; j < kDecodeKeys; ++j) row[j] = v[j];
    decode_accumulate_from<kCount, kStride, kColumns, kSource, kDecodeKeys>(p, row, keys, 0, dim,
                                                                            alpha, o);
  } else {
    decode_accumulate_from<kCount, kStride, kColumns, kSource, 0>(p, v, keys, 0, dim, alpha, o);
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

static inline void decode_scores(const float* q, int count, const std::byte* const* k,
                                 const std::byte* const* ahead, int keys, int dim, CacheType source,
                                 float* s) {
  with_cache_type(source, [&]<CacheType kSource>() {
    decode_scores_of<kSource>(q, count, k, ahead, keys, dim, s);
  });
}

static inline void decode_accumulate(const float* p, int count, const std::byte* const* v,
                                     const std::byte* const* ahead, int keys, int dim,
                                     CacheType source, const float* alpha, float* o) {
  ask_for(ahead, keys, static_cast<int>(core::row_bytes(source, dim)));
  with_cache_type(source, [&]<CacheType kSource>() {
    with_row_count(count, [&]<int kCount>() {
      constexpr int kStride = decode_row_stride(kCount);
      // Of 16 registers 8 rows leave one column: 9 loads for 8 FMAs. In two halves, which read V
      // from L1 again, these are 6.
      constexpr int kRest = !kManyRegisters && kCount > 4 ? kCount - 4 : 0;
      constexpr int kFirst = kCount - kRest;
      decode_accumulate_rows<kFirst, kStride, kSource>(p, v, keys, dim, alpha, o);
      if constexpr (kRest > 0) {
        decode_accumulate_rows<kRest, kStride, kSource>(p + kFirst, v, keys, dim, alpha + kFirst,
                                                        o + kFirst * leading_dim(dim));
      }
    });
  });
}

}  // namespace attn::cpu::ATTN_ISA
