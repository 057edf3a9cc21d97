// How kernels divide dQ, dK and dV among launches (BackwardKernel::launches).
#pragma once

#include <vector>

#include "attn/problem.hpp"
#include "cuda/device/params.cuh"
#include "cuda/kernels/backward_features.hpp"

namespace attn::cuda {

// One for all, ...
std::vector<device::Gradient> one_launch(const Problem& problem, const AskedGradients& asked);
// ... or one for each that is asked for; with `together`, one for dK and dV where both are.
std::vector<device::Gradient> launch_each(const AskedGradients& asked, bool together);

}  // namespace attn::cuda
