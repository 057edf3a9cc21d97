#include "cuda/plan/splits.hpp"

#include <algorithm>

#include "core/ceil_div.hpp"
#include "cuda/kernels/forward_tiles.hpp"

namespace attn::cuda {

using core::ceil_div;

std::int32_t choose_splits(const Problem& p, const ForwardConfig& config, int sm_count) {
  if (config.kernel->runs_by_name_only()) return 1;
  if (config.kernel->choose_splits != nullptr) {
    return config.kernel->choose_splits(p, config, sm_count);
  }
  const core::Size all = num_tiles(p, config, 1);
  const std::int64_t tiles = all.value();
  const std::int64_t blocks = ceil_div(p.seqlen_k, config.tiling.keys);
  // A split reads at least two blocks; partial results cost memory traffic too, so the machine is
  // split for only where it would stay a fifth empty.
  if (tiles == 0 || all * 10 >= core::Size(8) * sm_count || blocks < 4) return 1;
  const std::int64_t most =
      std::min<std::int64_t>({kMostSplits, blocks / 2, ceil_div(2 * sm_count, tiles)});
  std::int64_t best = 1;
  double best_share = 0;
  for (std::int64_t splits = 1; splits <= most; ++splits) {
    // Rounds of the machine times blocks of each, against the work there is.
    const std::int64_t rounds = ceil_div(tiles * splits, sm_count);
    const double share = static_cast<double>(tiles * blocks) /
                         static_cast<double>(rounds * ceil_div(blocks, splits) * sm_count);
    if (share > best_share * 1.05) {
      best = splits;
      best_share = share;
    }
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace attn::cuda
