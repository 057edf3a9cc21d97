#include "cuda/forward/forward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/error.hpp"
#include "core/text/echo.hpp"
#include "core/validate/plan_field.hpp"
#include "core/validate/validate.hpp"
#include "cuda/codegen/expression_pack.hpp"
#include "cuda/driver/counters.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/forward/parameters.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/limits.hpp"
#include "cuda/plan/choose_forward.hpp"
#include "cuda/plan/forward_kernel_name.hpp"
#include "cuda/plan/splits.hpp"
#include "cuda/plan_state.hpp"

namespace attn::cuda {
namespace {

std::int64_t blocks_of(const ForwardConfig& config, std::int64_t tiles, int sm_count) {
  return config.kernel->stays ? std::min<std::int64_t>(tiles, sm_count) : tiles;
}

Launch describe(const ForwardConfig& config, Arch arch, std::int64_t blocks) {
  Launch launch;
  launch.kernel = config.kernel->name;
  launch.arch = to_string(arch);
  launch.grid = {blocks, 1, 1};
  launch.threads = config.tiling.threads;
  launch.shared_bytes = config.tiling.shared_bytes;
  launch.stages = config.tiling.stages;
  return launch;
}

ForwardTensors tensors_of(const Inputs& inputs, const Outputs& outputs) {
  ForwardTensors tensors;
  tensors.seqused_q = inputs.seqused_q.given();
  tensors.seqused_k = inputs.seqused_k.given();
  for (const Tensor* t : {&inputs.q, &inputs.k, &inputs.v, &outputs.o}) {
    tensors.aligned = tensors.aligned && alignment_of(*t) % 16 == 0;
  }
  return tensors;
}

// All of a run but the tensors of a call.
struct ForwardRun {
  // What it was made for.
  ForwardTensors tensors{};
  std::vector<PrintedTensor> printed{};

