// Rung 13, cluster_multicast: two tiles of persistent below each other read the same columns of B,
// and each fetches them from L2. Here two blocks are a cluster: each asks for half of B, and the
// copy engine writes it to both (multicast). A tile's 48 KB a stage are 32 KB of L2: 128 flops a
// byte instead of 85. A place in the ring is free when the warpgroups of both have read it.
// Expected: nothing where the tensor cores are the limit, 1.02 to 1.05 times where L2 is. Measured:
// 0.99 of persistent (782 TFLOP/s).
//
// Tile: as persistent, two of them below each other.
#pragma once

#include "device.cuh"
#include "matmul/persistent.cuh"

namespace attn::device {

template <class C>
ATTN_DEVICE void matmul_cluster_multicast(const MatmulParams& p, const MatmulMaps& maps) {
  static_assert(C::kMulticast == 2, "two blocks share B");
  matmul_persistent<C>(p, maps);
}

}  // namespace attn::device
