// Decoding with VDPBF16PS: dims lie in lanes, a lane a pair of them. K of bf16 is multiplied where
// it lies, V in pairs of keys (decode_bf16.hpp).
#pragma once

#include "cpu/kernels/bf16.hpp"
#include "cpu/kernels/decode_bf16.hpp"

namespace attn::cpu::ATTN_ISA {

// q [count][dim] elements.
static void decode_pack_q_dot(const std::byte* const* row, int count, int dim, void* q) {
  const std::size_t bytes = 2 * static_cast<std::size_t>(dim);
  for (int r = 0; r < count; ++r) {
    __builtin_memcpy(static_cast<std::byte*>(q) + static_cast<std::size_t>(r) * bytes, row[r],
                     bytes);
  }
}

// s[key][row] <- of kGroup rows of q with kDecodeKeys keys: as many of these at a time as fill a
// vector of sums. A function of its own, so that GCC keeps all sums in registers.
template <int kGroup>
static __attribute__((noinline)) void decode_scores_dot_group(const std::byte* const* q,
                                                              const std::byte* const* k, int dim,
                                                              float* s, int stride) {
  constexpr int kKeys = kScoreKeys<kGroup>;
  for (int first = 0; first < kDecodeKeys; first += kKeys) {
    F acc[kKeys * kGroup] = {};  // [key][row]
    for (int at = 0; at < 2 * dim; at += ATTN_VECTOR_BYTES) {
      U x[kGroup];
#pragma GCC unroll 4
      for (int r = 0; r < kGroup; ++r) x[r] = load_as<U>(q[r] + at);
#pragma GCC unroll 8
      for (int j = 0; j < kKeys; ++j) {
        const U y = load_as<U>(k[first + j] + at);
#pragma GCC unroll 4
        for (int r = 0; r < kGroup; ++r) {
          acc[j * kGroup + r] = dot_pairs(x[r], y, acc[j * kGroup + r]);
        }
      }
    }
    float sums[kLanes];
    store_reduced(acc, sums);
    for (int j = 0; j < kKeys; ++j) {
      __builtin_memcpy(s + (first + j) * stride, sums + j * kGroup, kGroup * sizeof(float));
    }
  }
}

static void decode_scores_dot(const void* q, int count, const std::byte* const* k,
                              const std::byte* const* ahead, int keys, int dim, CacheType source,
                              float* s) {
  const int stride = decode_row_stride(count);
  ask_for(ahead, keys, static_cast<int>(core::row_bytes(source, dim)));
  StagedKeys staged;
  const std::byte* row[kDecodeKeys];
  if (source == CacheType::bf16) {
    for (int j = 0; j < kDecodeKeys; ++j) row[j] = k[j < keys ? j : keys - 1];
  } else {
    with_cache_type(source,
                    [&]<CacheType kSource>() { stage_keys<kSource>(k, keys, dim, staged); });
    for (int j = 0; j < kDecodeKeys; ++j) {
      row[j] = reinterpret_cast<const std::byte*>(staged.words + j * dim / 2);
    }
  }
  for (int r = 0; r < count; r += 4) {
    const std::byte* of_q[4];  // the last row stands in for those that are not there
    for (int i = 0; i < 4; ++i) {
      of_q[i] = static_cast<const std::byte*>(q) +
                std::ptrdiff_t{2} * dim * (r + i < count ? r + i : count - 1);
    }
    if (count - r == 1) {
      decode_scores_dot_group<1>(of_q, row, dim, s + r, stride);
    } else if (count - r == 2) {
      decode_scores_dot_group<2>(of_q, row, dim, s + r, stride);
    } else {
      decode_scores_dot_group<4>(of_q, row, dim, s + r, stride);
    }
  }
}

static void decode_accumulate_staged_dot(const float* p, int count, const void* values, int keys,
                                         int dim, const float* alpha, float* o) {
  StagedWeights weights;
  stage_weights(p, count, keys, weights);
  const std::uint32_t* const pairs = static_cast<const std::uint32_t*>(values);
  with_row_count(count, [&]<int kCount>() {
    constexpr int kColumns = 2;  // 16 sums of 8 rows
    const int ld = leading_dim(dim);
    for (int d = 0; d < dim; d += kColumns * kLanes) {
      F acc[kCount][kColumns];
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 2
        for (int c = 0; c < kColumns; ++c) {
          acc[r][c] = load(o + r * ld + d + c * kLanes) * set1(alpha[r]);
        }
      }
      for (int t = 0; t < (keys + 1) / 2; ++t) {
        U x[kColumns];
#pragma GCC unroll 2
        for (int c = 0; c < kColumns; ++c) x[c] = load(pairs + t * dim + d + c * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) {
          const U weight = set1(weights.words[r * kStagedPairs + t]);
#pragma GCC unroll 2
          for (int c = 0; c < kColumns; ++c) acc[r][c] = dot_pairs(weight, x[c], acc[r][c]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 2
        for (int c = 0; c < kColumns; ++c) store(o + r * ld + d + c * kLanes, acc[r][c]);
      }
    }
  });
}

}  // namespace attn::cpu::ATTN_ISA
