// What `plan` says of a backward pass.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cuda/backward/backward.hpp"
#include "cuda/backward/buffers.hpp"
#include "cuda/backward/prepare.hpp"
#include "cuda/backward/source.hpp"
#include "cuda/backward/workspace.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/heuristics/backward_kernel_name.hpp"
#include "cuda/heuristics/backward_tiles.hpp"
#include "cuda/heuristics/choose_backward.hpp"
#include "cuda/heuristics/choose_buffers.hpp"
#include "cuda/limits.hpp"
#include "cuda/plan_state.hpp"

namespace attn::cuda {
namespace {

std::string passes_reason(BackwardKernel kernel, std::size_t launches) {
  if (is_one_pass(kernel)) {
    return "one pass over S: dK and dV are summed in registers, dQ in memory in float32";
  }
  if (kernel == BackwardKernel::standard) {
    return "P and dS, an element for each query and key, go through memory in float32";
  }
  if (kernel == BackwardKernel::flash_attention) {
    return "one pass over S: dK and dV are summed in shared memory, dQ in memory in float32, all "
           "in a fixed order";
  }
  return fmt::format("{} passes over S: each gradient is summed in registers, in a fixed order",
                     launches);
}

}  // namespace

Plan plan_backward(const Problem& problem, const PlanOptions& options) {
  const DeviceInfo& device = device_info(options.device.index);
  const Arch arch = supported_arch(device);
  const std::string named = backward_kernel_name(options.algorithm, options.kernel);
  const BackwardWish wish{arch, named, options.deterministic};
  const BackwardKernel kernel = choose_backward_kernel(problem, {}, wish);
  const std::vector<BackwardConfig> launches = backward_launches(kernel, problem, {}, {}, wish);
  const BackwardConfig& config = launches.back();
  Plan plan;
  plan.problem = problem;
  plan.phase = Phase::backward;
  plan.backend = Backend::cuda;
  plan.device = options.device;
  plan.kernel = named;
  plan.deterministic = options.deterministic;
  plan.algorithm = algorithm_of(kernel, config.skips_empty);
  plan.compute = is_scalar(kernel) ? DType::f32 : DType{problem.dtype};
  plan.block_q = config.block_n;
  plan.block_k = plan.rows_per_task = config.block_m;
  plan.workspace_bytes = checked_workspace(problem, kernel, wish);
  plan.tasks = num_tiles(problem, config).value();
  check_backward_parameters(problem, config, {});
  plan.launch.kernel = name(kernel);
  plan.launch.arch = to_string(arch);
  const bool hopper = kernel == BackwardKernel::sm90;  // its blocks of threads stay
  plan.launch.cluster = config.cluster;
  plan.launch.grid = {
      hopper ? std::min<std::int64_t>(plan.tasks, device.sm_count / config.cluster) * config.cluster
             : plan.tasks,
      1, 1};
  plan.launch.threads = config.threads();
  plan.launch.shared_bytes = config.shared_bytes();
  plan.launch.stages = config.stages;
  plan.reasons.push_back(config.reason);
  plan.reasons.push_back(passes_reason(kernel, launches.size()));
  if (is_one_pass(kernel)) {
    const bool unasked =
        backward_config(kernel, problem, {}, device::Gradient::all, {arch, named, false}).ordered;
    plan.reasons.emplace_back(
        unasked ? "tiles of keys take turns to add to dQ, in a fixed order, which is faster for so "
                  "few of them"
        : config.ordered
            ? "deterministic: tiles of keys take turns to add to dQ, in a fixed order, so that "
              "equal inputs give equal bits; that costs up to a tenth of the speed where there are "
              "many tiles, more where there are few"
            : "dQ is added in no fixed order, so that its last bits may differ between calls; "
              "deterministic asks for equal ones");
  }
  if (const BackwardKernel faster = choose_backward_kernel(problem, {}, {arch, named, false});
      faster != kernel) {
    plan.reasons.push_back(
        fmt::format("deterministic: instead of {}, which adds dQ in no fixed "
                    "order and computes S once",
                    name(faster)));
  }
  if (buffers_config(problem, {}, gradient_names(problem), wish).exact_sums) {
    plan.reasons.push_back(
        fmt::format("deterministic: gradients of buffers whose elements many queries or keys share "
                    "are summed exactly, in {} bytes of workspace an element instead of {}",
                    sum_bytes(true), sum_bytes(false)));
  }
  plan.state = std::shared_ptr<core::MadeFor>(std::make_shared<PlanState<BackwardRun>>(plan));
  return plan;
}

std::vector<Source> backward_sources(const Problem& problem, Arch arch,
                                     const PlanOptions& options) {
  const std::string named = backward_kernel_name(options.algorithm, options.kernel);
  const BackwardWish wish{arch, named, options.deterministic};
  const BackwardKernel chosen = choose_backward_kernel(problem, {}, wish);
  const std::vector<BackwardConfig> launches = backward_launches(chosen, problem, {}, {}, wish);
  const std::vector<std::string> names = gradient_names(problem);
  std::vector<Source> sources;
  if (reads_row_terms(chosen) || problem.sink || !names.empty()) {
    sources.push_back(backward_rows_source(launches.front()));
  }
  if (is_one_pass(chosen)) {
    sources.push_back(backward_one_pass_rows_source(launches.front(), true));
    if (chosen == BackwardKernel::sm90) {
      sources.push_back(backward_sm90_words_source(problem, launches.front()));
    }
    sources.push_back(backward_one_pass_dq_source(launches.front()));
  }
  for (const BackwardConfig& config : launches) {
    sources.push_back(backward_source(problem, config, {}));
  }
  if (problem.sink) sources.push_back(backward_sink_source());
  if (names.empty()) return sources;
  sources.push_back(backward_clear_source());
  const BackwardConfig config = buffers_config(problem, {}, names, wish);
  sources.push_back(backward_source(problem, config, names));
  sources.push_back(backward_store_source(config));
  return sources;
}

}  // namespace attn::cuda
