#include "cuda/plan/choose_backward.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>

#include "attn/error.hpp"
#include "core/text/echo.hpp"
#include "cuda/kernel_parts.hpp"
#include "cuda/kernels/backward_one_pass/sizes.hpp"
#include "cuda/limits.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

// Names of the kernels of dQ, dK and dV that take parts of a tile shape, or do not, as a list in
// prose.
std::string names_of(bool take_parts) {
  std::vector<std::string_view> names;
  for (const BackwardKernel& kernel : backward_kernels()) {
    if (kernel.launches != nullptr && kernel.takes_parts == take_parts) {
      names.push_back(kernel.name);
    }
  }
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

BackwardRequest request_of(const BackwardKernel& kernel, const Problem& p,
                           const BackwardTensors& tensors, Gradient gradient,
                           const BackwardWish& wish) {
  return {.problem = p,
          .arch = wish.arch,
          .tensors = tensors,
          .gradient = gradient,
          .features = backward_features(p, tensors),
          .deterministic = wish.deterministic,
          .parts = kernel.takes_parts ? split_kernel_name(wish.kernel).shape : std::string_view{}};
}

// Why a kernel does not take the problem; empty when it does.
std::string obstacle(const BackwardKernel& kernel, const Problem& p, const BackwardTensors& tensors,
                     const BackwardWish& wish) {
  if (p.layout_k == Layout::paged) return "layout_k is paged; accepted are dense and packed";
  if (p.dtype == DType::f64) return "dtype is f64; accepted are f32, bf16 and f16";
  if (p.key_list > 0 && !kernel.takes_key_lists) {
    return fmt::format("key_list is {}; accepted by {} is 0, no lists", p.key_list, kernel.name);
  }
  if (p.key_list == 0 && kernel.takes_key_lists) {
    return fmt::format("key_list is 0; accepted by {} are lists of 1 entry and more", kernel.name);
  }
  if (p.key_list > 0 && wish.deterministic) {
    return fmt::format(
        "deterministic is true and key_list is {}; accepted beside lists of keys is "
        "false, as dK and dV are added in no fixed order",
        p.key_list);
  }
  const BackwardRequest request = request_of(kernel, p, tensors, Gradient::all, wish);
  BackwardChoice choice = kernel.choose(request);
  if (!choice.obstacle.empty() || !kernel.one_pass) return std::move(choice.obstacle);
  // Two bits for each block of 64 queries and tile of keys: the others keep nothing of the kind.
  const core::Size blocks = one_pass_blocks(p, config_of(kernel, request, std::move(choice)));
  if (blocks <= kMostBlocks) return {};
  return fmt::format("it has {} blocks of threads or tiles in a launch; accepted are up to {}",
                     core::to_string(blocks), kMostBlocks);
}

[[noreturn]] void refuse(const Problem& p, std::string_view why) {
  throw Error(ErrorCode::unsupported,
              fmt::format("no kernel of the cuda backend takes the backward pass of {}: {}",
                          core::echo(p), why));
}

}  // namespace

BackwardConfig config_of(const BackwardKernel& kernel, const BackwardRequest& request,
                         BackwardChoice choice) {
  return {.kernel = &kernel,
          .gradient = request.gradient,
          .features = request.features,
          .buffers = request.buffers,
          .tiling = choice.tiling,
          .shape = std::move(choice.shape),
          .algorithm = choice.skips_empty ? Algorithm::block_sparse : kernel.algorithm,
          .ordered = choice.ordered};
}

const BackwardKernel& choose_backward_kernel(const Problem& p, const BackwardTensors& tensors,
                                             const BackwardWish& wish) {
  std::string why;
  const KernelName named = split_kernel_name(wish.kernel);
  for (const BackwardKernel& kernel : backward_kernels()) {
    if (kernel.launches == nullptr) continue;
    if (named.kernel.empty() ? kernel.runs_by_name_only() : named.kernel != kernel.name) continue;
    if (!kernel.takes_parts && !named.shape.empty()) continue;
    if (named.kernel.empty() && kernel.takes_key_lists != (p.key_list > 0)) continue;
    why = obstacle(kernel, p, tensors, wish);
    if (why.empty()) return kernel;
  }
  if (!why.empty()) refuse(p, why);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("kernel is '{}'; accepted by backward are {}, alone or with parts of a "
                          "tile shape, {}",
                          core::echo(wish.kernel), names_of(true), names_of(false)));
}

BackwardConfig backward_config(const BackwardKernel& kernel, const Problem& p,
                               const BackwardTensors& tensors, Gradient gradient,
                               const BackwardWish& wish) {
  const BackwardRequest request = request_of(kernel, p, tensors, gradient, wish);
  BackwardChoice choice = kernel.choose(request);
  if (!choice.obstacle.empty()) refuse(p, choice.obstacle);
  return config_of(kernel, request, std::move(choice));
}

std::vector<BackwardConfig> backward_launches(const BackwardKernel& kernel, const Problem& p,
                                              const BackwardTensors& tensors,
                                              const AskedGradients& asked,
                                              const BackwardWish& wish) {
  std::vector<BackwardConfig> launches;
  for (const Gradient gradient : kernel.launches(p, asked)) {
    launches.push_back(backward_config(kernel, p, tensors, gradient, wish));
  }
  return launches;
}

}  // namespace attn::cuda
