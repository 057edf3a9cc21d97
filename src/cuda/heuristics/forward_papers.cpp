#include "cuda/heuristics/forward_papers.hpp"

#include <algorithm>

#include "cuda/heuristics/forward_portable.hpp"
#include "cuda/kernel_parts.hpp"

namespace attn::cuda {
namespace {

constexpr int kMostStages = 8;  // B_c of 512
// Shared memory of a block of threads on the smallest of the GPUs this runs on; a B_c that the
// caller names may take more.
constexpr std::int64_t kSharedBytes = 99 << 10;
constexpr std::int64_t kMostSharedBytes = 227 << 10;  // of a block, on 9.0: the most of all

bool set_part(ForwardConfig& config, std::string_view part) {
  if (part == "sparse") {
    config.skips_empty = true;
  } else if (const int n = number_after(part, "n");
             n > 0 && n % config.block_n == 0 && n / config.block_n <= kMostStages) {
    config.stages = n / config.block_n;
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool shape_of_papers(ForwardConfig& config, const Problem& p, std::string_view parts) {
  const ForwardKernel kernel = config.kernel;
  config.kernel = ForwardKernel::simt;  // whose arithmetic they have
  shape_portable(config, p, {});
  config.kernel = kernel;
  config.group = 1;           // the papers know no GQA
  config.classified = false;  // masks are looked at tile by tile
  if (kernel == ForwardKernel::standard) {
    config.reason = "standard attention: S and P go through memory";
    return true;
  }
  config.reason = "K, V outside, Q inside; O, l and m go through memory";
  config.stages = kMostStages;
  while (config.stages > 1 && config.shared_bytes() > kSharedBytes) --config.stages;
  if (!parts.empty()) {
    set_parts(name(kernel), parts, "n64 to n512 (keys of a block, a multiple of 64) and sparse",
              [&](std::string_view part) { return set_part(config, part); });
  }
  return config.stages > 1 || config.shared_bytes() <= kMostSharedBytes;
}

}  // namespace attn::cuda
