// Special registers.
#pragma once

#include "device.cuh"

namespace attn::device {

// blockIdx.x, read anew: nothing that follows from it is shared between two calls.
ATTN_DEVICE int block_index_anew() {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

// The number of this launch in its context ("temporal grid launch number"). No two grids that run
// at once have the same; one executable graph launches a kernel under the same number each time.
ATTN_DEVICE unsigned long long grid_id() {
  unsigned long long id;
  asm volatile("mov.u64 %0, %%gridid;" : "=l"(id));
  return id;
}

}  // namespace attn::device
