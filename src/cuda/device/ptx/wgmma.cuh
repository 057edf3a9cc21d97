// Warpgroup matrix products (PTX ISA, "wgmma"): ordering and operands. The products themselves, one
// function for each shape, are printed by the host for the shapes a kernel uses
// (src/cuda/codegen/wgmma_text.cpp).
#pragma once

namespace attn::device {

// Before the first product, and after registers that a product reads or writes were changed.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when at most kPending of the committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving definitions and uses of operands over a fence or a wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void pin(unsigned (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}
// Computes x here, and not later.
__device__ __forceinline__ void pin(unsigned& x) { asm volatile("" : "+r"(x)::"memory"); }

// Low word of the matrix descriptor of a tile in shared memory with the 128-byte swizzle. `leading`
// is the distance in bytes between panels of 64 columns where the product runs along the columns
// (V), unused otherwise. The high word is always kDescriptorHigh: swizzle, and rows of 128 bytes of
// which eight (1024 bytes) repeat. Descriptors of other places in the tile are this plus bytes
// / 16. The value is the same in all threads of a warp; saying so keeps the arithmetic on it
// scalar.
__device__ __forceinline__ unsigned descriptor_low(unsigned address, unsigned leading) {
  const unsigned low = (leading >> 4 << 16) | (address & 0x3FFFF) >> 4;
  return __shfl_sync(~0u, low, 0);
}

}  // namespace attn::device
