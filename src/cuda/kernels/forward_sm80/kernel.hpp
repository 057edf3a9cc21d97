// forward_sm80 (device/kernels/forward_sm80.cuh): mma.sync, any architecture from 8.0 on.
#pragma once

#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

ForwardChoice choose_forward_sm80(const ForwardRequest& request);

}  // namespace attn::cuda
