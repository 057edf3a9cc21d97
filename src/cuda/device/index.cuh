// Lengths, starts of sequences, pages and lists of keys as the caller has them: int, or long long
// where the kernel is compiled for it (Config::kWide).
#pragma once

#include "device.cuh"
#include "params.cuh"

namespace attn::device {

template <bool kWide>
struct IndexType {
  using Type = int;
};
template <>
struct IndexType<true> {
  using Type = long long;
};

template <bool kWide>
ATTN_DEVICE const typename IndexType<kWide>::Type* indices(const void* data) {
  return static_cast<const typename IndexType<kWide>::Type*>(data);
}
template <class C, WideTensor kTensor>
ATTN_DEVICE auto indices(const void* data) {
  return indices<(C::kWide & kTensor) != 0>(data);
}

// A number past the range of int becomes its end, which is as far out of what is accepted.
ATTN_DEVICE int to_index(int x) { return x; }
ATTN_DEVICE int to_index(long long x) {
  constexpr long long kLargest = 0x7fffffff;
  return static_cast<int>(x > kLargest ? kLargest : x < -kLargest - 1 ? -kLargest - 1 : x);
}

template <class C, WideTensor kTensor, class I>
ATTN_DEVICE int load_index(const void* data, I i) {
  return to_index(indices<C, kTensor>(data)[i]);
}

}  // namespace attn::device
