// The public calls of matrix products: describe, plan, check the arguments, hand over to a backend.
#include "matmul.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string_view>

#include "attn/error.hpp"
#include "attn/matmul.hpp"
#include "core/matmul.hpp"
#include "core/plan_record.hpp"
#include "core/text/echo.hpp"
#include "core/validate/argument_check.hpp"
#include "core/validate/enumerator.hpp"
#include "cpu/matmul/matmul.hpp"
#include "cpu/plan_check.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/matmul/matmul.hpp"
#include "cuda/matmul/matmul_config.hpp"
#include "plan_cache.hpp"
#include "reference/matmul.hpp"

namespace attn {
namespace {

Backend choose_backend(const MatmulProblem& problem, Backend asked, Device device) {
  const bool gpu = device.type == DeviceType::cuda;
  if (asked == Backend::automatic) {
    if (gpu) return Backend::cuda;
    const bool cpu = problem.dtype != DType::f64 && problem.float8 == Float8::none;
    return cpu ? Backend::cpu : Backend::reference;
  }
  if (gpu != (asked == Backend::cuda)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("backend is {}, the device of the tensors is {}; accepted on a GPU is "
                            "cuda, elsewhere are cpu and reference (problem {})",
                            name(asked), to_string(device), to_string(problem)));
  }
  if (asked == Backend::cpu && (problem.dtype == DType::f64 || problem.float8 != Float8::none)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("dtype is {}; accepted on the cpu backend are f32, bf16 and f16 "
                            "(problem {})",
                            name(problem.dtype), to_string(problem)));
  }
  return asked;
}

constexpr std::string_view kCpuRungs[] = {"naive", "blocked", "few_rows", "packed", "amx"};

bool has_rung(Backend backend, std::string_view rung) {
  switch (backend) {
    case Backend::automatic:
    case Backend::cpu:
      return std::ranges::find(kCpuRungs, rung) != std::end(kCpuRungs);
    case Backend::cuda:  // the tile's shape may follow: "split_k/64x192_s8"
      return cuda::is_cuda_matmul_rung(rung.substr(0, rung.find('/')));
    case Backend::reference:
      break;
  }
  return false;
}

void check_rung(Backend backend, const std::string& rung) {
  if (rung.empty() || has_rung(backend, rung)) return;
  const std::vector<std::string> rungs = matmul_rungs(backend);
  throw Error(ErrorCode::invalid_argument,
              rungs.empty() ? fmt::format("rung is {}; the {} backend has none", core::echo(rung),
                                          name(backend))
                            : fmt::format("rung is {}; accepted on the {} backend are {}",
                                          core::echo(rung), name(backend), fmt::join(rungs, ", ")));
}

// Memory of the device, and a workspace where the plan needs one.
void check_gpu(const MatmulPlan& plan, const MatmulInputs& inputs, const Tensor& c,
               const Tensor& workspace) {
  const core::NamedTensor tensors[] = {{"a", inputs.a},
                                       {"b", inputs.b},
                                       {"bias", inputs.bias},
                                       {"scale_a", inputs.scale_a},
                                       {"scale_b", inputs.scale_b},
                                       {"block_mask", inputs.block_mask},
                                       {"c", c},
                                       {"workspace", workspace}};
  const core::ArgumentCheck check(nullptr, plan.device);
  if (plan.workspace_bytes > 0) {
    check.tensor("workspace", workspace, DType::u8, {core::kAnySize});
    check.contiguous("workspace", workspace);
    constexpr std::uintptr_t kAligned = 128;
    if (workspace.size() < plan.workspace_bytes ||
        reinterpret_cast<std::uintptr_t>(workspace.data) % kAligned != 0) {
      check.refuse(
          fmt::format("workspace is {} at address {}; accepted are {} bytes and more at "
                      "a multiple of {} (problem {})",
                      to_string(workspace), fmt::ptr(workspace.data), plan.workspace_bytes,
                      kAligned, to_string(plan.problem)));
    }
    check.disjoint(std::span(tensors).last(1), std::span(tensors).first(7));
  }
  cuda::check_memory(check, tensors, plan.device.index);
}

