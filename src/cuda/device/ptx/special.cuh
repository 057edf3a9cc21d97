// Special registers.
#pragma once

namespace attn::device {

// blockIdx.x, read anew: nothing that follows from it is shared between two calls.
__device__ __forceinline__ int block_index_anew() {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

}  // namespace attn::device
