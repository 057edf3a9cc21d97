// backward_standard (device/kernels/backward_standard.cuh): the papers' baseline, by name only. Its
// arithmetic and tiles are those of backward_simt.
#pragma once

#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

std::vector<device::Gradient> backward_standard_launches(const Problem& problem,
                                                         const AskedGradients& asked);
// P and dS.
core::Size backward_standard_workspace(const Problem& problem, const BackwardConfig& config);
void place_backward_standard(device::BackwardParams& to, const Problem& problem,
                             const BackwardConfig& config, std::byte* at);

}  // namespace attn::cuda
