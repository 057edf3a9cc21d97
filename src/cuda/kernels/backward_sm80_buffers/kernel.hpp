// backward_sm80_buffers (device/kernels/backward_sm80_buffers.cuh): gradients of the buffers that a
// score reads, by mma.sync.
#pragma once

#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

BackwardChoice choose_backward_sm80_buffers(const BackwardRequest& request);

}  // namespace attn::cuda
