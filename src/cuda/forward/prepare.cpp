#include "cuda/forward/prepare.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/validate/plan_field.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/forward/parameters.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/limits.hpp"
#include "cuda/plan/choose_forward.hpp"
#include "cuda/plan/forward_kernel_name.hpp"

namespace attn::cuda {
namespace {

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

KeySplits key_splits(const Plan& plan) { return {plan.num_splits, plan.batch_invariant}; }

// Holds a plan that was changed by hand to what it takes now.
void check_plan(const Plan& plan, Arch arch, std::string_view kernel) {
  core::check_plan_range(plan, "num_splits", plan.num_splits, 1, kMostSplits);
  const KeySplits splits = key_splits(plan);
  const core::Size needed = workspace_bytes(plan.problem, arch, splits, kernel);
  check_sizes(plan.problem, Phase::forward, needed,
              most_blocks(plan.problem, arch, splits, kernel));
  core::check_plan_workspace(plan, needed.value());
}

}  // namespace

std::int64_t forward_blocks(const ForwardConfig& config, std::int64_t tiles, int sm_count) {
  if (!stays(config)) return tiles;
  return std::min<std::int64_t>(tiles, std::int64_t{sm_count} * config.tiling.blocks_at_once);
}

ForwardRun prepare_forward(const Plan& plan, const ForwardSignature& signature,
                           const Context& context) {
  const ForwardTensors& tensors = signature.tensors;
  const Problem& p = plan.problem;
  const DeviceInfo& device = device_info(plan.device.index);
  const Arch arch = arch_of_capability(device.arch);
  const bool hopper = device.arch >= 90;
  const std::string named = forward_kernel_name(plan.algorithm, plan.kernel);
  // Where the driver does not take the strides.
  constexpr std::string_view kWithoutMaps = "forward_sm80";
  const std::string_view kernel = tensors.mapped ? std::string_view(named) : kWithoutMaps;
  check_plan(plan, arch, named);
  const ForwardConfig config = choose_forward(p, arch, tensors, key_splits(plan), kernel);
  ForwardRun run{.signature = signature,
                 .config = config,
                 .parameters = forward_parameters(p, config, key_splits(plan)),
                 .expressions = expression_pack(p.mask, score_expression(p), p.scale(),
                                                precise_math(config.features.dtype))};
  std::vector<KernelRequest> requests;
  const std::int64_t words = num_key_words(p, config).value();
  if (words > 0) {
    requests.push_back({classify_source(p, config, signature.printed), &run.classify});
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
  requests.push_back({forward_source(p, config, signature.printed), &run.forward});
  if (config.splits) {
    requests.push_back({combine_source(config), &run.combine});
    run.combine_launch = combine_launch(p, config.combine, hopper);
  }
  const std::int64_t tiles = num_tiles(p, config, plan.num_splits).value();
  run.forward_launch.grid[0] = forward_blocks(config, tiles, device.sm_count);
  run.forward_launch.block = static_cast<unsigned>(config.tiling.threads);
  run.forward_launch.shared_bytes = static_cast<unsigned>(config.tiling.shared_bytes);
  run.deals_tiles = stays(config) && tiles > run.forward_launch.grid[0];
  get_kernels(plan.device.index, requests, context);
  return run;
}

}  // namespace attn::cuda
