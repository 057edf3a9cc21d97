// Rung 10, tma_wgmma: ldmatrix brings operands through registers, and every thread works out
// addresses. On Hopper one thread asks the copy engine for whole tiles, and a warpgroup's wgmma
// reads them from shared memory itself: m64 n128 k16 in one instruction. Expected: 1.5 to 2 times.
// Measured: 2.0 times ldmatrix and 1.07 times pipelined (537 TFLOP/s). What is left: all threads
// wait for a product before the next tile is asked for.
//
// Tile: 128 x 128 x 64, two warpgroups, four stages.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "matmul/hopper_ring.cuh"

namespace attn::device {

template <class C>
ATTN_DEVICE void matmul_tma_wgmma(const MatmulParams& p, const MatmulMaps& maps) {
  extern __shared__ __align__(1024) char memory[];
  const HopperRing<C> ring{shared_address(memory)};
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  launch_dependents();
  wait_for_dependencies();
  const MatmulTile t = matmul_tile(p, static_cast<int>(blockIdx.x), ring.kRows, C::kColumns);
  const int group = uniform(static_cast<int>(threadIdx.x / 128));
  const int tiles = divide_up<ring.kDepth>(p.k);
  if (threadIdx.x == 0) {
    for (int i = 0; i < min(tiles, C::kStages - 1); ++i) ring.load(p, maps, t, i * ring.kDepth, i);
  }
  float sum[C::kColumns / 2] = {};
  for (int i = 0; i < tiles; ++i) {
    const int stage = i % C::kStages, ahead = i + C::kStages - 1;
    mbarrier_wait(ring.full(stage), i / C::kStages % 2);
    pin(sum);
    wgmma_fence();
    ring.multiply(stage, group, i > 0, sum);
    wgmma_wait<0>();
    pin(sum);
    __syncthreads();  // the stage that the next request overwrites is read
    if (threadIdx.x == 0 && ahead < tiles) {
      ring.load(p, maps, t, ahead * ring.kDepth, ahead % C::kStages);
    }
  }
  for_each_pair(sum, [&](int row, int column, float x, float y) {
    store_pair<C>(p, t.batch, t.row + 64 * group + row, t.column + column, x, y);
  });
}

}  // namespace attn::device
