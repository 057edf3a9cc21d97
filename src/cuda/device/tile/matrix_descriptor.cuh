// How warpgroup matrix products (PTX ISA, "wgmma") are told where an operand lies.
#pragma once

#include "device.cuh"

namespace attn::device {

// Low word of the matrix descriptor of a tile in shared memory with the 128-byte swizzle. `leading`
// is the distance in bytes between panels of 64 columns where the product runs along the columns
// (V), unused otherwise. The high word is always kDescriptorHigh (src/cuda/codegen/wgmma_text.cpp):
// swizzle, and rows of 128 bytes of which eight (1024 bytes) repeat. kAnyAddress: the address may
// say which block of threads of a cluster it is of, which the descriptor does not.
template <bool kAnyAddress = true>
ATTN_DEVICE unsigned matrix_descriptor(unsigned address, unsigned leading) {
  if constexpr (kAnyAddress) address &= 0x3FFFF;
  return (leading >> 4 << 16) | address >> 4;
}
// The same, where the value is the same in all threads of a warp: saying so keeps the arithmetic on
// it scalar.
ATTN_DEVICE unsigned uniform_descriptor(unsigned address, unsigned leading) {
  return __shfl_sync(~0u, matrix_descriptor(address, leading), 0);
}
// What is added to the descriptor of a tile for that of a place `bytes` further on in it.
ATTN_DEVICE constexpr unsigned descriptor_step(int bytes) {
  return static_cast<unsigned>(bytes) >> 4;
}

}  // namespace attn::device
