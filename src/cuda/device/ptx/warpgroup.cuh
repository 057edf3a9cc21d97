// Registers, elections and named barriers of warps and warpgroups (PTX ISA, "setmaxnreg",
// "elect.sync", "bar").
#pragma once

#include "device.cuh"

namespace attn::device {

template <int kRegisters>
ATTN_DEVICE void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
ATTN_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A value that is the same in all threads of a warp, said so: arithmetic on it is scalar, and it
// takes no register of every thread.
ATTN_DEVICE int uniform(int x) { return __shfl_sync(~0u, x, 0); }
ATTN_DEVICE unsigned uniform(unsigned x) { return __shfl_sync(~0u, x, 0); }
// x, which differs between threads, in a register of its own. What follows from threadIdx is else
// computed again where it is used, and reading threadIdx waits in the queue of memory instructions,
// behind products that were asked for. For a whole warp.
ATTN_DEVICE unsigned keep(unsigned x) {
  return __shfl_sync(~0u, x, static_cast<int>(threadIdx.x % 32));
}
// True in one thread of a warp that is together.
ATTN_DEVICE bool elect_one() {
  unsigned elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

ATTN_DEVICE void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Meets as barrier_sync and says whether x is true in any of the threads.
ATTN_DEVICE bool barrier_or(int id, int threads, bool x) {
  unsigned any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.u32 mine, %1, 0;\n"
      "barrier.cta.red.or.pred any, %2, %3, mine;\n"
      "selp.b32 %0, 1, 0, any;\n"
      "}"
      : "=r"(any)
      : "r"(x ? 1u : 0u), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}
ATTN_DEVICE void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace attn::device
