#include "cuda/plan/backward_kernel_name.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attn/error.hpp"
#include "core/text/echo.hpp"
#include "cuda/kernel_parts.hpp"
#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {
namespace {

std::string_view backward_kernel_of(Algorithm algorithm) {
  return std::ranges::find(backward_kernels(), algorithm, &BackwardKernel::algorithm)->name;
}

bool backward_runs_by_name_only(std::string_view name) {
  const BackwardKernel* const kernel = find_backward_kernel(name);
  return kernel != nullptr && kernel->runs_by_name_only();
}

}  // namespace

std::string backward_kernel_name(Algorithm algorithm, std::string_view kernel) {
  const std::string_view flash = backward_kernel_of(Algorithm::flash_attention);
  const std::string_view standard = backward_kernel_of(Algorithm::standard);
  const KernelName named = split_kernel_name(kernel);
  switch (algorithm) {
    case Algorithm::automatic:
      return std::string(kernel);
    case Algorithm::flash_attention_2:
      if (!backward_runs_by_name_only(named.kernel)) return std::string(kernel);
      break;
    case Algorithm::flash_attention:
      if (kernel.empty()) return std::string(flash);
      if (named.kernel == flash && !named.shape.ends_with(kSkipsEmpty)) return std::string(kernel);
      break;
    case Algorithm::block_sparse:
      if (named.kernel != flash && !kernel.empty()) break;
      if (named.shape.ends_with(kSkipsEmpty)) return std::string(kernel);
      return fmt::format("{}/{}{}{}", flash, named.shape, named.shape.empty() ? "" : "_",
                         kSkipsEmpty);
    case Algorithm::standard:
      if (kernel.empty() || kernel == standard) return std::string(standard);
      break;
    case Algorithm::flash_decoding:
    case Algorithm::memory_efficient:
      throw Error(ErrorCode::unsupported,
                  fmt::format("algorithm is {}; accepted by backward on the cuda backend are "
                              "flash_attention_2, flash_attention, block_sparse and standard",
                              name(algorithm)));
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("kernel is '{}' and algorithm is {}; accepted are {} with flash_attention, "
                  "with '{}' among its parts with block_sparse, {} with standard, and the other "
                  "kernels with flash_attention_2",
                  core::echo(kernel), name(algorithm), flash, kSkipsEmpty, standard));
}

}  // namespace attn::cuda
