// The forward pass on a GPU.
#pragma once

#include <vector>

#include "attn/run.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

Plan plan_forward(const Problem& problem, const PlanOptions& options);
// Runs a plan as cuda::forward does (cuda.hpp).
void launch_forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                    const Context& context);
// What a run compiles, of the options kernel and batch_invariant: also both kernels of a call whose
// sequences differ much in their numbers of queries (plan/decoding_part.hpp).
std::vector<Source> forward_sources(const Problem& problem, Arch arch, const PlanOptions& options,
                                    bool max_logit);

}  // namespace attn::cuda