// Refuses a plan that nobody made, or whose backend, or a field that a call does not read, was
// changed.
void check_made(const MatmulPlan& plan) {
  const core::ArgumentCheck check;
  const core::MatmulMadeFor* const made = core::made_for(plan);
  if (made == nullptr) {
    check.refuse(
        "state of the plan is empty; accepted are plans that make_plan gave and that were not "
        "moved from");
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

void check_gpu_takes(const MatmulProblem& p) {
  const bool mixed = p.type_of_b() != p.dtype;
  if (!mixed && !p.accumulate) return;
  throw Error(ErrorCode::unsupported,
              mixed
                  ? fmt::format("dtype of b is {}; accepted on the cuda backend is {} (problem {})",
                                name(p.type_of_b()), name(p.dtype), to_string(p))
                  : fmt::format("accumulate is true; accepted on the cuda backend is false "
                                "(problem {})",
                                to_string(p)));
}

double moved_once(const MatmulProblem& p) {
  const double m = static_cast<double>(p.m), n = static_cast<double>(p.n),
               k = static_cast<double>(p.k);
  const auto of_a = static_cast<double>(size_of(p.dtype)),
             of_c = static_cast<double>(size_of(p.output)) * (p.accumulate ? 2 : 1);
  const double column = p.format_b == BlockFormat::none
                            ? k * static_cast<double>(size_of(p.type_of_b()))
                            : static_cast<double>(row_size(p.format_b, p.k));
  return static_cast<double>(p.batch) * (m * k * of_a + n * column + m * n * of_c) +
         (p.bias ? 4 * n : 0);
}

}  // namespace

std::vector<std::string> matmul_rungs(Backend backend) {
  switch (backend) {
    case Backend::automatic:
    case Backend::cpu:
      return {std::begin(kCpuRungs), std::end(kCpuRungs)};
    case Backend::cuda:
      return cuda::cuda_matmul_rungs();
    case Backend::reference:
      break;
  }
  return {};
}

MatmulPlan make_plan(const MatmulProblem& problem, const MatmulOptions& options,
                     const Context& context) {
  core::validate_matmul(problem);
  const core::ArgumentCheck check;
  core::check_enumerator(check, "backend", options.backend, "Backend");
  check.device(options.device);
  core::check_enumerator(check, "isa of the context", context.isa, "InstructionSet");
  const Backend backend = choose_backend(problem, options.backend, options.device);
  check_rung(backend, options.rung);
  if (options.threads < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("threads is {}; accepted are 0 and up", options.threads));
  }
  MatmulPlan plan;
  switch (backend) {
    case Backend::cuda:
      check_gpu_takes(problem);
      plan = cuda::plan_matmul(problem, options);
      break;
    case Backend::reference:
      plan.problem = problem;
      plan.backend = backend;
      plan.compute = DType::f64;
      break;
    case Backend::automatic:
    case Backend::cpu:
      plan = cpu::plan_matmul(problem, options, context);
  }
  plan.device = options.device;
  plan.bytes = moved_once(problem);
  plan.state = std::make_shared<const core::MatmulMadeFor>(plan);
  return plan;
}

void matmul(const MatmulPlan& plan, const MatmulInputs& inputs, const Tensor& c,
            const Context& context) {
  check_made(plan);
  core::validate_matmul(plan.problem);
  core::validate_matmul(plan.problem, inputs, c, plan.device);
  check_rung(plan.backend, plan.rung);
  if (plan.backend == Backend::reference) return reference::matmul(plan.problem, inputs, c);
  if (plan.backend == Backend::cpu) return cpu::matmul(plan, inputs, c, context);
  const cuda::ContextGuard guard(plan.device.index);
  check_gpu(plan, inputs, c, context.workspace);
  cuda::matmul(plan, inputs, c, context);
}

void matmul(const MatmulInputs& inputs, const Tensor& c, Activation activation,
            const MatmulOptions& options, const Context& context) {
  matmul_planned(describe(inputs, c, activation), inputs, c, options, context);
}

void matmul_planned(const MatmulProblem& problem, const MatmulInputs& inputs, const Tensor& c,
                    const MatmulOptions& options, const Context& context) {
  MatmulOptions with_device = options;
  with_device.device = c.device;
  Context with_executor = context;
  int workers = 0;
  if (c.device.type == DeviceType::cpu && options.backend != Backend::reference) {
    // Read once: another thread may call set_num_threads() between the request and its plan.
    with_executor.executor = cpu::executor_of(context);
    workers = with_executor.executor->concurrency();
  }
  const auto make = [&] { return make_plan(problem, with_device, with_executor); };
  // `make` is passed by reference, as a std::function of its captures would allocate.
  const std::shared_ptr<const MatmulPlan> plan =
      plan_cache().find(MatmulRequest{problem, with_device, context.isa, workers}, std::ref(make));
  matmul(*plan, inputs, c, with_executor);
}

std::string to_string(const MatmulPlan& plan) {
  std::string text = fmt::format("{} on {}", to_string(plan.problem), name(plan.backend));
  if (!plan.rung.empty()) {
    text += fmt::format(" by {}, tiles {} x {} x {}, {} tasks", plan.rung, plan.block_m,
                        plan.block_n, plan.block_k, plan.tasks);
  }
  if (plan.backend == Backend::cpu) {
    text += fmt::format(", {} threads, {}", plan.threads, name(plan.isa));
  }
  if (plan.splits > 1) text += fmt::format(", k in {} parts", plan.splits);
  for (const std::string& reason : plan.reasons) text += "; " + reason;
  return text;
}

}  // namespace attn
