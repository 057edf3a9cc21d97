// Sums of the gradients of buffers that a score reads, in memory, in float64.
//
// The order of additions from different threads varies between runs, so equal inputs give sums that
// differ in the last bits of float64; rounded to float32 they are equal but for rare cases.
#pragma once

#include "expr/gradient_sums.cuh"

namespace attn::device {

// What a thread has yet to add to one element. Scores of a tile often read the same one.
struct PendingSum {
  long long element = -1;  // none
  double sum = 0;
};

__device__ __forceinline__ void flush_to(PendingSum& pending, const GradientSums& g) {
  if (pending.element >= 0) atomicAdd(g.sums + pending.element, pending.sum);
  pending = {};
}

// Adds x to the element at an index; to none outside the buffer.
template <class... Index>
__device__ __forceinline__ void add_to(PendingSum& pending, const GradientSums& g, float x,
                                       Index... index) {
  constexpr int kRank = sizeof...(Index);
  const int indices[kRank] = {index...};
  long long element = 0;
  bool inside = true;
#pragma unroll
  for (int d = 0; d < kRank; ++d) {
    const long long size = g.sizes[d], i = size == 1 ? 0 : indices[d];
    inside = inside & (i >= 0) & (i < size);
    element = element * size + i;
  }
  if (!inside) return;
  if (element != pending.element) {
    flush_to(pending, g);
    pending.element = element;
  }
  pending.sum += x;
}

}  // namespace attn::device
