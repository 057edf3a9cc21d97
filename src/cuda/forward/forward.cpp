#include "cuda/forward/forward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <mutex>

#include "attn/error.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/driver/counters.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/forward/config.hpp"
#include "cuda/forward/parameters.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/limits.hpp"

namespace attn::cuda {
namespace {

std::int64_t blocks_of(const ForwardConfig& config, std::int64_t tiles, int sm_count) {
  // The Hopper kernel stays and takes tile after tile.
  return config.kernel == ForwardKernel::sm90 ? std::min<std::int64_t>(tiles, sm_count) : tiles;
}

Launch describe(const ForwardConfig& config, Arch arch, std::int64_t blocks) {
  Launch launch;
  launch.kernel = name(config.kernel);
  launch.arch = to_string(arch);
  launch.grid = {blocks, 1, 1};
  launch.threads = config.threads();
  launch.shared_bytes = config.shared_bytes();
  launch.stages = config.stages;
  return launch;
}

ForwardTensors facts_of(const Inputs& inputs, const Outputs& outputs) {
  ForwardTensors facts;
  facts.seqused_q = inputs.seqused_q.given();
  facts.seqused_k = inputs.seqused_k.given();
  for (const Tensor* t : {&inputs.q, &inputs.k, &inputs.v, &outputs.o}) {
    facts.aligned = facts.aligned && alignment_of(*t) % 16 == 0;
  }
  return facts;
}

// The kernels of a plan, once asked for: printing the source and hashing it takes longer than a
// launch.
struct Kernels {
  ForwardKernel kernel{};
  ForwardTensors tensors{};
  std::shared_ptr<const Kernel> classify{}, forward{}, combine{};
};
struct ForwardState {
  std::mutex mutex{};
  std::vector<Kernels> ready{};
};

Kernels make_kernels(const Plan& plan, const ForwardConfig& config, const ForwardTensors& tensors,
                     const Inputs& inputs, const Context& context) {
  Kernels kernels{config.kernel, tensors};
  std::vector<KernelRequest> requests;
  if (config.classified) {
    requests.push_back({classify_source(plan.problem, config, inputs.buffers), &kernels.classify});
  }
  requests.push_back({forward_source(plan.problem, config, inputs.buffers), &kernels.forward});
  if (config.splits) requests.push_back({combine_source(config), &kernels.combine});
  get_kernels(plan.device.index, requests, context);
  return kernels;
}

Kernels kernels_of(const Plan& plan, const ForwardConfig& config, const ForwardTensors& tensors,
                   const Inputs& inputs, const Context& context) {
  const Problem& p = plan.problem;
  auto* state = static_cast<ForwardState*>(plan.state.get());
  // The text depends on the buffers that are bound.
  if (state == nullptr || !prints_alike(p.mask, score_expression(p), inputs.buffers)) {
    return make_kernels(plan, config, tensors, inputs, context);
  }
  {
    const std::lock_guard lock(state->mutex);
    for (const Kernels& k : state->ready) {
      if (k.kernel == config.kernel && k.tensors == tensors) return k;
    }
  }
  Kernels made = make_kernels(plan, config, tensors, inputs, context);
  const std::lock_guard lock(state->mutex);
  state->ready.push_back(made);
  return made;
}

// One warp a word.
void launch_classify(const Kernel& kernel, std::int64_t words, int parts,
                     device::ForwardParams& parameters, std::vector<std::byte>& expressions,
                     const Context& context) {
  LaunchConfig launch;
  launch.grid[0] = words / parts;
  launch.block = static_cast<unsigned>(32 * parts);
  std::array<void*, 2> arguments{&parameters, expressions.data()};
  kernel.launch(launch, context.stream, arguments.data());
}

void launch_combine(const Plan& plan, const Kernel& kernel, device::ForwardParams& parameters,
                    const Context& context) {
  constexpr int kRowsPerBlock = 4;  // one warp each, 128 threads
  const Problem& p = plan.problem;
  LaunchConfig launch;
  launch.grid[0] =
      core::divide_up(core::Size(p.batch) * p.heads_q * p.seqlen_q, kRowsPerBlock).value();
  launch.block = 32 * kRowsPerBlock;
  launch.programmatic_dependent_launch = device_info(plan.device.index).arch >= 90;
  std::array<void*, 1> arguments{&parameters};
  kernel.launch(launch, context.stream, arguments.data());
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
  const Algorithm own = algorithm_of(config.kernel, config.skips_empty);
  Plan plan;
  plan.problem = problem;
  plan.phase = Phase::forward;
  plan.backend = Backend::cuda;
  plan.kernel = options.kernel;
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
                              name(options.algorithm), to_string(problem)));
  }
  plan.compute = problem.dtype;
  plan.block_q = plan.rows_per_task = config.block_m;
  plan.block_k = config.keys_at_once();
  const core::Size workspace = workspace_bytes(problem, arch, plan.num_splits, kernel);
  check_sizes(problem, Phase::forward, workspace,
              most_blocks(problem, arch, plan.num_splits, kernel));
  check_forward_parameters(problem, config);
  plan.tasks = num_tiles(problem, config, plan.num_splits).value();
  plan.workspace_bytes = workspace.value();
  plan.launch = describe(config, arch, blocks_of(config, plan.tasks, device.sm_count));
  plan.reasons.push_back(config.reason);
  if (config.group > 1) {
    plan.reasons.push_back(fmt::format(
        "the {} query heads of a group share tiles: {} rows a tile would stay empty otherwise",
        config.group, config.block_m - static_cast<int>(problem.seqlen_q) % config.block_m));
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
  plan.state = std::make_shared<ForwardState>();
  return plan;
}

