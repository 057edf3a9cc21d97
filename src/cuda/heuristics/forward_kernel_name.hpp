// Names of forward kernels, which say an algorithm, and of tile shapes (cuda/kernel_parts.hpp).
#pragma once

#include <string>
#include <string_view>

#include "attn/plan.hpp"
#include "cuda/heuristics/forward_config.hpp"
#include "cuda/heuristics/forward_sm90.hpp"

namespace attn::cuda {

// `shape` with the parts that `text` names: wg<warpgroups> n<keys> s<stages of K and V>
// k<stages of K> q<stages of Q> p<registers of the producer> turns noturns. Consumers get the
// registers that are left. Throws Error(invalid_argument) naming the part and what is accepted.
ForwardSm90Shape with_parts(ForwardSm90Shape shape, std::string_view text);

// The name of the kernel that has the algorithm, with the parts that `kernel` gives it:
// PlanOptions::kernel where the algorithm is that of the fast ones. Throws Error(invalid_argument)
// where `kernel` names one of another algorithm.
std::string forward_kernel_name(Algorithm algorithm, std::string_view kernel);
// flash_attention_2 of the fast kernels.
Algorithm algorithm_of(ForwardKernel kernel, bool skips_empty) noexcept;
// Whether the name is that of a kernel which runs by name only.
bool runs_by_name_only(std::string_view kernel) noexcept;

}  // namespace attn::cuda
