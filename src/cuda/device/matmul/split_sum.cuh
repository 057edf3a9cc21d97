// The second kernel of split_k: the sum of the parts of each element, in order, then bias,
// activation and rounding.
//
// Grid: any number of blocks of 256 threads.
#pragma once

#include "matmul/common.cuh"

namespace attn::device {

template <class C>
__device__ __forceinline__ void matmul_split_sum(const MatmulParams& p) {
  const long long each = static_cast<long long>(p.m) * p.n, size = each * p.batch;
  const long long step = static_cast<long long>(gridDim.x) * 256;
  for (long long at = blockIdx.x * 256ll + threadIdx.x; at < size; at += step) {
    float sum = 0;
    for (int split = 0; split < p.splits; ++split) sum += p.partial[split * size + at];
    const int row = static_cast<int>(at % each / p.n), column = static_cast<int>(at % p.n);
    store_c<C>(p, static_cast<int>(at / each), row, column, sum);
  }
}

}  // namespace attn::device
