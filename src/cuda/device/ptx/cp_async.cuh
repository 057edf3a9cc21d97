// Copies from global to shared memory that run beside the arithmetic (PTX ISA, "cp.async").
#pragma once

#include "device.cuh"

namespace attn::device {

// 16 bytes, both addresses aligned to 16; zeros, and nothing is read, where the source does not
// exist.
ATTN_DEVICE void copy_async(unsigned destination, const void* source, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(source), "r"(exists ? 16 : 0)
               : "memory");
}

// kBytes, 4, 8 or 16, both addresses aligned to as many; likewise.
template <int kBytes>
ATTN_DEVICE void copy_async_bytes(unsigned destination, const void* source, bool exists) {
  if constexpr (kBytes == 16) {
    copy_async(destination, source, exists);
  } else {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(destination),
                 "l"(source), "n"(kBytes), "r"(exists ? kBytes : 0)
                 : "memory");
  }
}

// Closes the group of copies that this thread has asked for since the last one.
ATTN_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kGroups groups of this thread, the youngest, are under way.
template <int kGroups>
ATTN_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace attn::device
