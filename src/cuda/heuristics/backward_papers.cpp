#include "cuda/heuristics/backward_papers.hpp"

#include "cuda/kernel_parts.hpp"
#include "cuda/kernels/shared_memory.hpp"

namespace attn::cuda {
namespace {

constexpr int kMostKeys = 64, kLeastKeys = 16;  // a thread holds 8 x 4 scores at most
constexpr int kWarps = 4;

void set_block(BackwardConfig& config, int keys) { config.block_m = config.block_n = keys; }

bool set_part(BackwardConfig& config, std::string_view part) {
  if (part == kSkipsEmpty) {
    config.skips_empty = true;
  } else if (const int n = number_after(part, "n"); n == 16 || n == 32 || n == 64) {
    set_block(config, n);
  } else {
    return false;
  }
  return true;
}

}  // namespace

void set_backward_flash_shape(BackwardConfig& config, Arch arch, std::string_view parts) {
  config.warps = kWarps;
  config.stages = 1;
  config.reason = "K, V outside, Q inside; dQ goes through memory";
  set_block(config, kMostKeys);
  while (config.block_m > kLeastKeys && config.shared_bytes() > most_shared_bytes(arch)) {
    set_block(config, config.block_m / 2);
  }
  if (parts.empty()) return;
  set_parts(name(config.kernel), parts, "n16, n32 and n64 (keys and queries of a block) and sparse",
            [&](std::string_view part) { return set_part(config, part); });
}

}  // namespace attn::cuda
