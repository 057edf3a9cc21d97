// The backward pass on a GPU.
#pragma once

#include <vector>

#include "attn/run.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

Plan plan_backward(const Problem& problem, const PlanOptions& options);
// Runs a plan as cuda::backward does (cuda.hpp).
void launch_backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                     const OutputGradients& d_outputs, const Gradients& gradients,
                     const Context& context);
// The sources of all kernels that a backward pass of the problem takes on this architecture. Of
// options, kernel and deterministic count. float_sums: dK and dV are float32.
std::vector<Source> backward_sources(const Problem& problem, Arch arch, const PlanOptions& options,
                                     bool float_sums);

}  // namespace attn::cuda
