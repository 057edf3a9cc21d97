// What the kernels of a backward pass over lists of keys share: two launches, and sums of dK and dV
// in the workspace between them (device/schedule/list_sums.cuh).
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

// One that stores dQ and adds dK and dV to the sums, and one that stores these.
std::vector<device::Gradient> list_launches(const Problem& problem, const AskedGradients& asked);

core::Size list_sums_workspace(const Problem& problem, const BackwardConfig& config);
void place_list_sums(device::BackwardParams& to, const Problem& problem,
                     const BackwardConfig& config, std::byte* at);

}  // namespace attn::cuda
