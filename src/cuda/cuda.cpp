#include "cuda/cuda.hpp"

#include "attn/error.hpp"
#include "cuda/forward/forward.hpp"

namespace attn::cuda {
namespace {

void refuse_backward(const Problem& problem, Phase phase) {
  if (phase == Phase::forward) return;
  throw Error(ErrorCode::unsupported,
              "backward of " + to_string(problem) + " has no kernel on the cuda backend");
}

}  // namespace

Plan plan(const Problem& problem, Phase phase, const PlanOptions& options, const Context&) {
  refuse_backward(problem, phase);
  return plan_forward(problem, options);
}

void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context) {
  run_forward(plan, inputs, outputs, context);
}

std::vector<Source> sources(const Problem& problem, Phase phase, Arch arch,
                            std::string_view kernel) {
  refuse_backward(problem, phase);
  return forward_sources(problem, arch, kernel);
}

}  // namespace attn::cuda
