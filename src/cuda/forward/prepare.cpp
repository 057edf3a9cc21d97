#include "cuda/forward/prepare.hpp"

#include <algorithm>
#include <optional>
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
#include "cuda/plan/decoding_part.hpp"
#include "cuda/plan/forward_kernel_name.hpp"
#include "cuda/plan/splits.hpp"

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

// Kernels and launches of a pass; what has to be compiled is added to `requests`.
void fill_pass(ForwardPass& pass, const Problem& p, const ForwardConfig& config, KeySplits splits,
               const ForwardSignature& signature, const DeviceInfo& device,
               std::vector<KernelRequest>& requests) {
  const bool hopper = device.arch >= 90;
  pass.config = config;
  pass.parameters = forward_parameters(p, config, splits);
  const std::int64_t words = num_key_words(p, config).value();
  if (words > 0) {
    requests.push_back({classify_source(p, config, signature.printed), &pass.classify});
    pass.classify_launch = classify_launch(words, config.tiling.parts);
    pass.forward_launch.programmatic_dependent_launch = hopper;
  }
  // Loads of buffers are not ordered behind the wait for what comes before
  // (device/expr/buffer.cuh).
  const auto reads = [](const expr::Expr& e) { return !e.empty() && !expr::buffers(e).empty(); };
  const bool reads_buffers = reads(p.mask) || reads(p.score);
  if (config.kernel->begins_early && !reads_buffers) {
    pass.forward_launch.programmatic_dependent_launch = hopper;
  }
  requests.push_back({forward_source(p, config, signature.printed), &pass.forward});
  if (config.splits) {
    requests.push_back({combine_source(config), &pass.combine});
    pass.combine_launch = combine_launch(p, config.combine, hopper);
  }
  const std::int64_t tiles = num_tiles(p, config, splits.count).value();
  pass.forward_launch.grid[0] = forward_blocks(config, tiles, device.sm_count);
  pass.forward_launch.block = static_cast<unsigned>(config.tiling.threads);
  pass.forward_launch.shared_bytes = static_cast<unsigned>(config.tiling.shared_bytes);
  pass.deals_tiles = stays(config) && tiles > pass.forward_launch.grid[0];
}

std::optional<DecodingPart> decoding_part_of(const Plan& plan, Arch arch,
                                             const DeviceInfo& device) {
  if (plan.algorithm != Algorithm::flash_decoding || !plan.kernel.empty()) return {};
  return decoding_part(plan.problem, arch, multiprocessors(device), plan.batch_invariant);
}

// Holds a plan that was changed by hand to what it takes now.
void check_plan(const Plan& plan, Arch arch, std::string_view kernel) {
  core::check_plan_range(plan, "num_splits", plan.num_splits, 1, kMostSplits);
  const KeySplits splits = key_splits(plan);
  core::Size needed = workspace_bytes(plan.problem, arch, splits, kernel);
  core::Size blocks = most_blocks(plan.problem, arch, splits, kernel);
  if (const auto part = decoding_part_of(plan, arch, device_info(plan.device.index))) {
    needed = with_decoding(needed, *part);
    blocks = std::max(blocks, most_blocks(*part));
  }
  check_sizes(plan.problem, Phase::forward, needed, blocks);
  core::check_plan_workspace(plan, needed.value());
}

}  // namespace

std::int64_t forward_blocks(const ForwardConfig& config, std::int64_t tiles, int sm_count) {
  if (!stays(config)) return tiles;
  return std::min<std::int64_t>(tiles, std::int64_t{sm_count} * config.tiling.blocks_at_once);
}

ForwardRun prepare_forward(const Plan& plan, const ForwardSignature& signature,
                           const Context& context) {
  ForwardTensors tensors = signature.tensors;
  const Problem& p = plan.problem;
  const DeviceInfo& device = device_info(plan.device.index);
  const Arch arch = arch_of_capability(device.arch);
  const std::string named = forward_kernel_name(plan.algorithm, plan.kernel);
  // A kernel that needs tensor maps gives way, also one that was named, to the fastest without.
  const std::string_view kernel = tensors.mapped ? std::string_view(named) : std::string_view();
  const KeySplits splits = key_splits(plan);
  check_plan(plan, arch, named);
  ForwardRun run{.signature = signature,
                 .expressions = expression_pack(p.mask, score_expression(p), p.scale(),
                                                precise_math(p.dtype))};
  std::optional<DecodingPart> part;
  if (tensors.uneven_q && tensors.aligned) part = decoding_part_of(plan, arch, device);
  tensors.uneven_q = part.has_value();
  std::vector<KernelRequest> requests;
  const ForwardConfig config = part ? rest_of(*part, p, arch, tensors, splits, kernel)
                                    : choose_forward(p, arch, tensors, splits, kernel);
  fill_pass(run.pass, p, config, splits, signature, device, requests);
  if (part) {
    ForwardPass& pass = run.decoding.emplace();
    pass.workspace_offset = decoding_offset(workspace_bytes(p, arch, splits, named)).value();
    fill_pass(pass, part->problem, few_rows_of(*part, arch, tensors), part->splits, signature,
              device, requests);
  }
  get_kernels(plan.device.index, requests, context);
  return run;
}

}  // namespace attn::cuda
