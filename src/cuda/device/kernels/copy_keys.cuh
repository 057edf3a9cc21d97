// K and V of types of their own (tile/cache_type.cuh), times their scales, in the type of Q: what
// many rows of Q read many times is converted once. Copies are [batch, seqlen_k, heads_k, dim], of
// packed K [rows, heads_k, dim]; keys on pages that do not exist become 0, and keys past a length
// are left alone.
//
// Reads of C:
//   Element               BFloat16 or Float16
//   kHeadDim, kHeadDimV   multiples of 8
//   kAligned              rows are, to as many bytes as divide them, up to 16
//   CacheK, CacheV, kScaledK, kScaledV, kPageSize, kPackedK, kUsedK
// Grid: blocks of 256 threads, one for 8 elements of K, then of V.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "tile/accumulator.cuh"
#include "tile/cache_type.cuh"

namespace attn::device {

// Eight elements of a row as Elements.
template <class C, class Cache, bool kScaled>
ATTN_DEVICE Words4 converted(const char* row, int column, float scale) {
  using Element = typename C::Element;
  unsigned words[4];
  if constexpr (C::kAligned || Cache::kBlocked) {
    constexpr int kQuads = Cache::template kQuads<8>;
    const unsigned bits = Cache::scale_bits(row, column);
    const BlockScales<Element> scales(bits, bits);
#pragma unroll
    for (int first = 0; first < 2; first += kQuads) {
      typename Cache::Quad quads[kQuads];
      Cache::load(quads, row, column + 4 * first);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        unsigned* const to = words + 2 * (first + i);
        to[0] = Cache::template pair<Element, 0, 1>(quads[i], quads[i]);
        to[1] = Cache::template pair<Element, 2, 3>(quads[i], quads[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Cache::kBlocked) words[i] = scales.times(words[i]);
      if constexpr (kScaled) {
        words[i] = Element::pack(low_half<Element>(words[i]) * scale,
                                 high_half<Element>(words[i]) * scale);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = Element::pack(Cache::element(row, column + 2 * i) * scale,
                               Cache::element(row, column + 2 * i + 1) * scale);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

template <class C, class Cache, bool kScaled, int kDim>
ATTN_DEVICE void copy_elements(const CopyKeysParams& p, const void* from, const Strides& strides,
                               const float* scales, const Strides& scale_strides, void* to,
                               long long item) {
  constexpr int kColumns = 8, kAcross = kDim / kColumns;
  const int column = static_cast<int>(item % kAcross) * kColumns;
  const long long row = item / kAcross / p.heads_k;  // of all sequences
  const int head = static_cast<int>(item / kAcross % p.heads_k);
  long long batch = 0, key = row;
  if constexpr (!C::kPackedK) {
    batch = row / p.seqlen_k;
    key = row % p.seqlen_k;
    if (C::kUsedK && key >= p.seqused_k[batch]) return;
    if constexpr (C::kPageSize > 0) {
      batch = p.page_table[batch * p.page_table_stride + key / C::kPageSize];
      if (batch < 0 || batch >= p.num_pages) {  // as where pages are read in place
        static_cast<Words4*>(to)[item] = {};
        return;
      }
      key %= C::kPageSize;
    }
  }
  const auto at = [&](const Strides& s) { return batch * s.batch + key * s.row + head * s.head; };
  const char* const elements = static_cast<const char*>(from) + Cache::kStorageBytes * at(strides);
  float scale = 1;
  if constexpr (kScaled) scale = cache_scale(scales[at(scale_strides)]);
  static_cast<Words4*>(to)[item] = converted<C, Cache, kScaled>(elements, column, scale);
}

template <class C>
ATTN_DEVICE void copy_keys(const CopyKeysParams& p) {
  const long long item = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  const long long rows = p.rows * p.heads_k, of_k = rows * (C::kHeadDim / 8);
  if (item < of_k) {
    copy_elements<C, typename C::CacheK, C::kScaledK, C::kHeadDim>(p, p.k, p.k_strides, p.scale_k,
                                                                   p.scale_k_strides, p.to_k, item);
  } else if (item - of_k < rows * (C::kHeadDimV / 8)) {
    copy_elements<C, typename C::CacheV, C::kScaledV, C::kHeadDimV>(
        p, p.v, p.v_strides, p.scale_v, p.scale_v_strides, p.to_v, item - of_k);
  }
}

}  // namespace attn::device
