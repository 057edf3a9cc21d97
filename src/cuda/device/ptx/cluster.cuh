// Clusters of blocks of threads (PTX ISA, "barrier.cluster", "mapa"): blocks that run at once and
// reach each other's shared memory. An address that cluster_address() gave is of that block's.
#pragma once

#include "device.cuh"

namespace attn::device {

ATTN_DEVICE unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
ATTN_DEVICE unsigned cluster_address(unsigned address, unsigned rank) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// All threads of all blocks of the cluster meet. What was written to shared memory before the
// arrival is seen by who returned from the wait.
ATTN_DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
ATTN_DEVICE void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Stores four floats into another block's shared memory, at a multiple of 16.
ATTN_DEVICE void store_cluster(unsigned address, const float (&x)[4]) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x[0]),
               "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
// Sends `bytes`, a multiple of 16 at multiples of 16, of this block's shared memory to another's by
// the copy engine; they arrive on a barrier of that block. `to`, `barrier`: cluster_address().
ATTN_DEVICE void bulk_send(unsigned to, unsigned from, unsigned bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Arrives at a barrier of another block after it has read shared memory that the other block's
// copies are to overwrite. It is no release of what this thread wrote: that (.release.cluster) is a
// fence of all memory, about 1500 cycles.
ATTN_DEVICE void mbarrier_arrive_cluster(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

}  // namespace attn::device
