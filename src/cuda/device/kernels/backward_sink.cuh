// The gradient of a head's sink: dsink = -sum of exp(sink - LSE) D over its rows, in a fixed order.
//
// Grid: heads_q blocks of 1024 threads with 4 bytes of dynamic shared memory for each of 32 warps.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/math.cuh"
#include "softmax/far_rows.cuh"

namespace attn::device {

inline constexpr int kBackwardSinkThreads = 1024;

ATTN_DEVICE float warp_sum_of_sink(float x) {
#pragma unroll
  for (int i = 1; i < 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
  return x;
}

// kFar: rows may be far (softmax/far_rows.cuh), whose scores are `factor` times what m is of.
template <bool kFar>
ATTN_DEVICE void backward_sink(const BackwardParams& p, float factor) {
  extern __shared__ __align__(16) float shared_floats[];
  const int head = static_cast<int>(blockIdx.x);
  const float sink = p.sink[head];
  float sum = 0;
  for (int batch = 0; batch < p.batch; ++batch) {
    const RowTerms* rows =
        p.row_terms + (static_cast<long long>(batch) * p.heads_q + head) * p.seqlen_q;
    for (int i = static_cast<int>(threadIdx.x); i < p.seqlen_q; i += kBackwardSinkThreads) {
      if constexpr (kFar) {
        if (is_far_lse(rows[i].lse)) {
          const FarRow far = far_rows(p, batch, head)[i];
          sum -= exp2f(sink_exponent(sink, factor, far.m) - far.log2_l) * rows[i].d;
          continue;
        }
      }
      // A row without keys has P_sink = 1, be the sink infinite or NaN.
      const bool all = rows[i].lse == sink || sink != sink;
      if (all || rows[i].lse != -minus_infinity()) {
        sum -= (all ? 1 : expf(sink - rows[i].lse)) * rows[i].d;
      }
    }
  }
  sum = warp_sum_of_sink(sum);
  if (threadIdx.x % 32 == 0) shared_floats[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = warp_sum_of_sink(shared_floats[threadIdx.x]);
  if (threadIdx.x == 0) p.dsink[head * p.dsink_stride] = sum;
}

}  // namespace attn::device
