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
#include "cuda/forward/copied_operands.hpp"
#include "cuda/forward/forward.hpp"
#include "cuda/forward/parameters.hpp"
#include "cuda/forward/prefix.hpp"
#include "cuda/forward/prepare.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/forward/transposed_values.hpp"
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

void add_sources(std::vector<Source>& to, const Problem& problem, const ForwardConfig& config,
                 bool merges = true) {
  if (transposes_values(config)) to.push_back(transpose_source(config));
  if (config.classified) to.push_back(classify_source(problem, config));
  to.push_back(forward_source(problem, config));
  if (config.splits && merges) to.push_back(combine_source(config));
}

// Adds what a kernel of 8-bit floats needs of the workspace: room for V laid out ahead, where it
// reads it so. A call whose tensors that kernel does not take converts all instead, so there is
// room for either.
void add_float8(Plan& plan, const ForwardConfig& config, Arch arch, KeySplits splits,
                std::string_view kernel) {
  core::Size workspace = plan.workspace_bytes;
  if (transposes_values(config)) {
    workspace = decoding_offset(workspace) + transposed_bytes(plan.problem, config);
  }
  const Copies copies = choose_copies(plan.problem, arch, kernel, kTensorsToCopy);
  if (copies.any()) {
    workspace = std::max(workspace, decoding_offset(workspace_bytes(
                                        over_copies(plan.problem, copies), arch, splits, kernel)) +
                                        copied_bytes(plan.problem, copies));
  }
  check_sizes(plan.problem, Phase::forward, workspace, plan.tasks);
  plan.workspace_bytes = workspace.value();
  plan.reasons.emplace_back(
      transposes_values(config)
          ? "a kernel ahead transposes V in the workspace, as products of 8-bit floats read it"
          : "tiles of V are transposed in shared memory, which is best where few tiles of queries "
            "read each");
}

// All but the state. keeps_parts: what merges the results takes in those over a shared prefix.
Plan plan_keys(const Problem& problem, const PlanOptions& options, bool keeps_parts) {
  const DeviceInfo& device = device_info(options.device.index);
  const Arch arch = supported_arch(device);
  const std::string kernel = forward_kernel_name(options.algorithm, options.kernel);
  KeySplits splits{1, options.batch_invariant};
  splits.keeps_parts = keeps_parts;
  ForwardConfig config = choose_forward(problem, arch, {}, splits, kernel);
  if (keeps_parts && config.kernel->runs_by_name_only()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} runs; accepted with a shared prefix are kernels that split keys "
                            "(problem {})",
                            config.kernel->name, core::echo(problem)));
  }
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
  if (split) {
    splits = splits.batch_invariant ? invariant_splits(problem, config, multiprocessors(device))
                                    : choose_splits(problem, config, multiprocessors(device));
    splits.keeps_parts = keeps_parts;
  }
  plan.num_splits = splits.count;
  config.splits = splits.apart();
  std::optional<DecodingPart> part;
  if (split && kernel.empty()) {
    part = decoding_part(problem, arch, multiprocessors(device), splits);
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
  } else if (splits.count > 1) {
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
        config.tiling.gathered_keys > 0
            ? "the mask reads buffers: a kernel ahead lists the blocks of 64 keys that each tile "
              "sees, of which two at a time are loaded, wherever they lie"
            : "the mask reads buffers: a kernel ahead says once which blocks of keys each tile "
              "sees");
  }
  if (config.kernel->takes_float8) add_float8(plan, config, arch, splits, kernel);
  return plan;
}

// Adds what converts Q, K and V to the plan over the copies.
void add_copy(Plan& plan, const Problem& problem, Copies copies) {
  plan.problem = problem;
  const core::Size workspace =
      decoding_offset(plan.workspace_bytes) + copied_bytes(problem, copies);
  check_sizes(problem, Phase::forward, workspace, plan.tasks);
  plan.workspace_bytes = workspace.value();
  if (copies.q) {
    plan.reasons.push_back(fmt::format("a kernel ahead converts Q ({}) to {} in the workspace",
                                       name(problem.type_q), name(problem.dtype)));
  }
  if (copies.keys) {
    plan.reasons.push_back(fmt::format(
        "a kernel ahead converts K ({}) and V ({}) to {} in the workspace, as many rows of Q read "
        "each key",
        name(problem.type_k), name(problem.type_v), name(problem.dtype)));
  }
}

