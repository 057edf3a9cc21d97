// Q, K and V of types of their own (tile/cache_type.cuh), times their scales, in the type of O:
// what products read many times is converted once. Copies of Q are [batch, seqlen_q, heads_q, dim],
// of packed Q [rows, heads_q, dim], and those of K and V likewise; keys on pages that do not exist
// become 0, and rows past a length are left alone.
//
// Reads of C:
//   Element               of the copies; BFloat16 or Float16 where K and V are copied
//   kHeadDim, kHeadDimV   multiples of 8 where K and V are copied
//   kAligned              rows are, to as many bytes as divide them, up to 16
//   kCopiesQ: CacheQ, kScaledQ, kPackedQ, kUsedQ, kWide
//   kCopiesKeys: CacheK, CacheV, kScaledK, kScaledV, kPageSize, kPackedK, kUsedK, kWide
// Grid: blocks of 256 threads, one for kColumnsOf<C, dim> elements of Q, of K, then of V.
#pragma once

#include "device.cuh"
#include "index.cuh"
#include "params.cuh"
#include "tile/accumulator.cuh"
#include "tile/cache_type.cuh"

namespace attn::device {

// Elements of a row that a thread converts (forward/copied_operands.cpp counts them too).
template <class C, int kDim>
inline constexpr int kColumnsOf =
    sizeof(typename Scalar<typename C::Element>::Storage) == 2 && kDim % 8 == 0 ? 8 : 1;

// Eight elements of a row as Elements.
template <class C, class Cache, bool kScaled>
ATTN_DEVICE Words4 converted(const char* row, int column, float scale) {
  using Element = typename C::Element;
  unsigned words[4];
  if constexpr (C::kAligned) {
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

// Where a row of all sequences lies, and whether it is one to be copied, or to become 0.
struct CopiedRow {
  long long batch, row;
  bool used = true, exists = true;
};
template <class C>
ATTN_DEVICE CopiedRow copied_query(const CopyOperandsParams& p, long long row) {
  if constexpr (C::kPackedQ) return {0, row};
  const long long batch = row / p.seqlen_q, query = row % p.seqlen_q;
  return {batch, query, !C::kUsedQ || query < load_index<C, kWideSequsedQ>(p.seqused_q, batch)};
}
template <class C>
ATTN_DEVICE CopiedRow copied_key(const CopyOperandsParams& p, long long row) {
  if constexpr (C::kPackedK) return {0, row};
  const long long batch = row / p.seqlen_k, key = row % p.seqlen_k;
  if (C::kUsedK && key >= load_index<C, kWideSequsedK>(p.seqused_k, batch))
    return {batch, key, false};
  if constexpr (C::kPageSize > 0) {
    const int page = load_index<C, kWidePageTable>(
        p.page_table, batch * p.page_table_stride + key / C::kPageSize);
    return {page, key % C::kPageSize, true, page >= 0 && page < p.num_pages};
  }
  return {batch, key};
}

// kDim elements of each row of each head.
template <class C, class Cache, bool kScaled, int kDim>
ATTN_DEVICE void copy_elements(const CopiedRow& at_row, int head, int column, const void* from,
                               const Strides& strides, const float* scales,
                               const Strides& scale_strides, void* to, long long item) {
  using Element = typename C::Element;
  using Storage = typename Scalar<Element>::Storage;
  if (!at_row.used) return;
  const auto at = [&](const Strides& s) {
    return at_row.batch * s.batch + at_row.row * s.row + head * s.head;
  };
  float scale = 1;
  if constexpr (kScaled) {
    if (at_row.exists) scale = cache_scale(scales[at(scale_strides)]);
  }
  const char* const row = static_cast<const char*>(from) + Cache::kStorageBytes * at(strides);
  if constexpr (kColumnsOf<C, kDim> == 8) {
    static_cast<Words4*>(to)[item] =
        at_row.exists ? converted<C, Cache, kScaled>(row, column, scale) : Words4{};
  } else {
    static_cast<Storage*>(to)[item] = Scalar<Element>::to(Cache::element(row, column) * scale);
  }
}

template <class C>
ATTN_DEVICE void copy_operands(const CopyOperandsParams& p) {
  long long item = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  if constexpr (C::kCopiesQ) {
    constexpr int kColumns = kColumnsOf<C, C::kHeadDim>, kAcross = C::kHeadDim / kColumns;
    const long long of_q = p.rows_q * p.heads_q * kAcross;
    if (item < of_q) {
      const long long row = item / kAcross / p.heads_q;
      copy_elements<C, typename C::CacheQ, C::kScaledQ, C::kHeadDim>(
          copied_query<C>(p, row), static_cast<int>(item / kAcross % p.heads_q),
          static_cast<int>(item % kAcross) * kColumns, p.q, p.q_strides, p.scale_q,
          p.scale_q_strides, p.to_q, item);
      return;
    }
    item -= of_q;
  }
  if constexpr (C::kCopiesKeys) {
    constexpr int kAcross = C::kHeadDim / 8, kAcrossV = C::kHeadDimV / 8;
    const long long rows = p.rows * p.heads_k, of_k = rows * kAcross;
    if (item < of_k) {
      copy_elements<C, typename C::CacheK, C::kScaledK, C::kHeadDim>(
          copied_key<C>(p, item / kAcross / p.heads_k),
          static_cast<int>(item / kAcross % p.heads_k), static_cast<int>(item % kAcross) * 8, p.k,
          p.k_strides, p.scale_k, p.scale_k_strides, p.to_k, item);
      return;
    }
    item -= of_k;
    if (item >= rows * kAcrossV) return;
    copy_elements<C, typename C::CacheV, C::kScaledV, C::kHeadDimV>(
        copied_key<C>(p, item / kAcrossV / p.heads_k),
        static_cast<int>(item / kAcrossV % p.heads_k), static_cast<int>(item % kAcrossV) * 8, p.v,
        p.v_strides, p.scale_v, p.scale_v_strides, p.to_v, item);
  }
}

}  // namespace attn::device
