// The public calls: complete the problem, plan, check the arguments, hand over to a backend.
#include "attn/run.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "core/made_for.hpp"
#include "core/problem/costs.hpp"
#include "core/text/echo.hpp"
#include "core/validate/validate.hpp"
#include "cpu/cpu.hpp"
#include "cpu/plan_check.hpp"
#include "cuda/cuda.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "plan_cache.hpp"
#include "reference/reference.hpp"

namespace attn {
namespace {

Backend choose_backend(const Problem& problem, Backend asked, Device device) {
  const bool gpu = device.type == DeviceType::cuda;
  if (asked == Backend::automatic) {
    return gpu ? Backend::cuda : Backend::cpu;
  }
  if (gpu != (asked == Backend::cuda)) {
    throw Error(ErrorCode::invalid_argument,
                "backend is " + std::string(name(asked)) + ", the device of the tensors is " +
                    to_string(device) +
                    "; accepted on a GPU is cuda, elsewhere are cpu and "
                    "reference (problem " +
                    core::echo(problem) + ")");
  }
  return asked;
}

Plan reference_plan(const Problem& problem, Phase phase) {
  Plan plan;
  plan.problem = problem;
  plan.phase = phase;
  plan.backend = Backend::reference;
  plan.algorithm = Algorithm::standard;
  plan.compute = DType::f64;
  plan.tasks = problem.batch * problem.heads_q;
  plan.state = std::make_shared<core::MadeFor>(core::MadeFor{Backend::reference, phase});
  plan.workspace_bytes = 8 * (problem.seqlen_k + problem.head_dim_v) * 8;
  plan.reasons.emplace_back("the reference backend was asked for");
  return plan;
}

// Errors of a driver name what it was doing, not for which problem.
template <class Call>
auto with_problem(const Problem& problem, Call&& call) {
  try {
    return call();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported) {
      throw;
    }
    throw Error(error.code(), error.what() + (" (problem " + core::echo(problem) + ")"));
  }
}

Plan choose_backend_plan(const Problem& problem, Phase phase, const PlanOptions& options,
                         const Context& context) {
  core::validate_problem(problem);
  core::validate_declarations(problem);
  core::validate_options(problem, phase, options, context);
  switch (choose_backend(problem, options.backend, options.device)) {
    case Backend::reference:
      return reference_plan(problem, phase);
    case Backend::cuda: {
      Plan plan =
          with_problem(problem, [&] { return cuda::plan(problem, phase, options, context); });
      plan.device = options.device;
      return plan;
    }
    case Backend::cpu:
    case Backend::automatic:  // choose_backend does not give it
      break;
  }
  return cpu::plan(problem, phase, options, context);
}

void record_fields(const Plan& plan) {
  static_cast<core::MadeFor*>(plan.state.get())->record = core::PlanRecord(plan);
}

Plan choose(const Problem& problem, Phase phase, const PlanOptions& options,
            const Context& context) {
  Plan plan = choose_backend_plan(problem, phase, options, context);
  plan.deterministic = options.deterministic;
  plan.batch_invariant = options.batch_invariant;
  record_fields(plan);
  return plan;
}

// The tensors that the expressions of the problem hold themselves, for names that `bound` has not;
// false where a name stands for two.
bool collect_own(const Problem& problem, const expr::Bindings& bound, expr::Bindings& own) {
  core::CallMemory memory;
  std::pmr::vector<const expr::Buffer*> seen(&memory.resource()), read(&memory.resource());
  for (const expr::Expr* e : {&problem.mask, &problem.score}) {
    read.clear();
    if (!e->empty()) expr::collect_buffers(*e, read);
    for (const expr::Buffer* buffer : read) {
      const Tensor& tensor = buffer->tensor();
      const auto earlier = std::ranges::find_if(
          seen, [&](const expr::Buffer* other) { return other->name() == buffer->name(); });
      if (earlier != seen.end()) {
        if (!expr::same_tensor((*earlier)->tensor(), tensor)) return false;
        continue;
      }
      seen.push_back(buffer);
      const bool is_bound = std::ranges::any_of(
          bound, [&](const auto& binding) { return binding.first == buffer->name(); });
      if (tensor.data != nullptr && !is_bound) own.emplace_back(buffer->name(), tensor);
    }
  }
  return true;
}

// A call that is given a problem: its plan, most often that of an earlier call, and its inputs.
class PlannedCall {
 public:
  PlannedCall(const Problem& problem, const Inputs& inputs, Phase phase, PlanOptions options,
              const Context& context)
      : context_(&context), inputs_(&inputs) {
    const Problem whole = complete(problem, inputs);
    options.device = core::device_of(inputs);
    const bool on_cpu =
        options.device.type == DeviceType::cpu && options.backend != Backend::reference;
    if (on_cpu && context.executor == nullptr) {
      // Read once: another thread may call set_num_threads() between the request and its plan.
      with_executor_ = context;
      with_executor_->executor = cpu::executor_of(context);
      context_ = &*with_executor_;
    }
    const auto make = [&](const Problem& p) { return choose(p, phase, options, *context_); };
    expr::Bindings own;
    if (!collect_own(whole, inputs.buffers, own)) {
      plan_ = std::make_shared<const Plan>(make(whole));  // the run refuses it
      return;
    }
    const int workers = on_cpu ? cpu::executor_of(*context_)->concurrency() : 0;
    // `make` is passed by reference, as a std::function of its captures would allocate.
    plan_ = plan_cache().find({whole, phase, options, context.isa, workers}, std::ref(make));
    if (!whole.dropout.rng_state && (whole.dropout.seed != plan_->problem.dropout.seed ||
                                     whole.dropout.offset != plan_->problem.dropout.offset)) {
      drawn_anew_ = *plan_;
      drawn_anew_->problem.dropout = whole.dropout;
    }
    if (own.empty()) return;
    bound_ = inputs;
    bound_->buffers.insert(bound_->buffers.end(), own.begin(), own.end());
    inputs_ = &*bound_;
  }
  PlannedCall(const PlannedCall&) = delete;
  PlannedCall& operator=(const PlannedCall&) = delete;

