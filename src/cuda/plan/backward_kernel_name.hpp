// Names of backward kernels, which say an algorithm (cuda/kernel_parts.hpp).
#pragma once

#include <string>
#include <string_view>

#include "attn/plan.hpp"

namespace attn::cuda {

// The name of the kernel that PlanOptions' algorithm and kernel ask for together, for
// BackwardWish::kernel; empty where the library chooses. Throws Error(invalid_argument) where they
// contradict each other, and Error(unsupported) for an algorithm without a kernel.
std::string backward_kernel_name(Algorithm algorithm, std::string_view kernel);

}  // namespace attn::cuda
