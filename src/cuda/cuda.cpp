#include "cuda/cuda.hpp"

#include "cuda/backward/backward.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/forward/forward.hpp"
#include "cuda/packed_tail.hpp"

namespace attn::cuda {

Plan plan(const Problem& problem, Phase phase, const PlanOptions& options, const Context&) {
  return phase == Phase::forward ? plan_forward(problem, options) : plan_backward(problem, options);
}

void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context) {
  const ContextGuard guard(plan.device.index);  // once for all launches
  launch_forward(plan, inputs, outputs, context);
  write_packed_tail(plan.problem, inputs, outputs, context);
}

void backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients,
              const Context& context) {
  const ContextGuard guard(plan.device.index);
  launch_backward(plan, inputs, outputs, d_outputs, gradients, context);
  write_packed_tail(plan.problem, inputs, gradients, context);
}

std::vector<Source> sources(const Problem& problem, Phase phase, Arch arch,
                            const PlanOptions& options, const AskedFor& asked) {
  std::vector<Source> all = phase == Phase::forward
                                ? forward_sources(problem, arch, options, asked.max_logit)
                                : backward_sources(problem, arch, options, asked.float_sums);
  if (has_packed_tail(problem, phase)) all.push_back(packed_tail_source());
  return all;
}

}  // namespace attn::cuda
