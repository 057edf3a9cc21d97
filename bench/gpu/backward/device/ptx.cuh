// Instructions that the forward kernels do not use: reductions in memory, plain bulk copies, and
// waits that end.
#pragma once

#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

namespace attn::device {

// Adds four floats to memory, each by itself (PTX ISA, "red"). `at` is 16-byte aligned.
__device__ __forceinline__ void red_add(float* at, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(a),
               "f"(b), "f"(c), "f"(d)
               : "memory");
}

// Asks the copy engine to add `bytes` of floats in shared memory to memory. bulk_commit() ends a
// group.
__device__ __forceinline__ void bulk_red_add(float* at, unsigned source, unsigned bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(at),
      "r"(source), "r"(bytes)
      : "memory");
}

// Waits until the shared memory of all of this thread's groups but the last was read.
__device__ __forceinline__ void bulk_wait_read_but_one() {
  asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
}

// bulk_red_add without adding.
__device__ __forceinline__ void bulk_store(float* at, unsigned source, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(at), "r"(source),
               "r"(bytes)
               : "memory");
}

// mbarrier_wait that ends the kernel with an error after about a second, and leaves in `stuck`,
// memory of the host, which barrier it was, its parity and the thread.
__device__ __forceinline__ void wait_or_trap(unsigned barrier, unsigned parity, unsigned* stuck) {
  asm volatile(
      "{\n"
      ".reg .pred done, more;\n"
      ".reg .b32 tries, thread;\n"
      "mov.b32 tries, 0;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "add.u32 tries, tries, 1;\n"
      "setp.lt.u32 more, tries, 4194304;\n"
      "@more bra again;\n"
      "mov.u32 thread, %%tid.x;\n"
      "st.global.v4.b32 [%2], {%0, %1, thread, tries};\n"
      "fence.sc.sys;\n"
      "trap;\n"
      "over:\n"
      "}" ::"r"(barrier),
      "r"(parity), "l"(stuck)
      : "memory");
}

}  // namespace attn::device
