#include "cuda/dropout_mask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/device/params.cuh"
#include "cuda/driver/device.hpp"
#include "cuda/jit/kernels_by_key.hpp"
#include "cuda/limits.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn::cuda {
namespace {

// All that the source depends on.
struct DropoutMaskConfig {
  bool rng_state;
  bool operator==(const DropoutMaskConfig&) const = default;
};

}  // namespace

Source dropout_mask_source(bool rng_state) {
  Source source;
  source.name = rng_state ? "dropout_mask rng_state" : "dropout_mask";
  source.entry = "attn_dropout_mask";
  source.text = fmt::format(
      "#include \"kernels/dropout_mask.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(attn::device::kDropoutMaskThreads)\n"
      "attn_dropout_mask(const __grid_constant__ attn::device::DropoutMaskParams p) {{\n"
      "  attn::device::dropout_mask<{}>(p);\n"
      "}}\n",
      rng_state);
  return source;
}

void dropout_mask(const Problem& problem, const Tensor& kept, const Tensor& rng_state,
                  const Context& context) {
  check_sizes(problem, Phase::forward, core::Size(0), core::Size(1));
  const ContextGuard guard(kept.device.index);
  device::DropoutMaskParams parameters{};
  parameters.batch = static_cast<int>(problem.batch);
  parameters.heads_q = static_cast<int>(problem.heads_q);
  parameters.seqlen_q = static_cast<int>(problem.seqlen_q);
  parameters.seqlen_k = static_cast<int>(problem.seqlen_k);
  parameters.kept = static_cast<unsigned char*>(kept.data);
  std::ranges::copy(kept.strides, parameters.kept_strides);
  fill_dropout(parameters, problem.dropout, rng_state);
  // Sixteen elements a thread; past 2^16 blocks, more than any GPU runs at once, threads go on.
  constexpr std::int64_t kElements = 16 * device::kDropoutMaskThreads;
  constexpr std::int64_t kMostBlocksAtOnce = 1 << 16;
  LaunchConfig launch;
  launch.block = device::kDropoutMaskThreads;
  launch.grid[0] = static_cast<unsigned>(
      std::clamp<std::int64_t>(kept.size() / kElements + 1, 1, kMostBlocksAtOnce));
  std::array<void*, 1> arguments{&parameters};
  const DropoutMaskConfig config{problem.dropout.rng_state};
  kernels_by_key<DropoutMaskConfig>()
      .get(kept.device.index, config, context,
           [&] { return dropout_mask_source(config.rng_state); })
      .launch(launch, context.stream, arguments.data());
}

}  // namespace attn::cuda