void run_forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                 const Context& context) {
  const Problem& problem = plan.problem;
  if (problem.batch == 0 || problem.seqlen_q == 0 || problem.heads_q == 0) return;
  const int ordinal = plan.device.index;
  const ContextGuard guard(ordinal);
  const DeviceInfo& device = device_info(ordinal);
  const Arch arch = arch_of_capability(device.arch);
  const ForwardTensors facts = facts_of(inputs, outputs);
  ForwardConfig config = choose_forward(problem, arch, facts, plan.num_splits,
                                        forward_kernel_name(plan.algorithm, plan.kernel));
  std::optional<ForwardMaps> maps;
  if (config.kernel == ForwardKernel::sm90) {
    maps = forward_maps(problem, config, inputs, outputs);
    if (!maps) {
      config = choose_forward(problem, arch, facts, plan.num_splits, name(ForwardKernel::sm80));
    }
  }
  device::ForwardParams parameters =
      forward_parameters(problem, config, plan.num_splits, inputs, outputs, context.workspace);
  const std::int64_t tiles = num_tiles(problem, config, plan.num_splits).value();
  if (config.kernel == ForwardKernel::sm90 && tiles > device.sm_count) {
    parameters.counter = work_counter(context.stream);
  }
  std::vector<std::byte> expressions =
      pack_expressions(problem.mask, score_expression(problem), inputs.buffers, problem.scale(),
                       precise_math(config.features.dtype));
  const Kernels kernels = kernels_of(plan, config, facts, inputs, context);
  LaunchConfig launch;
  launch.grid[0] = blocks_of(config, tiles, device.sm_count);
  launch.block = static_cast<unsigned>(config.threads());
  launch.shared_bytes = static_cast<unsigned>(config.shared_bytes());
  if (const std::int64_t words = num_key_words(problem, config).value(); words > 0) {
    launch_classify(*kernels.classify, words, config.parts(), parameters, expressions, context);
    launch.programmatic_dependent_launch = device.arch >= 90;
  }
  std::array<void*, 3> arguments{&parameters, expressions.data(), maps ? &*maps : nullptr};
  const int passes = config.kernel == ForwardKernel::standard ? 3 : 1;
  for (parameters.pass = 0; parameters.pass < passes; ++parameters.pass) {
    kernels.forward->launch(launch, context.stream, arguments.data());
  }
  if (config.splits) launch_combine(plan, *kernels.combine, parameters, context);
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