  ForwardConfig config{};
  device::ForwardParams parameters{};
  ExpressionPack expressions;
  std::shared_ptr<const Kernel> classify{}, forward{}, combine{};
  LaunchConfig classify_launch{}, forward_launch{}, combine_launch{};
  bool deals_tiles = false;  // by a counter (driver/counters.hpp)
};

// One warp a word.
LaunchConfig classify_launch(std::int64_t words, int parts) {
  LaunchConfig launch;
  launch.grid[0] = words / parts;
  launch.block = static_cast<unsigned>(32 * parts);
  return launch;
}

LaunchConfig combine_launch(const Problem& p, const CombineShape& shape, bool hopper) {
  LaunchConfig launch;
  launch.grid[0] =
      core::divide_up(core::Size(p.batch) * p.heads_q * p.seqlen_q, shape.rows()).value();
  launch.block = static_cast<unsigned>(shape.threads);
  launch.shared_bytes = static_cast<unsigned>(shape.shared_bytes);
  launch.programmatic_dependent_launch = hopper;
  return launch;
}

// Holds a plan that was changed by hand to what it takes now.
void check_plan(const Plan& plan, Arch arch, std::string_view kernel) {
  core::check_plan_range(plan, "num_splits", plan.num_splits, 1, kMostSplits);
  const core::Size needed = workspace_bytes(plan.problem, arch, plan.num_splits, kernel);
  check_sizes(plan.problem, Phase::forward, needed,
              most_blocks(plan.problem, arch, plan.num_splits, kernel));
  core::check_plan_workspace(plan, needed.value());
}

ForwardRun make_run(const Plan& plan, const ForwardTensors& tensors, const Inputs& inputs,
                    const Context& context) {
  const Problem& p = plan.problem;
  const DeviceInfo& device = device_info(plan.device.index);
  const Arch arch = arch_of_capability(device.arch);
  const bool hopper = device.arch >= 90;
  const std::string named = forward_kernel_name(plan.algorithm, plan.kernel);
  // Where the driver does not take the strides.
  constexpr std::string_view kWithoutMaps = "forward_sm80";
  const std::string_view kernel = tensors.mapped ? std::string_view(named) : kWithoutMaps;
  check_plan(plan, arch, named);
  const ForwardConfig config = choose_forward(p, arch, tensors, plan.num_splits, kernel);
  ForwardRun run{.tensors = tensors,
                 .config = config,
                 .parameters = forward_parameters(p, config, plan.num_splits),
                 .expressions = expression_pack(p.mask, score_expression(p), p.scale(),
                                                precise_math(config.features.dtype))};
  run.printed = run.expressions.printed(inputs.buffers);
  std::vector<KernelRequest> requests;
  const std::int64_t words = num_key_words(p, config).value();
  if (words > 0) {
    requests.push_back({classify_source(p, config, inputs.buffers), &run.classify});
    run.classify_launch = classify_launch(words, config.tiling.parts);
    run.forward_launch.programmatic_dependent_launch = hopper;
  }
  // Loads of buffers are not ordered behind the wait for what comes before
  // (device/expr/buffer.cuh).
  const auto reads = [](const expr::Expr& e) { return !e.empty() && !expr::buffers(e).empty(); };
  const bool reads_buffers = reads(p.mask) || reads(p.score);
  if (config.kernel->begins_early && !reads_buffers) {
    run.forward_launch.programmatic_dependent_launch = hopper;
  }
  requests.push_back({forward_source(p, config, inputs.buffers), &run.forward});
  if (config.splits) {
    requests.push_back({combine_source(config), &run.combine});
    run.combine_launch = combine_launch(p, config.combine, hopper);
  }
  const std::int64_t tiles = num_tiles(p, config, plan.num_splits).value();
  run.forward_launch.grid[0] = blocks_of(config, tiles, device.sm_count);
  run.forward_launch.block = static_cast<unsigned>(config.tiling.threads);
  run.forward_launch.shared_bytes = static_cast<unsigned>(config.tiling.shared_bytes);
  run.deals_tiles = config.kernel->stays && tiles > device.sm_count;
  get_kernels(plan.device.index, requests, context);
  return run;
}

}  // namespace

Plan plan_forward(const Problem& problem, const PlanOptions& options) {
  const DeviceInfo& device = device_info(options.device.index);
  const Arch arch = arch_of_capability(device.arch);
  if (arch.number < 80) {
    throw Error(ErrorCode::unsupported,
                fmt::format("device cuda:{} ({}) is {}; accepted are sm_80 and up", device.ordinal,
                            device.name, to_string(arch)));
  }
  const std::string kernel = forward_kernel_name(options.algorithm, options.kernel);
  ForwardConfig config = choose_forward(problem, arch, {}, 1, kernel);
  const Algorithm own = config.algorithm;
  Plan plan;
  plan.problem = problem;
  plan.phase = Phase::forward;
  plan.backend = Backend::cuda;
  plan.device = options.device;
  plan.kernel = options.kernel;
  plan.deterministic = options.deterministic;
  const bool split =
      options.algorithm == Algorithm::automatic || options.algorithm == Algorithm::flash_decoding;
  if (split) plan.num_splits = choose_splits(problem, config, device.sm_count);
  config.splits = plan.num_splits > 1;
  switch (options.algorithm) {
    case Algorithm::automatic:
      plan.algorithm = config.splits ? Algorithm::flash_decoding : own;
      break;
    case Algorithm::flash_decoding:
    case Algorithm::flash_attention_2:
      plan.algorithm = options.algorithm;
      break;
    case Algorithm::flash_attention:
    case Algorithm::block_sparse:
    case Algorithm::standard:
      plan.algorithm = own;
      break;
    case Algorithm::memory_efficient:
      throw Error(ErrorCode::unsupported,
                  fmt::format("algorithm is {}; accepted by forward on the cuda backend are "
                              "flash_attention_2, flash_decoding, flash_attention, block_sparse "
                              "and standard (problem {})",
                              name(options.algorithm), core::echo(problem)));
  }
  plan.compute = problem.dtype;
  plan.block_q = plan.rows_per_task = config.tiling.rows;
  plan.block_k = config.tiling.keys_at_once();
  const core::Size workspace = workspace_bytes(problem, arch, plan.num_splits, kernel);
  check_sizes(problem, Phase::forward, workspace,
              most_blocks(problem, arch, plan.num_splits, kernel));
  check_forward_parameters(problem, config);
  plan.tasks = num_tiles(problem, config, plan.num_splits).value();
  plan.workspace_bytes = workspace.value();
  plan.launch = describe(config, arch, blocks_of(config, plan.tasks, device.sm_count));
  plan.reasons.emplace_back(config.tiling.reason);
  if (config.tiling.group > 1) {
    plan.reasons.push_back(fmt::format(
        "the {} query heads of a group share tiles: {} rows a tile would stay empty otherwise",
        config.tiling.group,
        config.tiling.rows - static_cast<int>(problem.seqlen_q) % config.tiling.rows));
  }
  if (config.splits) {
    plan.reasons.push_back(
        fmt::format("{} parts of the keys: {} tiles alone leave {} multiprocessors idle",
                    plan.num_splits, plan.tasks / plan.num_splits, device.sm_count));
  }
  if (config.classified) {
    plan.reasons.emplace_back(
        "the mask reads buffers: a kernel ahead says once which blocks of keys each tile sees");
  }
  plan.state = std::shared_ptr<core::MadeFor>(std::make_shared<PlanState<ForwardRun>>(plan));
  return plan;
}

void run_forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                 const Context& context) {
  const Problem& problem = plan.problem;
  if (problem.batch == 0 || problem.seqlen_q == 0 || problem.heads_q == 0) return;
  const ContextGuard guard(plan.device.index);
  ForwardTensors tensors = tensors_of(inputs, outputs);
  std::optional<ForwardRun> own;
  const auto find = [&] {
    return &run_of(
        plan, own,
        [&](const ForwardRun& run) {
          return run.tensors == tensors && run.expressions.prints(run.printed, inputs.buffers);
        },
        [&] { return make_run(plan, tensors, inputs, context); });
  };
  const ForwardRun* run = find();
  std::optional<ForwardMaps> maps;
  if (run->config.kernel->reads_maps) {
    maps = run->config.shape->maps(run->config, problem, inputs, outputs);
    if (!maps) {
      tensors.mapped = false;
      run = find();
    }
  }
  device::ForwardParams parameters = run->parameters;
  fill_forward_tensors(parameters, problem, run->config, inputs, outputs, context.workspace);
  if (run->deals_tiles) parameters.counter = work_counter(context.stream);
  core::CallMemory memory;
  std::pmr::vector<std::byte> expressions(run->expressions.size(), &memory.resource());
  run->expressions.pack(inputs.buffers, expressions.data());
  std::array<void*, 3> arguments{&parameters, expressions.data(), maps ? &*maps : nullptr};
  if (run->classify != nullptr) {
    run->classify->launch(run->classify_launch, context.stream, arguments.data());
  }
  const int launches = run->config.kernel->launches;
  for (parameters.pass = 0; parameters.pass < launches; ++parameters.pass) {
    run->forward->launch(run->forward_launch, context.stream, arguments.data());
  }
  if (run->combine != nullptr) {
    run->combine->launch(run->combine_launch, context.stream, arguments.data());
  }
}

std::vector<Source> forward_sources(const Problem& problem, Arch arch, std::string_view kernel) {
  ForwardConfig config = choose_forward(problem, arch, {}, 1, kernel);
  // A machine of a common size decides whether keys are split.
  constexpr int kMultiprocessors = 132;
  const std::int32_t splits = choose_splits(problem, config, kMultiprocessors);
  if (splits > 1) config = choose_forward(problem, arch, {}, splits, kernel);
  std::vector<Source> sources;
  if (config.classified) sources.push_back(classify_source(problem, config));
  sources.push_back(forward_source(problem, config));
  if (config.splits) sources.push_back(combine_source(config));
  return sources;
}

}  // namespace attn::cuda
