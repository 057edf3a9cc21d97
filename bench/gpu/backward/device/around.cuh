// The small kernels before and after the backward kernel.
#pragma once

#include "backward_sm90/layout.cuh"
#include "ptx/math.cuh"
#include "tile/accumulator.cuh"

namespace attn::device {

struct alignas(16) Float4 {
  float x, y, z, w;
};

// D = row sums of dO O, LSE in base 2, dQ = 0. kHeadDim / 8 threads a row, 16 bytes each. Grid:
// rows of all heads, rounded up to kBlockM, by 2048 / kHeadDim; 256 threads.
template <class C>
__device__ __forceinline__ void prepare_backward(const BackwardParams& p) {
  constexpr int kThreads = C::kHeadDim / 8;
  const int rows = p.query_blocks * C::kBlockM;
  const long long at =
      static_cast<long long>(blockIdx.x) * (256 / kThreads) + threadIdx.x / kThreads;
  if (at >= static_cast<long long>(p.batch) * p.heads * rows) return;
  const int pair = static_cast<int>(at / rows), row = static_cast<int>(at % rows);
  const int chunk = static_cast<int>(threadIdx.x % kThreads);
  float sum = 0;
  if (row < p.seqlen_q) {
    const long long element =
        ((static_cast<long long>(pair / p.heads) * p.seqlen_q + row) * p.heads + pair % p.heads) *
            C::kHeadDim +
        8 * chunk;
    const Words4 a = *reinterpret_cast<const Words4*>(static_cast<const char*>(p.o) + 2 * element);
    const Words4 b =
        *reinterpret_cast<const Words4*>(static_cast<const char*>(p.d_o) + 2 * element);
    const auto add = [&](unsigned x, unsigned y) {
      sum = fmaf(__uint_as_float(x << 16), __uint_as_float(y << 16), sum);
      sum = fmaf(__uint_as_float(x & 0xffff0000), __uint_as_float(y & 0xffff0000), sum);
    };
    add(a.x, b.x);
    add(a.y, b.y);
    add(a.z, b.z);
    add(a.w, b.w);
  }
#pragma unroll
  for (int i = kThreads / 2; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
  if (chunk == 0) {
    p.d[at] = sum;
    const float lse = row < p.seqlen_q ? p.lse[static_cast<long long>(pair) * p.seqlen_q + row] : 0;
    // A row that sees nothing, and one that does not exist: P = 2^(S - infinity) = 0.
    p.lse2[at] =
        row < p.seqlen_q && lse > minus_infinity() ? lse * 1.4426950408889634f : -minus_infinity();
  }
  Float4* const to = reinterpret_cast<Float4*>(p.dq_sum + at * C::kHeadDim);
  to[chunk] = {0, 0, 0, 0};
  to[chunk + kThreads] = {0, 0, 0, 0};
}

// dQ from accumulator order to its tensor, rounded. Grid: blocks of queries of all heads; 128
// threads.
template <class C>
__device__ __forceinline__ void finish_backward(const BackwardParams& p) {
  const int pair = static_cast<int>(blockIdx.x) / p.query_blocks;
  const int block = static_cast<int>(blockIdx.x) % p.query_blocks;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const Float4* from = reinterpret_cast<const Float4*>(p.dq_sum) +
                       (static_cast<long long>(blockIdx.x) * 4 + warp) * 4 * C::kHeadDim + lane;
  float a[C::kHeadDim / 2];
#pragma unroll
  for (int j = 0; j < C::kHeadDim / 8; ++j) {
    const Float4 w = from[32 * j];
    a[4 * j] = w.x;
    a[4 * j + 1] = w.y;
    a[4 * j + 2] = w.z;
    a[4 * j + 3] = w.w;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = block * C::kBlockM + warp * 16 + lane / 4 + 8 * i;
    char* to = static_cast<char*>(p.dq) +
               2 *
                   ((static_cast<long long>(pair / p.heads) * p.seqlen_q + row) * p.heads +
                    pair % p.heads) *
                   C::kHeadDim;
    store_row<BFloat16, C::kHeadDim>(a, i, p.scale, to, row < p.seqlen_q);
  }
}

}  // namespace attn::device
