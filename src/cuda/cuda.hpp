// The CUDA backend, as src/run.cpp and the command see it.
#pragma once

#include <vector>

#include "attn/run.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

// Choices only, for options.device; bytes are left at 0. problem is complete and valid.
// Throws Error(unsupported) naming what no kernel takes, Error(unavailable) without a GPU.
Plan plan(const Problem& problem, Phase phase, const PlanOptions& options, const Context& context);
// Arguments are validated, their memory is of plan.device, context.workspace is large enough.
// Errors of the driver get the problem's descriptor from the caller.
void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context);

// Runs the backward pass likewise; gradients that are not given are not computed.
void backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients, const Context& context);

// All that the problem needs compiled on devices of this architecture; needs no GPU. Of options,
// kernel and deterministic count. max_logit: of calls that ask for it; forward.
std::vector<Source> sources(const Problem& problem, Phase phase, Arch arch,
                            const PlanOptions& options = {}, bool max_logit = false);

}  // namespace attn::cuda
