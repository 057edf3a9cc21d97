// The bulk tensor copy engine (PTX ISA, "cp.async.bulk.tensor"): one thread asks for a box of a
// tensor that a map describes; the bytes arrive on an mbarrier. Elements outside the tensor read 0.
#pragma once

#include "device.cuh"

namespace attn::device {

// Opaque to device code; the host encodes it.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

ATTN_DEVICE void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Cache policies of createpolicy.fractional for whole lines.
inline constexpr unsigned long long kEvictNormal = 0x1000000000000000ull;
inline constexpr unsigned long long kEvictFirst = 0x12F0000000000000ull;
inline constexpr unsigned long long kEvictLast = 0x14F0000000000000ull;

ATTN_DEVICE void tma_load_4d(unsigned destination, const TensorMap& map, unsigned barrier, int c0,
                             int c1, int c2, int c3, unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}

// Asks for a box to be brought to L2.
ATTN_DEVICE void tma_prefetch_4d(const TensorMap& map, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// Asks for a box for all blocks of the cluster that have a bit in `ranks`: each gets the box and
// the bytes on its barrier, at the same addresses.
ATTN_DEVICE void tma_load_4d_multicast(unsigned destination, const TensorMap& map, unsigned barrier,
                                       int c0, int c1, int c2, int c3, unsigned short ranks,
                                       unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes."
      "multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(
          destination),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(ranks), "l"(policy)
      : "memory");
}

ATTN_DEVICE void tma_load_5d(unsigned destination, const TensorMap& map, unsigned barrier, int c0,
                             int c1, int c2, int c3, int c4, unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
}

// Asks for a box of shared memory to be written to the tensor, but for elements past its end: no
// coordinate may be below 0 (illegal instruction). bulk_commit() ends a group of such requests.
ATTN_DEVICE void tma_store_4d(const TensorMap& map, unsigned source, int c0, int c1, int c2,
                              int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
ATTN_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until the shared memory of this thread's groups, but for the last kPending, was read.
template <int kPending = 0>
ATTN_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Waits until they are written, in memory that any thread may then read.
template <int kPending = 0>
ATTN_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// Asks for `bytes` of memory, a multiple of 16 at a multiple of 16, which arrive on an mbarrier.
ATTN_DEVICE void bulk_load(unsigned destination, const void* source, unsigned bytes,
                           unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
// Asks for `bytes` of shared memory, a multiple of 16 at a multiple of 16, to be written to memory.
// bulk_commit() ends a group of such requests.
ATTN_DEVICE void bulk_store(void* to, unsigned source, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(source),
               "r"(bytes)
               : "memory");
}
// Asks for `bytes` of floats in shared memory to be added to memory, each by itself and in no
// order. bulk_commit() ends a group of such requests.
ATTN_DEVICE void bulk_add(float* to, unsigned source, unsigned bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(source), "r"(bytes)
      : "memory");
}

// Orders ordinary shared-memory writes before reads by the tensor cores and the copy engine: those
// of this thread, and those of others that a barrier has told this thread of.
ATTN_DEVICE void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Orders what this thread has read and written in global memory, and what others that it was told
// of, before what it asks the copy engine for from then on.
ATTN_DEVICE void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace attn::device
