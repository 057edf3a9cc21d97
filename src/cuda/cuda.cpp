#include "cuda/cuda.hpp"

#include "cuda/backward/backward.hpp"
#include "cuda/forward/forward.hpp"

namespace attn::cuda {

Plan plan(const Problem& problem, Phase phase, const PlanOptions& options, const Context&) {
  return phase == Phase::forward ? plan_forward(problem, options) : plan_backward(problem, options);
}

void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context) {
  cuda::run_forward(plan, inputs, outputs, context);
}

void backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients,
              const Context& context) {
  cuda::run_backward(plan, inputs, outputs, d_outputs, gradients, context);
}

std::vector<Source> sources(const Problem& problem, Phase phase, Arch arch,
                            const PlanOptions& options) {
  return phase == Phase::forward ? forward_sources(problem, arch, options.kernel)
                                 : backward_sources(problem, arch, options);
}

}  // namespace attn::cuda
