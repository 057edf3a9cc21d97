// Warpgroup matrix products (PTX ISA, "wgmma"): ordering and registers. The products themselves,
// one function for each shape, are printed by the host for the shapes a kernel uses
// (src/cuda/codegen/wgmma_text.cpp).
#pragma once

#include "device.cuh"

namespace attn::device {

// Before the first product, and after registers that a product reads or writes were changed.
ATTN_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ATTN_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when at most kPending of the committed groups are unfinished.
template <int kPending>
ATTN_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving definitions and uses of operands over a fence or a wait.
template <int kCount>
ATTN_DEVICE void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int kCount>
ATTN_DEVICE void pin(unsigned (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}
// Computes x here, and not later.
ATTN_DEVICE void pin(unsigned& x) { asm volatile("" : "+r"(x)::"memory"); }

}  // namespace attn::device
