// backward_simt (device/kernels/backward_simt.cuh): float32 arithmetic without tensor cores.
#pragma once

#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

BackwardChoice choose_backward_simt(const BackwardRequest& request);
std::vector<device::Gradient> backward_simt_launches(const Problem& problem,
                                                     const AskedGradients& asked);

}  // namespace attn::cuda
