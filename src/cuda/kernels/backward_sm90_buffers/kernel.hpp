// backward_sm90_buffers (device/kernels/backward_sm90_buffers.cuh): the gradient of a bias, on
// Hopper.
#pragma once

#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

BackwardChoice choose_backward_sm90_buffers(const BackwardRequest& request);
std::optional<BackwardMaps> backward_sm90_buffers_maps(const BackwardConfig& config,
                                                       const Problem& problem, const Inputs& inputs,
                                                       const Tensor& d_o);

}  // namespace attn::cuda
