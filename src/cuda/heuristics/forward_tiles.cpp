#include "cuda/heuristics/forward_tiles.hpp"

#include <algorithm>
#include <cmath>

#include "cuda/heuristics/forward_few_rows.hpp"

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

namespace {

// Splits of forward_sm80_few_rows: the fewest nanoseconds of a model of the call. Blocks of threads
// share the memory's bandwidth, and none reads faster than the copies that it has on their way
// return. Each round of them has a start and an end; merging is another launch, and partial results
// are written and read. Measured on an H100, with 8 to 32 rows and 1024 to 131072 keys.
//
// Where sequences have lengths of their own, which are not known here, the longest would end alone:
// from 4096 keys on they are cut into pieces of 2048, as far as blocks of threads that find nothing
// to do stay few. Up to 16384 keys in pages, 32 sequences: 403 us in 8 pieces, 415 in one.
std::int32_t choose_few_rows_splits(const Problem& p, const ForwardConfig& config, int sm_count) {
  constexpr double kBandwidth = 23;                         // bytes a nanosecond and multiprocessor
  constexpr double kStartAndEnd = 700, kMerge = 1200;       // nanoseconds
  constexpr double kLatency = 1000, kLatencyOfByte = 0.05;  // of a warp's copies, nanoseconds
  constexpr std::int64_t kLong = 4096, kPiece = 2048, kMostRounds = 8;
  constexpr double kPartialBandwidth = 300;  // bytes a nanosecond
  const auto tiles = static_cast<double>(num_tiles(p, config, 1).value());
  const std::int64_t blocks = divide_up(p.seqlen_k, config.block_n);
  if (tiles == 0) return 1;
  const auto slots = static_cast<double>(sm_count) * few_rows_per_multiprocessor(config);
  const auto block_bytes = static_cast<double>(config.block_n * (p.head_dim + p.head_dim_v) *
                                               static_cast<std::int64_t>(size_of(p.dtype)));
  const double of_one =
      (config.stages - 1) * block_bytes / (kLatency + kLatencyOfByte * block_bytes / config.warps);
  const double partial_bytes =
      static_cast<double>(p.batch * p.heads_q * p.seqlen_q * p.head_dim_v) * sizeof(float);
  std::int64_t best = 1;
  double least = 0;
  for (std::int64_t splits = 1; splits <= std::min<std::int64_t>(kMostSplits, blocks); ++splits) {
    const std::int64_t of_split = divide_up(blocks, splits);
    if (splits > 1 && divide_up(blocks, of_split) < splits) continue;  // the last would be empty
    const double grid = tiles * static_cast<double>(splits);
    const double rounds = std::ceil(grid / slots);
    const double rate = std::min(of_one, kBandwidth * sm_count / std::min(grid, slots));
    double time = rounds * (kStartAndEnd + static_cast<double>(of_split) * block_bytes / rate);
    if (splits > 1)
      time += kMerge + static_cast<double>(splits) * partial_bytes / kPartialBandwidth;
    if (splits == 1 || time < least) {
      best = splits;
      least = time;
    }
  }
  if ((config.features.used_k || config.features.packed_k) && p.seqlen_k > kLong) {
    const auto most = static_cast<std::int64_t>(kMostRounds * slots / tiles);
    best =
        std::max(best, std::min({divide_up(p.seqlen_k, kPiece), most, std::int64_t{kMostSplits}}));
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace

std::int32_t choose_splits(const Problem& p, const ForwardConfig& config, int sm_count) {
  if (runs_by_name_only(config.kernel)) return 1;
  if (config.kernel == ForwardKernel::few_rows) return choose_few_rows_splits(p, config, sm_count);
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
