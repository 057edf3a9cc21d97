// Programmatic dependent launch (PTX ISA, "griddepcontrol"): a kernel may start before the one that
// it depends on has ended. Both do nothing on architectures before 9.0 and for ordinary launches.
#pragma once

#include "device.cuh"

namespace attn::device {

// Returns when the kernels that this one depends on have ended and what they wrote is visible.
ATTN_DEVICE void wait_for_dependencies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Once every block of threads has called this, or ended, kernels that depend on this one may start.
ATTN_DEVICE void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace attn::device
