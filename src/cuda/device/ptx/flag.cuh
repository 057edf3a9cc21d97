// Words in memory by which blocks of threads tell each other that something is written (PTX ISA,
// "st.release", "ld.acquire"): what a thread wrote before it set a flag, and what others wrote
// before a barrier that it came to, is seen after the flag was read as set.
#pragma once

#include "device.cuh"

namespace attn::device {

ATTN_DEVICE void set_flag(unsigned* flag) {
  asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}
ATTN_DEVICE void wait_for_flag(const unsigned* flag) {
  unsigned set = 0;
  while (set == 0) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(set) : "l"(flag) : "memory");
  }
}

}  // namespace attn::device