  const Plan& plan() const { return drawn_anew_ ? *drawn_anew_ : *plan_; }
  const Inputs& inputs() const { return *inputs_; }
  const Context& context() const { return *context_; }

 private:
  const Context* context_;
  std::optional<Context> with_executor_;
  std::shared_ptr<const Plan> plan_;
  std::optional<Plan> drawn_anew_;  // with the seed and offset of the call
  const Inputs* inputs_;
  std::optional<Inputs> bound_;  // with the problem's own tensors
};

// Checks what a call on a GPU needs beside the problem, then calls.
template <class Call>
void on_gpu(const Plan& plan, std::pmr::vector<core::NamedTensor> tensors, const Context& context,
            Call&& call) {
  core::validate_workspace(plan.problem, context.workspace, plan.workspace_bytes, tensors,
                           plan.device);
  if (plan.workspace_bytes > 0) tensors.push_back({"workspace", context.workspace});
  with_problem(plan.problem, [&] {
    const cuda::ContextGuard guard(plan.device.index);
    cuda::check_memory(plan.problem, tensors, plan.device.index);
    call();
  });
}

}  // namespace

Plan make_plan(const Problem& problem, Phase phase, const PlanOptions& options,
               const Context& context) {
  Plan plan = choose(problem, phase, options, context);
  plan.bytes = core::bytes(plan.problem, phase);
  record_fields(plan);
  return plan;
}

void run_forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                 const Context& context) {
  core::validate_plan(plan, Phase::forward);
  core::CallMemory memory;
  std::pmr::vector<core::NamedTensor> tensors =
      core::validate_forward(plan.problem, inputs, outputs, plan.device, memory.resource());
  switch (plan.backend) {
    case Backend::reference:
      return reference::forward(plan.problem, inputs, outputs);
    case Backend::cuda:
      return on_gpu(plan, std::move(tensors), context,
                    [&] { cuda::forward(plan, inputs, outputs, context); });
    case Backend::cpu:
      if (context.workspace.given()) {
        core::validate_workspace(plan.problem, context.workspace, plan.workspace_bytes, tensors,
                                 plan.device);
      }
      return cpu::forward(plan, inputs, outputs, context);
    case Backend::automatic:  // validate_plan refuses it
      break;
  }
}

void forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
             const PlanOptions& options, const Context& context) {
  const PlannedCall call(problem, inputs, Phase::forward, options, context);
  run_forward(call.plan(), call.inputs(), outputs, call.context());
}

void run_backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                  const OutputGradients& d_outputs, const Gradients& gradients,
                  const Context& context) {
  core::validate_plan(plan, Phase::backward);
  core::CallMemory memory;
  std::pmr::vector<core::NamedTensor> tensors = core::validate_backward(
      plan.problem, inputs, outputs, d_outputs, gradients, plan.device, memory.resource());
  switch (plan.backend) {
    case Backend::reference:
      return reference::backward(plan.problem, inputs, outputs, d_outputs, gradients);
    case Backend::cuda:
      return on_gpu(plan, std::move(tensors), context,
                    [&] { cuda::backward(plan, inputs, outputs, d_outputs, gradients, context); });
    case Backend::cpu:
      if (context.workspace.given()) {
        core::validate_workspace(plan.problem, context.workspace, plan.workspace_bytes, tensors,
                                 plan.device);
      }
      return cpu::backward(plan, inputs, outputs, d_outputs, gradients, context);
    case Backend::automatic:  // validate_plan refuses it
      break;
  }
}

void backward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients,
              const PlanOptions& options, const Context& context) {
  const PlannedCall call(problem, inputs, Phase::backward, options, context);
  run_backward(call.plan(), call.inputs(), outputs, d_outputs, gradients, call.context());
}

}  // namespace attn
