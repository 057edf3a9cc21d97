// forward_standard (device/kernels/forward_standard.cuh): S, softmax and O, each a launch.
#pragma once

#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

ForwardChoice choose_forward_standard(const ForwardRequest& request);
// S, then P.
core::Size forward_standard_workspace(const Problem& problem);
void place_forward_standard(device::ForwardParams& to, const Problem& problem, void* workspace);

}  // namespace attn::cuda
