// forward_sm80_wide (device/kernels/forward_sm80_wide.cuh): heads of more than 256 columns by
// mma.sync, any architecture from 8.0 on.
#pragma once

#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

ForwardChoice choose_forward_sm80_wide(const ForwardRequest& request);

}  // namespace attn::cuda
