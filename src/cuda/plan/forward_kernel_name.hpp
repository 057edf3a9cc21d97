// Names of forward kernels, which say an algorithm (cuda/kernel_parts.hpp).
#pragma once

#include <string>
#include <string_view>

#include "attn/plan.hpp"

namespace attn::cuda {

// The name of the kernel that has the algorithm, with the parts that `kernel` gives it:
// PlanOptions::kernel where the algorithm is that of the fast ones. Throws Error(invalid_argument)
// where `kernel` names one of another algorithm.
std::string forward_kernel_name(Algorithm algorithm, std::string_view kernel);

}  // namespace attn::cuda
