// What `plan` says of a forward pass.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/error.hpp"
#include "core/text/echo.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/forward/forward.hpp"
#include "cuda/forward/parameters.hpp"
#include "cuda/forward/prepare.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/limits.hpp"
#include "cuda/plan/choose_forward.hpp"
#include "cuda/plan/decoding_part.hpp"
#include "cuda/plan/forward_kernel_name.hpp"
#include "cuda/plan/splits.hpp"
#include "cuda/plan_state.hpp"

namespace attn::cuda {
namespace {

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

void add_sources(std::vector<Source>& to, const Problem& problem, const ForwardConfig& config) {
  if (config.classified) to.push_back(classify_source(problem, config));
  to.push_back(forward_source(problem, config));
  if (config.splits) to.push_back(combine_source(config));
}

}  // namespace

Plan plan_forward(const Problem& problem, const PlanOptions& options) {
  if (problem.key_list > 0 && options.batch_invariant) {
    throw Error(ErrorCode::unsupported,
                fmt::format("batch_invariant is true and key_list is {}; accepted beside lists of "
                            "keys on the cuda backend is false (problem {})",
                            problem.key_list, core::echo(problem)));
  }
  const DeviceInfo& device = device_info(options.device.index);
  const Arch arch = supported_arch(device);
  const std::string kernel = forward_kernel_name(options.algorithm, options.kernel);
  ForwardConfig config = choose_forward(problem, arch, {}, {1, options.batch_invariant}, kernel);
  const Algorithm own = config.algorithm;
  Plan plan;
  plan.problem = problem;
  plan.phase = Phase::forward;
  plan.backend = Backend::cuda;
  plan.device = options.device;
  plan.kernel = options.kernel;
  plan.deterministic = options.deterministic;
  plan.batch_invariant = options.batch_invariant;
  const bool split =
      options.algorithm == Algorithm::automatic || options.algorithm == Algorithm::flash_decoding;
  KeySplits splits{1, options.batch_invariant};
  if (split) {
    splits = splits.batch_invariant ? invariant_splits(problem, config, multiprocessors(device))
                                    : choose_splits(problem, config, multiprocessors(device));
  }
  plan.num_splits = splits.count;
  config.splits = plan.num_splits > 1;
  std::optional<DecodingPart> part;
  if (split && kernel.empty()) {
    part = decoding_part(problem, arch, multiprocessors(device), options.batch_invariant);
  }
  switch (options.algorithm) {
    case Algorithm::automatic:
      plan.algorithm = config.splits || part ? Algorithm::flash_decoding : own;
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
  core::Size workspace = workspace_bytes(problem, arch, splits, kernel);
  core::Size blocks = most_blocks(problem, arch, splits, kernel);
  if (part) {
    workspace = with_decoding(workspace, *part);
    blocks = std::max(blocks, most_blocks(*part));
  }
  check_sizes(problem, Phase::forward, workspace, blocks);
  check_forward_parameters(problem, config);
  plan.tasks = num_tiles(problem, config, plan.num_splits).value();
  plan.workspace_bytes = workspace.value();
  plan.launch = describe(config, arch, forward_blocks(config, plan.tasks, device.sm_count));
  plan.reasons.emplace_back(config.tiling.reason);
  if (problem.key_list > 0) {
    plan.reasons.emplace_back("lists of keys: the rows of a tile are of one query");
  } else if (config.tiling.group > 1) {
    plan.reasons.push_back(fmt::format(
        "the {} query heads of a group share tiles: {} rows a tile would stay empty otherwise",
        config.tiling.group,
        config.tiling.rows - static_cast<int>(problem.seqlen_q) % config.tiling.rows));
  }
  if (splits.batch_invariant) {
    plan.reasons.push_back(fmt::format(
        "batch_invariant: kernel and tiles are those of one sequence, whose own length says in how "
        "many pieces its keys are cut, {} at most",
        plan.num_splits));
  } else if (config.splits) {
    plan.reasons.push_back(
        fmt::format("{} parts of the keys: {} tiles alone leave {} multiprocessors idle",
                    plan.num_splits, plan.tasks / plan.num_splits, device.sm_count));
  }
  if (part) {
    plan.reasons.push_back(fmt::format(
        "where Q has few rows for so many sequences, those of up to {} queries run in {}",
        part->problem.seqlen_q, part->kernel->name));
  }
  if (config.classified) {
    plan.reasons.emplace_back(
        "the mask reads buffers: a kernel ahead says once which blocks of keys each tile sees");
  }
  plan.state = std::shared_ptr<core::MadeFor>(std::make_shared<PlanState<ForwardRun>>(plan));
  return plan;
}

std::vector<Source> forward_sources(const Problem& problem, Arch arch, const PlanOptions& options) {
  // A machine of a common size decides whether keys are split.
  constexpr int kMultiprocessors = 132;
  const bool invariant = options.batch_invariant;
  const std::string_view kernel = options.kernel;
  ForwardConfig config = choose_forward(problem, arch, {}, {1, invariant}, kernel);
  const KeySplits splits = invariant ? invariant_splits(problem, config, kMultiprocessors)
                                     : KeySplits(choose_splits(problem, config, kMultiprocessors));
  if (splits.count > 1) config = choose_forward(problem, arch, {}, splits, kernel);
  std::vector<Source> sources;
  add_sources(sources, problem, config);
  if (!kernel.empty()) return sources;
  const auto part = decoding_part(problem, arch, kMultiprocessors, invariant);
  if (!part) return sources;
  // What a call takes whose sequences differ much in their numbers of queries.
  const ForwardTensors uneven{.uneven_q = true};
  add_sources(sources, problem, rest_of(*part, problem, arch, uneven, splits, kernel));
  add_sources(sources, part->problem, few_rows_of(*part, arch, uneven));
  return sources;
}

}  // namespace attn::cuda
