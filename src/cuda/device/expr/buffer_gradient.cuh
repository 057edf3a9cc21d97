// Gradients of the buffers that a score reads. An element that one query and one key read is stored
// by the thread that has them, so its sum has a fixed order (ElementGradient). All others are added
// to in memory (GradientSums), where the order of additions from different threads varies between
// runs. In float64 equal inputs give sums that differ in the last bits; rounded to float32 they are
// equal but for rare cases. A Superaccumulator is exact, so equal inputs give equal bits: what a
// thread or a warp adds at once is summed in a fixed order.
#pragma once

#include "device.cuh"
#include "expr/gradient_sums.cuh"
#include "expr/superaccumulator.cuh"

namespace attn::device {

// What a thread has yet to add to one element. Scores of a tile often read the same one.
struct PendingSum {
  long long element = -1;  // none
  double sum = 0;
};

template <class Sum>
ATTN_DEVICE void flush_to(PendingSum& pending, const GradientSums<Sum>& g) {
  if (pending.element >= 0) add_to_sum(g.sums + pending.element, pending.sum);
  pending = {};
}

// Does the same for a warp whose threads all call it: one addition where all lanes have the same
// element.
template <class Sum>
ATTN_DEVICE void flush_warp_to(PendingSum& pending, const GradientSums<Sum>& g) {
  const long long first = __shfl_sync(~0u, pending.element, 0);
  if (__any_sync(~0u, pending.element != first)) return flush_to(pending, g);
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    pending.sum += __shfl_xor_sync(~0u, pending.sum, lanes);
  }
  if (threadIdx.x % 32 != 0) pending.element = -1;
  flush_to(pending, g);
}

// index[d] within the dimension d, of which a size of 1 takes any; -1: outside.
ATTN_DEVICE long long index_within(long long size, int index) {
  if (size == 1) return 0;
  return index >= 0 && index < size ? index : -1;
}

// Adds x to the element at an index; to none outside the buffer.
template <class Sum, class... Index>
ATTN_DEVICE void add_to(PendingSum& pending, const GradientSums<Sum>& g, float x, Index... index) {
  constexpr int kRank = sizeof...(Index);
  const int indices[kRank] = {index...};
  long long element = 0;
  bool inside = true;
#pragma unroll
  for (int d = 0; d < kRank; ++d) {
    const long long i = index_within(g.sizes[d], indices[d]);
    inside = inside & (i >= 0);
    element = element * g.sizes[d] + i;
  }
  if (!inside) return;
  if (element != pending.element) {
    flush_to(pending, g);
    pending.element = element;
  }
  pending.sum += x;
}

// Where an element lies, and whether it is one of the buffer.
struct ElementPlace {
  long long at;
  bool inside;
};
// Dimension kSkipped, if there is one, is not looked at.
template <int kSkipped = -1, class... Index>
ATTN_DEVICE ElementPlace element_place(const ElementGradient& g, int split, Index... index) {
  constexpr int kRank = sizeof...(Index);
  const int indices[kRank] = {index...};
  long long at = split * g.split_stride;
  bool inside = true;
#pragma unroll
  for (int d = 0; d < kRank; ++d) {
    if (d == kSkipped) continue;
    const long long i = index_within(g.sizes[d], indices[d]);
    inside = inside & (i >= 0);
    at += i * g.strides[d];
  }
  return {at, inside};
}

// Stores x as the element at an index; as none outside the buffer.
template <class... Index>
ATTN_DEVICE void store_element(const ElementGradient& g, int split, float x, Index... index) {
  const ElementPlace place = element_place(g, split, index...);
  if (place.inside) g.to[place.at] = x;
}

// Elements of a query: that of a key is to[key * stride], for keys below `count`.
struct ElementRow {
  float* to;
  long long count, stride;
};
// index: as of store_element; the one of dimension kKey, the key, is not looked at.
template <int kKey, class... Index>
ATTN_DEVICE ElementRow element_row(const ElementGradient& g, int split, Index... index) {
  const ElementPlace place = element_place<kKey>(g, split, index...);
  return {g.to + place.at, place.inside ? g.sizes[kKey] : 0, g.strides[kKey]};
}

}  // namespace attn::device
