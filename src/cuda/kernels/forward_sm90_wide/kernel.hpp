// forward_sm90_wide (device/kernels/forward_sm90_wide.cuh): heads of more than 256 columns on
// Hopper.
#pragma once

#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

ForwardChoice choose_forward_sm90_wide(const ForwardRequest& request);

}  // namespace attn::cuda
