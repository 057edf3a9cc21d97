// The CPU backend, as src/run.cpp sees it.
#pragma once

#include "attn/run.hpp"

namespace attn::cpu {

// Choices only; bytes are left at 0. problem is complete and valid.
Plan plan(const Problem& problem, Phase phase, const PlanOptions& options, const Context& context);
// Arguments are validated.
void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context);
// Does the same for one pass over some of the keys: max_logit becomes the larger of what it is and
// theirs. lse_rest: Attention::lse_rest, beside an LSE in f64.
void forward_pass(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                  const Context& context, const Tensor& lse_rest = {});
void backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients, const Context& context);

}  // namespace attn::cpu
