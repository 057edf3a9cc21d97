#include "cuda/plan/forward_kernel_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "core/text/echo.hpp"
#include "cuda/kernel_parts.hpp"
#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {
namespace {

std::string_view forward_kernel_of(Algorithm algorithm) {
  return std::ranges::find(forward_kernels(), algorithm, &ForwardKernel::algorithm)->name;
}

bool forward_runs_by_name_only(std::string_view name) {
  const ForwardKernel* const kernel = find_forward_kernel(name);
  return kernel != nullptr && kernel->runs_by_name_only();
}

// "a, b or c": those that need not be asked for by name.
std::string others() {
  std::vector<std::string_view> names;
  for (const ForwardKernel& kernel : forward_kernels()) {
    if (!kernel.runs_by_name_only()) names.push_back(kernel.name);
  }
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} or {}", fmt::join(names, ", "), last);
}

}  // namespace

std::string forward_kernel_name(Algorithm algorithm, std::string_view kernel) {
  const KernelName named = split_kernel_name(kernel);
  std::string base;
  std::string_view shape;
  switch (algorithm) {
    case Algorithm::flash_attention:
    case Algorithm::standard:
      base = forward_kernel_of(algorithm);
      break;
    case Algorithm::block_sparse:
      base = forward_kernel_of(Algorithm::flash_attention);
      shape = "sparse";
      break;
    case Algorithm::flash_attention_2:
    case Algorithm::flash_decoding:
    case Algorithm::memory_efficient:
      base = others();
      break;
    case Algorithm::automatic:
      return std::string(kernel);
  }
  const bool by_name_only = forward_runs_by_name_only(base);
  if (!kernel.empty() &&
      (by_name_only ? named.kernel != base : forward_runs_by_name_only(named.kernel))) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is '{}' and algorithm is {}; accepted with it is {}",
                            core::echo(kernel), name(algorithm), base));
  }
  if (!by_name_only) return std::string(kernel);
  std::string result = base;
  for (const std::string_view part : {shape, named.shape}) {
    if (part.empty() || result.ends_with(part)) continue;
    result += result == base ? '/' : '_';
    result += part;
  }
  return result;
}

}  // namespace attn::cuda
