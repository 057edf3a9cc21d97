// backward_sm80_deterministic (device/kernels/backward_sm80_deterministic.cuh): mma.sync, with
// sums in a fixed order.
#pragma once

#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

BackwardChoice choose_backward_sm80_deterministic(const BackwardRequest& request);
std::vector<device::Gradient> backward_sm80_deterministic_launches(const Problem& problem,
                                                                   const AskedGradients& asked);

}  // namespace attn::cuda
