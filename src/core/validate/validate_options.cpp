// Checks of PlanOptions, and of a plan before it runs.
#include <fmt/format.h>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "core/made_for.hpp"
#include "core/text/echo.hpp"
#include "core/validate/enumerator.hpp"
#include "core/validate/validate.hpp"

namespace attn::core {

void validate_options(const Problem& problem, Phase phase, const PlanOptions& options,
                      const Context& context) {
  const ArgumentCheck check(&problem);
  check_enumerator(check, "phase", phase, "Phase");
  check_enumerator(check, "backend", options.backend, "Backend");
  check_enumerator(check, "algorithm", options.algorithm, "Algorithm");
  check_enumerator(check, "isa of the context", context.isa, "InstructionSet");
  if (options.threads < 0) {
    check.refuse(fmt::format(
        "threads is {}; accepted are 0 (as many as there is work for) and more", options.threads));
  }
  check.device(options.device);
  if (!options.kernel.empty() && options.device.type != DeviceType::cuda) {
    check.refuse(
        fmt::format("kernel is '{}' and the device is {}; accepted there is none, as only "
                    "the cuda backend has kernels by name",
                    echo(options.kernel), to_string(options.device)));
  }
  if (problem.key_list > 0 && problem.dropout.probability > 0) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("dropout probability is {} and key_list is {}; accepted beside lists of "
                    "keys is 0 (problem {})",
                    problem.dropout.probability, problem.key_list, echo(problem)));
  }
  if (problem.key_list > 0 && problem.seqlen_prefix > 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("seqlen_prefix is {} and key_list is {}; accepted beside lists of keys "
                            "is 0, as a list may name keys that sequences share (problem {})",
                            problem.seqlen_prefix, problem.key_list, echo(problem)));
  }
  if (phase == Phase::backward) {
    refuse_backward(problem);
    if (options.batch_invariant) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("batch_invariant is true; accepted by backward is false (problem {})",
                              echo(problem)));
    }
  } else if (options.batch_invariant && problem.seqlen_prefix > 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("batch_invariant is true and seqlen_prefix is {}; accepted with a "
                            "shared prefix is false (problem {})",
                            problem.seqlen_prefix, echo(problem)));
  }
}

void refuse_backward(const Problem& problem) {
  if (problem.seqlen_prefix > 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("seqlen_prefix is {}; accepted by backward is 0 (problem {})",
                            problem.seqlen_prefix, echo(problem)));
  }
  if (problem.key_list > 0 && problem.dtype == DType::f64) {
    throw Error(ErrorCode::unsupported,
                fmt::format("dtype is f64 and key_list is {}; accepted by backward over lists of "
                            "keys are f32, bf16 and f16 (problem {})",
                            problem.key_list, echo(problem)));
  }
  if (has_own_type_o(problem)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("type_o is {}; accepted by backward is {}, the dtype (problem {})",
                            name(problem.type_o), name(problem.dtype), echo(problem)));
  }
  if (has_own_type_q(problem)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("type_q is {}; accepted by backward is as_q (problem {})",
                            name(problem.type_q), echo(problem)));
  }
  if (has_own_types(problem)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("type_k is {} and type_v is {}; accepted by backward is as_q (problem "
                            "{})",
                            name(problem.type_k), name(problem.type_v), echo(problem)));
  }
  if (problem.layout_k != Layout::paged) return;
  throw Error(
      ErrorCode::unsupported,
      fmt::format("layout_k is paged; accepted by backward are dense and packed (problem {})",
                  echo(problem)));
}

void validate_plan(const Plan& plan, Phase phase) {
  const ArgumentCheck check(&plan.problem);
  if (plan.phase != phase) {
    check.refuse(fmt::format("plan is of the {} phase; accepted by {} are plans of its own phase",
                             name(plan.phase), name(phase)));
  }
  const MadeFor* const made = made_for(plan);
  if (made == nullptr) {
    check.refuse(
        "state of the plan is empty; accepted are plans that make_plan gave and that were not "
        "moved from");
  }
  if (plan.phase != made->phase) {
    check.refuse(fmt::format("phase of the plan is {}; accepted is {}, as make_plan set it",
                             name(plan.phase), name(made->phase)));
  }
  if (plan.backend != made->backend) {
    check.refuse(fmt::format("backend of the plan is {}; accepted is {}, as make_plan set it",
                             name(plan.backend), name(made->backend)));
  }
  if ((plan.device.type == DeviceType::cuda) != (made->backend == Backend::cuda)) {
    check.refuse(fmt::format("device of the plan is {}; accepted by its backend {} is another",
                             to_string(plan.device), name(made->backend)));
  }
  made->record.check(plan);
}

}  // namespace attn::core
