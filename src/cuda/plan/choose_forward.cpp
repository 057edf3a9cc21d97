#include "cuda/plan/choose_forward.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "core/text/echo.hpp"
#include "cuda/kernel_parts.hpp"

namespace attn::cuda {
namespace {

constexpr std::int64_t kSharedBytes = 227 << 10;  // of a block, on 9.0: the most of all

// Names of the kernels of which `is` is true, as a list in prose.
template <class Is>
std::string names_of(const Is& is) {
  std::vector<std::string_view> names;
  for (const ForwardKernel& kernel : forward_kernels()) {
    if (is(kernel)) names.push_back(kernel.name);
  }
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

// The kernel with the shape that it chose, or why it does not take the problem.
std::pair<ForwardConfig, std::string> configured(const ForwardKernel& kernel,
                                                 const ForwardRequest& request, KeySplits splits) {
  const Problem& p = request.problem;
  if (p.dtype == DType::f64) return {{}, "dtype is f64; accepted are f32, bf16 and f16"};
  if (!takes_types(kernel, p)) {
    return {{},
            fmt::format("type_q is {}, type_k is {} and type_v is {}; accepted by {} is as_q",
                        name(p.type_q), name(p.type_k), name(p.type_v), kernel.name)};
  }
  if (kernel.reads_maps && !request.tensors.mapped) {
    return {ForwardConfig{}, "the driver makes no tensor maps of tensors with these strides"};
  }
  if (p.key_list > 0 && !kernel.takes_key_lists) {
    return {{},
            fmt::format("key_list is {}; accepted by {} is 0, no lists", p.key_list, kernel.name)};
  }
  ForwardChoice choice = kernel.choose(request);
  if (!choice.obstacle.empty()) return {ForwardConfig{}, std::move(choice.obstacle)};
  ForwardConfig config{.kernel = &kernel,
                       .features = request.features,
                       .tiling = choice.tiling,
                       .shape = std::move(choice.shape),
                       .algorithm = choice.skips_empty ? Algorithm::block_sparse : kernel.algorithm,
                       .splits = request.splits,
                       .keeps_parts = splits.keeps_parts};
  config.by_length = config.splits && kernel.takes_pieces && has_own_lengths(config.features);
  config.fills_grid = config.by_length;
  if (config.splits) config.combine = choose_combine(p.head_dim_v, splits.count);
  // The papers' kernels look at masks tile by tile.
  config.classified = config.features.mask_scans_buffers && !kernel.runs_by_name_only();
  return {std::move(config), std::string()};
}

ForwardRequest request_of(const Problem& p, Arch arch, const ForwardTensors& tensors,
                          KeySplits splits, std::string_view parts) {
  return {p, arch, tensors, forward_features(p, tensors), splits.apart(), parts};
}

// What PlanOptions::batch_invariant makes of a choice: pieces follow from a sequence's own length.
ForwardConfig invariant(ForwardConfig config) {
  config.by_length = config.splits;
  config.fills_grid = false;
  return config;
}

// The choice for one problem; errors name another.
ForwardConfig choose_for(const Problem& problem, const Problem& named_problem, Arch arch,
                         const ForwardTensors& tensors, KeySplits splits, std::string_view forced) {
  const KernelName named = split_kernel_name(forced);
  const ForwardKernel* const only = find_forward_kernel(named.kernel);
  if (!named.shape.empty() && (only == nullptr || !only->takes_parts)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("kernel is '{}'; only {} take parts of a tile shape", core::echo(forced),
                    names_of([](const ForwardKernel& kernel) { return kernel.takes_parts; })));
  }
  if (!forced.empty() && only == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is '{}'; accepted are {}", core::echo(forced),
                            names_of([](const ForwardKernel&) { return true; })));
  }
  const ForwardRequest request = request_of(problem, arch, tensors, splits, named.shape);
  std::string why;
  for (const ForwardKernel& kernel : forward_kernels()) {
    if (only != nullptr ? &kernel != only : kernel.runs_by_name_only()) continue;
    auto [config, obstacle] = configured(kernel, request, splits);
    why = std::move(obstacle);
    if (!why.empty()) continue;
    if (const std::int64_t bytes = config.tiling.shared_bytes; bytes > kSharedBytes) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("kernel is '{}': its tiles take {} bytes of shared memory; accepted "
                              "are at most {}",
                              core::echo(forced), bytes, kSharedBytes));
    }
    return std::move(config);
  }
  throw Error(ErrorCode::unsupported, fmt::format("no kernel of the cuda backend takes {}: {}",
                                                  core::echo(named_problem), why));
}

}  // namespace

bool takes_types(const ForwardKernel& kernel, const Problem& p) {
  if (kernel.takes_float8 && core::is_float8(p)) return true;
  return !core::has_own_type_q(p) && (!core::has_own_types(p) || kernel.takes_cache_types);
}

Problem alone(const Problem& problem) {
  constexpr std::int64_t kKeys = 8192;
  Problem one = problem;
  one.batch = 1;
  one.seqlen_k = kKeys;
  return one;
}

ForwardConfig choose_forward(const Problem& problem, Arch arch, const ForwardTensors& tensors,
                             KeySplits splits, std::string_view forced) {
  if (!splits.batch_invariant) return choose_for(problem, problem, arch, tensors, splits, forced);
  return invariant(choose_for(alone(problem), problem, arch, tensors, splits.count, forced));
}

std::vector<ForwardConfig> possible_forwards(const Problem& p, Arch arch, KeySplits splits,
                                             std::string_view forced) {
  if (splits.batch_invariant) {
    std::vector<ForwardConfig> all = possible_forwards(alone(p), arch, splits.count, forced);
    std::ranges::transform(all, all.begin(), invariant);
    return all;
  }
  ForwardTensors most{.seqused_q = true, .seqused_k = true};
  const auto [named, parts] = split_kernel_name(forced);
  const ForwardKernel* const only = find_forward_kernel(named);
  if (only != nullptr && only->runs_by_name_only()) {
    return {choose_forward(p, arch, most, splits, forced)};
  }
  std::vector<ForwardConfig> all;
  for (const bool max_logit : {false, true}) {
    most.max_logit = max_logit;
    const ForwardRequest request = request_of(p, arch, most, splits, parts);
    for (const ForwardKernel& kernel : forward_kernels()) {
      if (kernel.runs_by_name_only() || (max_logit && !kernel.tiles_of_max_logit)) continue;
      auto [config, why] = configured(kernel, request, splits);
      if (why.empty()) all.push_back(std::move(config));
    }
  }
  return all;
}

}  // namespace attn::cuda
