// The public calls: complete the problem, plan, check the arguments, hand over to a backend.
#include "attn/run.hpp"

#include "core/costs.hpp"
#include "core/validate.hpp"
#include "cpu/cpu.hpp"
#include "reference/reference.hpp"

namespace attn {
namespace {

Plan choose(const Problem& problem, Phase phase, const PlanOptions& options,
            const Context& context) {
  core::validate_problem(problem);
  const bool reference = options.backend == Backend::reference ||
                         (options.backend == Backend::automatic && problem.dtype == DType::f64);
  if (!reference) return cpu::plan(problem, phase, options.algorithm, context);
  Plan plan;
  plan.problem = problem;
  plan.phase = phase;
  plan.backend = Backend::reference;
  plan.algorithm = Algorithm::standard;
  plan.compute = DType::f64;
  plan.tasks = problem.batch * problem.heads_q;
  plan.workspace_bytes = 8 * (problem.seqlen_k + problem.head_dim_v) * 8;
  plan.reasons.emplace_back(options.backend == Backend::reference
                                ? "the reference backend was asked for"
                                : "f64 runs on the reference backend");
  return plan;
}

}  // namespace

Plan make_plan(const Problem& problem, Phase phase, const PlanOptions& options,
               const Context& context) {
  Plan plan = choose(problem, phase, options, context);
  core::count_costs(plan);
  return plan;
}

void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context) {
  core::validate_forward(plan.problem, inputs, outputs);
  if (plan.backend == Backend::reference) {
    reference::forward(plan.problem, inputs, outputs);
  } else {
    cpu::forward(plan, inputs, outputs, context);
  }
}

void forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
             const PlanOptions& options, const Context& context) {
  forward(choose(complete(problem, inputs), Phase::forward, options, context), inputs, outputs,
          context);
}

void backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs, const Tensor& d_o,
              const Gradients& gradients, const Context& context) {
  core::validate_backward(plan.problem, inputs, outputs, d_o, gradients);
  if (plan.backend == Backend::reference) {
    reference::backward(plan.problem, inputs, outputs, d_o, gradients);
  } else {
    cpu::backward(plan, inputs, outputs, d_o, gradients, context);
  }
}

void backward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
              const Tensor& d_o, const Gradients& gradients, const PlanOptions& options,
              const Context& context) {
  backward(choose(complete(problem, inputs), Phase::backward, options, context), inputs, outputs,
           d_o, gradients, context);
}

}  // namespace attn
