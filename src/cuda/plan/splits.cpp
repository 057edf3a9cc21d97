#include "cuda/plan/splits.hpp"

#include <algorithm>

#include "core/ceil_div.hpp"
#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/plan/choose_forward.hpp"

namespace attn::cuda {

using core::ceil_div;

// A kernel that only reads gets 0.91 of what the clock and the width of the bus come to: measured,
// 3.05 TB/s on an H100 and 4.5 on an H200.
Multiprocessors multiprocessors(const DeviceInfo& device) {
  if (device.memory_clock_khz == 0 || device.memory_bus_bits == 0) return device.sm_count;
  constexpr double kShare = 0.905;
  const double bytes_per_ns = 2e-6 * device.memory_clock_khz * device.memory_bus_bits / 8;
  return {device.sm_count, kShare * bytes_per_ns / device.sm_count};
}

std::int32_t choose_splits(const Problem& problem, const ForwardConfig& config,
                           const Multiprocessors& device) {
  const Problem p = one_query_each(problem);
  if (config.kernel->runs_by_name_only()) return 1;
  if (config.kernel->choose_splits != nullptr) {
    return config.kernel->choose_splits(p, config, device);
  }
  const int sm_count = device.count;
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

KeySplits invariant_splits(const Problem& problem, const ForwardConfig& config,
                           const Multiprocessors& device) {
  std::int32_t count = choose_splits(alone(problem), config, device);
  // A kernel that splits does so for every table, also for one of few keys.
  if (config.kernel->takes_pieces) count = std::max(count, 2);
  return {count, true};
}

std::int64_t least_blocks(const Problem& p, const ForwardConfig& config, KeySplits splits) {
  const std::int64_t keys = config.tiling.keys;
  if (!splits.batch_invariant) {
    // Sequences that are much shorter than the longest may be are cut as well.
    constexpr std::int64_t kPiece = 2048;
    const std::int64_t longest = p.key_list > 0 ? p.key_list : p.seqlen_k;
    const std::int64_t of_longest = ceil_div(ceil_div(longest, keys), splits.count);
    return std::max<std::int64_t>(
        1, config.by_length ? std::min(of_longest, kPiece / keys) : of_longest);
  }
  // A piece has to be worth its start, its end and the merging of its results, also in a batch that
  // would need no pieces at all.
  constexpr std::int64_t kOfFewRows = 512, kOfMany = 2048;
  return std::max<std::int64_t>(1, (config.kernel->takes_pieces ? kOfFewRows : kOfMany) / keys);
}

}  // namespace attn::cuda
