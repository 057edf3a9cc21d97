#include "cuda/heuristics/forward_tiles.hpp"

#include <algorithm>

namespace attn::cuda {
namespace {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

int packed_group(const Problem& p, int block_m, int rows) {
  const std::int64_t group = p.heads_q / p.heads_k;
  if (group == 1 || rows % group != 0) return 1;
  const std::int64_t apart = group * divide_up(p.seqlen_q, block_m);
  const std::int64_t together = divide_up(p.seqlen_q * group, block_m);
  return 10 * together <= 9 * apart ? static_cast<int>(group) : 1;
}

core::Size m_blocks(const Problem& p, const ForwardConfig& config) {
  return core::divide_up(core::Size(p.seqlen_q) * config.group, config.block_m);
}

core::Size num_tiles(const Problem& p, const ForwardConfig& config, std::int32_t num_splits) {
  if (config.kernel == ForwardKernel::flash_attention) return core::Size(p.heads_q) * p.batch;
  return m_blocks(p, config) * (p.heads_q / config.group) * p.batch * num_splits;
}

std::int32_t choose_splits(const Problem& p, const ForwardConfig& config, int sm_count) {
  if (runs_by_name_only(config.kernel)) return 1;
  const core::Size all = num_tiles(p, config, 1);
  const std::int64_t tiles = all.value();
  const std::int64_t blocks = divide_up(p.seqlen_k, config.block_n);
  // A split reads at least two blocks; partial results cost memory traffic too, so the machine is
  // split for only where it would stay a fifth empty.
  if (tiles == 0 || all * 10 >= core::Size(8) * sm_count || blocks < 4) return 1;
  const std::int64_t most =
      std::min<std::int64_t>({kMostSplits, blocks / 2, divide_up(2 * sm_count, tiles)});
  std::int64_t best = 1;
  double best_share = 0;
  for (std::int64_t splits = 1; splits <= most; ++splits) {
    // Rounds of the machine times blocks of each, against the work there is.
    const std::int64_t rounds = divide_up(tiles * splits, sm_count);
    const double share = static_cast<double>(tiles * blocks) /
                         static_cast<double>(rounds * divide_up(blocks, splits) * sm_count);
    if (share > best_share * 1.05) {
      best = splits;
      best_share = share;
    }
  }
  return static_cast<std::int32_t>(best);
}

int heads_at_once(const Problem& p, const ForwardConfig& config) {
  if (p.mask.empty()) return 1;
  const std::int64_t pairs =
      std::max<std::int64_t>(1, p.batch * p.heads_q / std::int64_t{config.group});
  // The first tile of a head waits for K and V from memory. Where a head has few tiles, and the
  // first of many heads come together, all multiprocessors wait at a time; so those of half of them
  // come together, beside later tiles of other heads. Head size 128, causal, 512 keys, TFLOP/s: 512
  // heads 283, 128 (the rule below) 315, 33 324, 16 333; 1024 keys, 8 heads 487, 64 479.
  // Other masks and fewer tiles a head follow by the same reason and were not timed.
  constexpr std::int64_t kFewTiles = 8, kTilesTogether = 64;
  const std::int64_t tiles = m_blocks(p, config).value();
  const int head_dim = static_cast<int>(std::max(p.head_dim, p.head_dim_v));
  const bool measured = config.kernel == ForwardKernel::sm90 && config.block_m == 128 &&
                        head_dim > 64 && head_dim <= 128;
  if (measured && tiles > 0 && tiles <= kFewTiles) {
    return static_cast<int>(std::min(pairs, kTilesTogether / tiles));
  }
  // Half of the 50 to 60 MB of L2 of the GPUs this runs on; a smaller one only costs traffic.
  constexpr std::int64_t kBytes = 32 << 20;
  const std::int64_t pair = std::max<std::int64_t>(
      1, p.seqlen_k * (p.head_dim + p.head_dim_v) * static_cast<std::int64_t>(size_of(p.dtype)));
  return static_cast<int>(std::clamp<std::int64_t>(kBytes / pair, 1, pairs));
}

}  // namespace attn::cuda