// Adds what runs over the shared prefix to the plan of the own keys.
void add_prefix(Plan& plan, const Problem& problem, const core::PrefixParts& parts,
                const PlanOptions& options) {
  const DeviceInfo& device = device_info(options.device.index);
  const Arch arch = supported_arch(device);
  const std::string kernel = forward_kernel_name(options.algorithm, options.kernel);
  plan.problem = problem;
  const PrefixNeeds needs = prefix_needs(problem, device, kernel);
  const core::Size workspace = decoding_offset(plan.workspace_bytes) + needs.workspace;
  check_sizes(problem, Phase::forward, workspace, needs.blocks);
  plan.workspace_bytes = workspace.value();
  plan.reasons.push_back(core::prefix_reason(problem, parts));
  for (const PrefixKeys& part : prefix_keys(parts, arch, multiprocessors(device), kernel)) {
    const ForwardConfig config =
        choose_forward(part.problem, arch, part.tensors, part.splits, kernel);
    check_forward_parameters(part.problem, config);
    plan.reasons.push_back(fmt::format(
        "{} {} in {} parts, before the own keys, and what merges the parts of these takes them in",
        config.kernel->name,
        part.as_one ? fmt::format("runs all {} queries over these keys", part.problem.seqlen_q)
                    : fmt::format("runs each sequence over {} of its keys", part.problem.seqlen_k),
        part.splits.count));
  }
}

}  // namespace

Plan plan_forward(const Problem& problem, const PlanOptions& options) {
  if (problem.key_list > 0 && options.batch_invariant) {
    throw Error(ErrorCode::unsupported,
                fmt::format("batch_invariant is true and key_list is {}; accepted beside lists of "
                            "keys on the cuda backend is false (problem {})",
                            problem.key_list, core::echo(problem)));
  }
  const Arch arch = supported_arch(device_info(options.device.index));
  const std::string kernel = forward_kernel_name(options.algorithm, options.kernel);
  const Copies copies = choose_copies(problem, arch, kernel);
  const Problem read = over_copies(problem, copies);
  Plan plan;
  if (read.seqlen_prefix > 0) {
    const auto parts = core::prefix_parts(read, core::OwnLengths::seqused);
    plan = plan_keys(parts.own, options, true);
    add_prefix(plan, read, parts, options);
  } else {
    plan = plan_keys(read, options, false);
  }
  if (copies.any()) add_copy(plan, problem, copies);
  plan.state = std::shared_ptr<core::MadeFor>(std::make_shared<PlanState<ForwardRun>>(plan));
  return plan;
}

std::vector<Source> forward_sources(const Problem& problem, Arch arch, const PlanOptions& options,
                                    bool max_logit) {
  // A machine of a common size decides whether keys are split.
  constexpr int kMultiprocessors = 132;
  const std::string_view kernel = options.kernel;
  std::vector<Source> sources;
  if (const Copies copies = choose_copies(problem, arch, kernel); copies.any()) {
    sources = forward_sources(over_copies(problem, copies), arch, options, max_logit);
    sources.push_back(copy_source(problem, {}, copies));
    return sources;
  }
  Problem own = problem;
  KeySplits splits{1, options.batch_invariant};
  splits.keeps_parts = problem.seqlen_prefix > 0;
  int other_parts = 0, other_splits = 0;
  if (splits.keeps_parts) {
    const bool as_one = !(max_logit && problem.layout_q == Layout::packed);
    const auto parts = core::prefix_parts(problem, core::OwnLengths::problem, as_one);
    own = parts.own;
    for (PrefixKeys& part : prefix_keys(parts, arch, kMultiprocessors, kernel)) {
      part.tensors.max_logit = max_logit;
      add_sources(sources, part.problem,
                  choose_forward(part.problem, arch, part.tensors, part.splits, kernel), false);
      ++other_parts;
      other_splits += part.splits.count;
    }
  }
  // What merges the results of a choice.
  const auto merging = [&](ForwardConfig choice, std::int32_t count) {
    if (other_parts == 0) return choice;
    choice.other_parts = other_parts;
    choice.combine = choose_combine(own.head_dim_v, count + other_splits);
    return choice;
  };
  const ForwardTensors tensors{.max_logit = max_logit};
  ForwardConfig config = choose_forward(own, arch, tensors, splits, kernel);
  splits.count = splits.batch_invariant ? invariant_splits(own, config, kMultiprocessors).count
                                        : choose_splits(own, config, kMultiprocessors);
  if (splits.count > 1) config = choose_forward(own, arch, tensors, splits, kernel);
  add_sources(sources, own, merging(config, splits.count));
  if (!kernel.empty()) return sources;
  const auto part = decoding_part(own, arch, kMultiprocessors, splits);
  if (!part) return sources;
  // What a call takes whose sequences differ much in their numbers of queries.
  const ForwardTensors uneven{.max_logit = max_logit, .uneven_q = true};
  add_sources(sources, own,
              merging(rest_of(*part, own, arch, uneven, splits, kernel), splits.count));
  add_sources(sources, part->problem,
              merging(few_rows_of(*part, arch, uneven), part->splits.count));
  return sources;
}

}  // namespace attn::cuda
