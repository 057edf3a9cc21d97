// Gradients of buffers, before and after what is summed in memory: one thread an element.
//
// Grid: as many blocks of 256 threads as there are elements.
#pragma once

#include "device.cuh"
#include "expr/superaccumulator.cuh"
#include "params.cuh"

namespace attn::device {

inline constexpr int kBackwardBuffersThreads = 256;

ATTN_DEVICE long long element_of_thread() {
  return static_cast<long long>(blockIdx.x) * kBackwardBuffersThreads + threadIdx.x;
}

// Sums of any type, as so many float64.
ATTN_DEVICE void clear_sums(double* sums, long long size) {
  if (element_of_thread() < size) sums[element_of_thread()] = 0;
}

template <class Sum>
ATTN_DEVICE void store_buffer_gradient(const BufferGradientParams<Sum>& p) {
  const long long element = element_of_thread();
  if (element >= p.size) return;
  long long rest = element, at = 0;
#pragma unroll
  for (int d = 3; d >= 0; --d) {
    at += rest % p.shape[d] * p.strides[d];
    rest /= p.shape[d];
  }
  double sum = p.sums != nullptr ? rounded(p.sums[element]) : 0;
  for (int split = 0; split < p.splits; ++split) sum += p.elements[split * p.size + element];
  p.to[at] = static_cast<float>(sum);
}

}  // namespace attn::device
