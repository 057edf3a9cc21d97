#include "cuda/forward/prepare.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/validate/plan_field.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/forward/parameters.hpp"
#include "cuda/forward/prefix.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/forward/transposed_values.hpp"
#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/limits.hpp"
#include "cuda/plan/choose_forward.hpp"
#include "cuda/plan/decoding_part.hpp"
#include "cuda/plan/forward_kernel_name.hpp"
#include "cuda/plan/splits.hpp"

namespace attn::cuda {
namespace {

// One warp a word, or where blocks of keys are gathered, one block of threads a list.
LaunchConfig classify_launch(std::int64_t words, const Tiling& tiling,
                             const device::ForwardParams& parameters) {
  constexpr unsigned kGatherThreads = 256, kGatherSharedBytes = 64;  // gather_key_blocks.cuh
  LaunchConfig launch;
  const bool gathers = tiling.gathered_keys > 0;
  launch.grid[0] = words / (gathers ? parameters.key_windows : tiling.parts);
  launch.block = gathers ? kGatherThreads : static_cast<unsigned>(32 * tiling.parts);
  launch.shared_bytes = gathers ? kGatherSharedBytes : 0;
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

KeySplits key_splits(const Plan& plan) {
  KeySplits splits{plan.num_splits, plan.batch_invariant};
  splits.keeps_parts = plan.problem.seqlen_prefix > 0;
  return splits;
}

// Kernels and launches of a pass; what has to be compiled is added to `requests`. merges: another
// pass does not merge its results.
void fill_pass(ForwardPass& pass, const Problem& p, const ForwardConfig& config, KeySplits splits,
               const ForwardSignature& signature, const DeviceInfo& device,
               std::vector<KernelRequest>& requests, bool merges = true) {
  const bool hopper = device.arch >= 90;
  pass.config = config;
  pass.parameters = forward_parameters(p, config, splits);
  const std::int64_t words = num_key_words(p, config).value();
  if (words > 0) {
    requests.push_back({classify_source(p, config, signature.printed), &pass.classify});
    pass.classify_launch = classify_launch(words, config.tiling, pass.parameters);
    pass.forward_launch.programmatic_dependent_launch = hopper;
  }
  // Loads of buffers are not ordered behind the wait for what comes before
  // (device/expr/buffer.cuh).
  const auto reads = [](const expr::Expr& e) { return !e.empty() && !expr::buffers(e).empty(); };
  const bool reads_buffers = reads(p.mask) || reads(p.score);
  // The kernel that lays V out begins when all before it has ended.
  if (transposes_values(config) || (config.kernel->begins_early && !reads_buffers)) {
    pass.forward_launch.programmatic_dependent_launch = hopper;
  }
  requests.push_back({forward_source(p, config, signature.printed), &pass.forward});
  if (config.splits && merges) {
    requests.push_back({combine_source(config), &pass.combine});
    pass.combine_launch = combine_launch(p, config.combine, hopper);
  }
  const std::int64_t tiles = num_tiles(p, config, splits.count).value();
  pass.forward_launch.grid[0] = forward_blocks(config, tiles, device.sm_count);
  pass.forward_launch.block = static_cast<unsigned>(config.tiling.threads);
  pass.forward_launch.shared_bytes = static_cast<unsigned>(config.tiling.shared_bytes);
  pass.deals_tiles = stays(config) && tiles > pass.forward_launch.grid[0];
}

// own: the problem of the plan, or that over its own keys.
std::optional<DecodingPart> decoding_part_of(const Plan& plan, const Problem& own, Arch arch,
                                             const DeviceInfo& device) {
  if (plan.algorithm != Algorithm::flash_decoding || !plan.kernel.empty()) return {};
  return decoding_part(own, arch, multiprocessors(device), key_splits(plan));
}

// Bytes of the passes over the own keys, behind which those of a prefix have theirs.
core::Size own_workspace(const Plan& plan, const Problem& own, Arch arch, std::string_view kernel) {
  const core::Size needed = workspace_bytes(own, arch, key_splits(plan), kernel);
  const auto part = decoding_part_of(plan, own, arch, device_info(plan.device.index));
  return part ? with_decoding(needed, *part) : needed;
}

// Bytes of all passes, behind which copies are. read: the problem of the plan over these.
core::Size passes_workspace(const Plan& plan, const Problem& read, const Problem& own, Arch arch,
                            std::string_view kernel) {
  const core::Size needed = own_workspace(plan, own, arch, kernel);
  if (read.seqlen_prefix == 0) return needed;
  return decoding_offset(needed) +
         prefix_needs(read, device_info(plan.device.index), kernel).workspace;
}

// Holds a plan that was changed by hand to what it takes now.
void check_plan(const Plan& plan, const Problem& read, const Problem& own, Copies copies, Arch arch,
                std::string_view kernel) {
  core::check_plan_range(plan, "num_splits", plan.num_splits, 1, kMostSplits);
  const DeviceInfo& device = device_info(plan.device.index);
  core::Size needed = passes_workspace(plan, read, own, arch, kernel);
  core::Size blocks = most_blocks(own, arch, key_splits(plan), kernel);
  if (const auto part = decoding_part_of(plan, own, arch, device)) {
    blocks = std::max(blocks, most_blocks(*part));
  }
  if (read.seqlen_prefix > 0) {
    blocks = std::max(blocks, prefix_needs(read, device, kernel).blocks);
  }
  if (copies.any()) {
    needed = decoding_offset(needed) + copied_bytes(plan.problem, copies);
  } else if (const ForwardConfig config = choose_forward(own, arch, {}, key_splits(plan), kernel);
             transposes_values(config)) {
    needed = decoding_offset(needed) + transposed_bytes(own, config);
  }
  check_sizes(plan.problem, Phase::forward, needed, blocks);
  core::check_plan_workspace(plan, needed.value());
}

ExpressionPack pack_of(const Problem& p) {
  return expression_pack(p.mask, score_expression(p), p.scale(), precise_math(p.dtype));
}

// What the text of a pass over the prefix says of buffers: of the call's as another pass does, and
// of own lengths of int64 that they lie 8 bytes apart (prefix_inputs).
ForwardSignature of_prefix(const ForwardSignature& call) {
  ForwardSignature part{.printed = call.printed};
  const PrintedTensor apart{.dtype = DType::i32};
  if ((call.tensors.wide & device::kWideSequsedK) != 0) {
    part.printed.emplace_back(core::kOwnLengths, apart);
  }
  if ((call.tensors.wide & device::kWideCuSeqlensK) != 0) {
    part.printed.emplace_back(core::kOwnStarts, apart);
  }
  return part;
}

// The passes over the prefix; `offset`: bytes of the workspace before theirs.
void add_prefix(ForwardRun& run, const Plan& plan, const DeviceInfo& device,
                std::string_view kernel, core::Size offset, std::vector<KernelRequest>& requests) {
  const Arch arch = arch_of_capability(device.arch);
  std::vector<PrefixKeys> all = prefix_keys(run.parts, arch, multiprocessors(device),
                                            forward_kernel_name(plan.algorithm, plan.kernel));
  run.prefix.reserve(all.size());  // requests point into it
  for (PrefixKeys& keys : all) {
    const core::Size bytes = workspace_bytes(keys.problem, arch, keys.splits, kernel);
    const bool has_rows = keys.as_one && plan.problem.layout_q == Layout::packed;
    const std::int64_t most = keys.problem.seqlen_q * keys.splits.count;
    if (has_rows) keys.problem.seqlen_q = run.signature.prefix.rows;
    PrefixPass& to = run.prefix.emplace_back();
    to.problem = std::move(keys.problem);
    to.as_one = keys.as_one;
    to.expressions = pack_of(to.problem);
    ForwardTensors tensors = to.as_one ? run.signature.prefix.shared : run.signature.prefix.rest;
    tensors.mapped = run.signature.tensors.mapped;
    offset = decoding_offset(offset);
    to.pass.workspace_offset = offset.value();
    offset = offset + bytes;
    const ForwardConfig config = choose_forward(to.problem, arch, tensors, keys.splits, kernel);
    if (has_rows && to.problem.seqlen_q > 0) {
      // Fewer rows than there may be have more splits, as far as the plan's workspace goes.
      const std::int32_t wanted = choose_splits(to.problem, config, multiprocessors(device));
      keys.splits.count =
          static_cast<std::int32_t>(std::min<std::int64_t>(wanted, most / to.problem.seqlen_q));
    }
    fill_pass(to.pass, to.problem, config, keys.splits, of_prefix(run.signature), device, requests,
              false);
  }
}

// What merges the results of `config` merges those of the prefix too.
void merge_prefix(ForwardConfig& config, KeySplits splits, const ForwardRun& run) {
  config.other_parts = static_cast<int>(run.prefix.size());
  std::int32_t count = splits.count;
  for (const PrefixPass& part : run.prefix) count += part.pass.parameters.num_splits;
  if (config.other_parts > 0) config.combine = choose_combine(run.problem.head_dim_v, count);
}

}  // namespace

std::int64_t forward_blocks(const ForwardConfig& config, std::int64_t tiles, int sm_count) {
  if (!stays(config)) return tiles;
  return std::min<std::int64_t>(tiles, std::int64_t{sm_count} * config.tiling.blocks_at_once);
}

ForwardRun prepare_forward(const Plan& plan, const ForwardSignature& signature,
                           const Context& context) {
  ForwardTensors tensors = signature.tensors;
  const DeviceInfo& device = device_info(plan.device.index);
  const Arch arch = arch_of_capability(device.arch);
  const std::string named = forward_kernel_name(plan.algorithm, plan.kernel);
  // A kernel that needs tensor maps gives way, also one that was named, to the fastest without.
  const std::string_view kernel = tensors.mapped ? std::string_view(named) : std::string_view();
  const KeySplits splits = key_splits(plan);
  ForwardRun run{.signature = signature,
                 .problem = plan.problem,
                 .copies = choose_copies(plan.problem, arch, named, tensors)};
  const Problem read = over_copies(plan.problem, run.copies);
  run.problem = read;
  if (splits.keeps_parts) {
    run.parts = prefix_parts_of(read, signature);
    run.problem = run.parts.own;
  }
  const Problem& p = run.problem;
  check_plan(plan, read, p, run.copies, arch, named);
  run.expressions = pack_of(p);
  std::optional<DecodingPart> part;
  if (tensors.uneven_q && tensors.aligned) part = decoding_part_of(plan, p, arch, device);
  tensors.uneven_q = part.has_value();
  std::vector<KernelRequest> requests;
  if (run.copies.any()) {
    run.copies_offset = decoding_offset(passes_workspace(plan, read, p, arch, named)).value();
    requests.push_back({copy_source(plan.problem, tensors, run.copies), &run.copy});
  }
  if (splits.keeps_parts) {
    add_prefix(run, plan, device, kernel, own_workspace(plan, p, arch, named), requests);
  }
  ForwardConfig config = part ? rest_of(*part, p, arch, tensors, splits, kernel)
                              : choose_forward(p, arch, tensors, splits, kernel);
  merge_prefix(config, splits, run);
  if (transposes_values(config)) {
    run.transposed_offset = decoding_offset(passes_workspace(plan, read, p, arch, named)).value();
    requests.push_back({transpose_source(config), &run.transpose});
  }
  fill_pass(run.pass, p, config, splits, signature, device, requests);
  if (part) {
    ForwardConfig few = few_rows_of(*part, arch, tensors);
    merge_prefix(few, part->splits, run);
    ForwardPass& pass = run.decoding.emplace();
    pass.workspace_offset = decoding_offset(workspace_bytes(p, arch, splits, named)).value();
    fill_pass(pass, part->problem, few, part->splits, signature, device, requests);
  }
  run.places = RowPlaces::of(plan, requests);
  get_kernels(plan.device.index, requests, context);
  return run;
}

}  // namespace attn::cuda
