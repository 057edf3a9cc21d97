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

// Runs the backward pass likewise; gradients that are not given are not computed. dk and dv may
// both be f32 in a problem of 16 bits: they then are the sums that the others are rounded from.
void backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients, const Context& context);

// What a call asks for beside what its problem says.
struct AskedFor {
  bool max_logit = false;   // forward
  bool float_sums = false;  // backward: dk and dv in f32
};

// All that the problem needs compiled on devices of this architecture; needs no GPU. Of options,
// kernel and deterministic count.
std::vector<Source> sources(const Problem& problem, Phase phase, Arch arch,
                            const PlanOptions& options = {}, const AskedFor& asked = {});

}  // namespace attn::cuda
