// Additions to global memory that return nothing (PTX ISA, "red").
#pragma once

#include "device.cuh"

namespace attn::device {

// Adds four floats, each by itself, to those at a multiple of 16 bytes. One instruction from 9.0
// on, four before.
ATTN_DEVICE void add_to_memory(float* at, float x, float y, float z, float w) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(x),
               "f"(y), "f"(z), "f"(w)
               : "memory");
#else
  asm volatile(
      "red.relaxed.gpu.global.add.f32 [%0], %1;\n"
      "red.relaxed.gpu.global.add.f32 [%0+4], %2;\n"
      "red.relaxed.gpu.global.add.f32 [%0+8], %3;\n"
      "red.relaxed.gpu.global.add.f32 [%0+12], %4;" ::"l"(at),
      "f"(x), "f"(y), "f"(z), "f"(w)
      : "memory");
#endif
}

}  // namespace attn::device
