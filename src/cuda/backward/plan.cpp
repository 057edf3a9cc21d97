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
#include "cuda/kernels/backward_tiles.hpp"
#include "cuda/limits.hpp"
#include "cuda/plan/backward_kernel_name.hpp"
#include "cuda/plan/choose_backward.hpp"
#include "cuda/plan/choose_buffers.hpp"
#include "cuda/plan_state.hpp"

namespace attn::cuda {
Plan plan_backward(const Problem& problem, const PlanOptions& options) {
  const DeviceInfo& device = device_info(options.device.index);
  const Arch arch = supported_arch(device);
  const std::string named = backward_kernel_name(options.algorithm, options.kernel);
  const BackwardWish wish{arch, named, options.deterministic};
  const BackwardKernel& kernel = choose_backward_kernel(problem, {}, wish);
  const std::vector<BackwardConfig> launches = backward_launches(kernel, problem, {}, {}, wish);
  // Where one launch has all three gradients, another may store two of them.
  const auto all = std::ranges::find(launches, device::Gradient::all, &BackwardConfig::gradient);
  const BackwardConfig& config = all != launches.end() ? *all : launches.back();
  Plan plan;
  plan.problem = problem;
  plan.phase = Phase::backward;
  plan.backend = Backend::cuda;
  plan.device = options.device;
  plan.kernel = named;
  plan.deterministic = options.deterministic;
  plan.algorithm = config.algorithm;
  plan.compute = kernel.scalar ? DType::f32 : DType{problem.dtype};
  plan.block_q = config.tiling.block_n;
  plan.block_k = plan.rows_per_task = config.tiling.block_m;
  plan.workspace_bytes = checked_workspace(problem, kernel, wish);
  plan.tasks = num_tiles(problem, config).value();
  check_backward_parameters(problem, config, {});
  plan.launch.kernel = kernel.name;
  plan.launch.arch = to_string(arch);
  const int cluster = plan.launch.cluster = config.tiling.cluster;
  plan.launch.grid = {kernel.stays
                          ? std::min<std::int64_t>(plan.tasks, device.sm_count / cluster) * cluster
                          : plan.tasks,
                      1, 1};
  plan.launch.threads = config.tiling.threads();
  plan.launch.shared_bytes = config.tiling.shared_bytes;
  plan.launch.stages = config.tiling.stages;
  plan.reasons.emplace_back(config.tiling.reason);
  plan.reasons.push_back(fmt::format(fmt::runtime(kernel.passes), launches.size()));
  if (kernel.one_pass) {
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
  if (const BackwardKernel& faster = choose_backward_kernel(problem, {}, {arch, named, false});
      &faster != &kernel) {
    plan.reasons.push_back(
        fmt::format("deterministic: instead of {}, which adds dQ in no fixed "
                    "order and computes S once",
                    faster.name));
  }
  if (buffers_config(problem, {}, gradient_names(problem), wish).buffers.exact_sums) {
    plan.reasons.push_back(
        fmt::format("deterministic: gradients of buffers whose elements many queries or keys share "
                    "are summed exactly, in {} bytes of workspace an element instead of {}",
                    sum_bytes(true), sum_bytes(false)));
  }
  plan.state = std::shared_ptr<core::MadeFor>(std::make_shared<PlanState<BackwardRun>>(plan));
  return plan;
}

std::vector<Source> backward_sources(const Problem& problem, Arch arch, const PlanOptions& options,
                                     bool float_sums) {
  const std::string named = backward_kernel_name(options.algorithm, options.kernel);
  const BackwardWish wish{arch, named, options.deterministic};
  const BackwardTensors tensors{.float_sums = float_sums};
  const BackwardKernel& chosen = choose_backward_kernel(problem, tensors, wish);
  const std::vector<BackwardConfig> launches =
      backward_launches(chosen, problem, tensors, {}, wish);
  const std::vector<std::string> names = gradient_names(problem);
  std::vector<Source> sources;
  if (launches.front().features.far_rows) {
    sources.push_back(backward_far_rows_source(problem, launches.front()));
  }
  if (chosen.reads_row_terms || problem.sink || !names.empty()) {
    sources.push_back(backward_rows_source(launches.front()));
  }
  if (chosen.one_pass) {
    sources.push_back(backward_one_pass_rows_source(launches.front(), true));
    if (!chosen.query_words.empty()) {
      sources.push_back(backward_words_source(problem, launches.front()));
    }
    sources.push_back(backward_one_pass_dq_source(launches.front()));
  }
  for (const BackwardConfig& config : launches) {
    sources.push_back(backward_source(problem, config, {}));
  }
  if (problem.sink) sources.push_back(backward_sink_source(problem, launches.front()));
  if (names.empty()) return sources;
  sources.push_back(backward_clear_source());
  const BackwardConfig config = buffers_config(problem, {}, names, wish);
  sources.push_back(backward_source(problem, config, names));
  sources.push_back(backward_store_source(config));
  return sources;
}

}  // namespace attn::cuda
