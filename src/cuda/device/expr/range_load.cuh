// Ranges of what a load reads.
#pragma once

#include "device.cuh"
#include "expr/buffer.cuh"
#include "expr/range_float.cuh"

namespace attn::device {

// Elements that one load may look at. The longest side of a tile is 256 keys or queries, and a
// thread reads as many in a few microseconds; the CPU looks at 4096.
inline constexpr unsigned kMaxScannedElements = 256;

// The hull of what it was given.
struct IntScan {
  using Range = IntRange;
  IntRange range{kIntMax, kIntMin};
  ATTN_DEVICE void add(int value) { range = range_hull(range, range_of(value)); }
  ATTN_DEVICE IntRange result() const { return range; }
};
struct FloatScan {
  using Range = FloatRange;
  FloatRange range{kInfinity, -kInfinity, false};
  ATTN_DEVICE void add(float value) {
    range.nan = range.nan || value != value;
    range.lo = value < range.lo ? value : range.lo;  // a NaN value changes neither
    range.hi = value > range.hi ? value : range.hi;
  }
  // Where all elements are NaN no range was found, and an empty one would make comparisons of
  // bounds meaningless; others with a NaN have as wide a range, as on the CPU.
  ATTN_DEVICE FloatRange result() const { return range.nan ? range_any_float() : range; }
};
template <class Element>
struct ScanOf {
  using Scan = FloatScan;
  static ATTN_DEVICE FloatRange any() { return range_any_float(); }
  static ATTN_DEVICE FloatRange zero() { return {0, 0, false}; }
};
template <>
struct ScanOf<ElementI32> {
  using Scan = IntScan;
  static ATTN_DEVICE IntRange any() { return {kIntMin, kIntMax}; }
  static ATTN_DEVICE IntRange zero() { return {0, 0}; }
};
template <>
struct ScanOf<ElementU8> {
  using Scan = IntScan;
  static ATTN_DEVICE IntRange any() { return {0, 255}; }
  static ATTN_DEVICE IntRange zero() { return {0, 0}; }
};

// An index that is one number needs no loop.
template <class Index>
inline constexpr bool kIsRange = false;
template <>
inline constexpr bool kIsRange<IntRange> = true;

// The element at any index of the box with one range, or one number, a dimension: the same rules as
// src/core/expr/bounds_load.cpp.
template <class Element, class... Ranges>
ATTN_DEVICE typename ScanOf<Element>::Scan::Range range_load(const BufferView& view,
                                                             Ranges... ranges) {
  using Of = ScanOf<Element>;
  constexpr int kRank = sizeof...(Ranges);
  constexpr int kFirst = 4 - kRank;  // dimensions before it have one element
  const IntRange index[kRank] = {range_of(ranges)...};
  constexpr bool kLoops[kRank] = {kIsRange<Ranges>...};
  long long bytes = 0;
  unsigned count[4] = {1, 1, 1, 1};
  long long stride[4] = {};
  unsigned elements = 1;  // no more than kMaxScannedElements + 1
  bool leaves = false;    // some index lies outside and reads zero
  bool inside = view.data != nullptr;
#pragma unroll
  for (int d = 0; d < kRank; ++d) {
    const unsigned end = view.last[d];
    if (end == ~0u) continue;
    const int first = attn_max(index[d].lo, 0);
    // Below 0 is not inside, whatever it is as unsigned.
    const auto hi = static_cast<unsigned>(index[d].hi), lo = static_cast<unsigned>(first);
    inside = inside & (first <= index[d].hi) & (lo <= end);
    leaves = leaves | (index[d].lo < 0) | (hi > end);
    bytes += first * view.strides[d];
    if (!kLoops[d]) continue;
    const unsigned size = (hi < end ? hi : end) - lo + 1;
    count[kFirst + d] = size;
    stride[kFirst + d] = view.strides[d];
    // Both factors are at most kMaxScannedElements + 1, so the product cannot overflow.
    elements *= size < kMaxScannedElements + 1 ? size : kMaxScannedElements + 1;
    if (elements > kMaxScannedElements) elements = kMaxScannedElements + 1;
  }
  if (!inside) return Of::zero();
  if (elements > kMaxScannedElements) return Of::any();
  typename Of::Scan scan;
  const auto add = [&](long long at) {
    scan.add(Element::value(*at_offset<typename Element::Storage>(view.data, at)));
  };
  if (elements == 1) {  // as of a block mask whose blocks the box lies in
    add(bytes);
    const auto range = scan.result();
    return leaves ? range_hull(range, Of::zero()) : range;
  }
#pragma unroll 1
  for (int i = 0; i < static_cast<int>(count[0]); ++i) {
#pragma unroll 1
    for (int j = 0; j < static_cast<int>(count[1]); ++j) {
#pragma unroll 1
      for (int k = 0; k < static_cast<int>(count[2]); ++k) {
        const long long run = bytes + i * stride[0] + j * stride[1] + k * stride[2];
#pragma unroll 8
        for (int l = 0; l < static_cast<int>(count[3]); ++l) add(run + l * stride[3]);
      }
    }
  }
  const auto range = scan.result();
  return leaves ? range_hull(range, Of::zero()) : range;
}

}  // namespace attn::device
