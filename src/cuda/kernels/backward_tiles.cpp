#include "cuda/kernels/backward_tiles.hpp"

#include <algorithm>

#include "core/ceil_div.hpp"
#include "cuda/codegen/mask_bounds.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

using core::ceil_div;

core::Size num_pairs(const Problem& p, bool of_batch, bool of_heads) {
  return core::Size(of_batch ? p.batch : 1) * (of_heads ? p.heads_q : 1);
}
// Tiles of queries by blocks of keys of all that have elements of their own.
core::Size element_tiles(const Problem& p, const BackwardConfig& c) {
  if (p.batch == 0) return 0;  // no sequence whose lengths a tile could look at
  const std::int64_t rows = c.buffers.by_position ? p.seqlen_k : p.seqlen_q;
  return core::divide_up(rows, c.tiling.block_m) * core::divide_up(p.seqlen_k, c.tiling.block_n) *
         num_pairs(p, c.buffers.reads_batch, c.buffers.reads_head);
}

}  // namespace

core::Size num_rows(const Problem& p) { return core::Size(p.batch) * p.heads_q * p.seqlen_q; }

int num_splits(const Problem& p, const BackwardConfig& config) {
  // The same on every GPU, as the order of sums depends on it.
  const std::int64_t full = config.kernel->full_tiles;
  if (!config.buffers.own_elements) return 1;
  const core::Size tiles = element_tiles(p, config);
  if (tiles > full || tiles.value() == 0) return 1;
  const core::Size wanted = core::divide_up(full, tiles.value());
  return static_cast<int>(
      std::clamp(num_pairs(p, !config.buffers.reads_batch, !config.buffers.reads_head),
                 core::Size(1), wanted)
          .value());
}

core::Size num_tiles(const Problem& p, const BackwardConfig& config) {
  if (config.buffers.own_elements) return element_tiles(p, config) * num_splits(p, config);
  if (config.kernel->tile_is_head) return core::Size(p.heads_k) * p.batch;
  if (config.kernel->takes_key_lists && config.gradient == Gradient::all) {
    return core::Size(p.batch) * p.seqlen_q * p.heads_k *
           ceil_div(p.heads_q / p.heads_k, std::int64_t{config.tiling.block_n});
  }
  const bool of_queries = config.gradient == Gradient::dq || config.gradient == Gradient::buffers ||
                          config.gradient == Gradient::ds;
  const std::int64_t rows = of_queries ? p.seqlen_q : p.seqlen_k;
  return core::divide_up(rows, config.tiling.block_m) * p.batch *
         (of_queries ? p.heads_q : p.heads_k);
}

int heads_at_once(const Problem& p, const BackwardConfig& config) {
  constexpr std::int64_t kLeastTiles = 128;
  const std::int64_t bytes = std::int64_t{config.tiling.l2_megabytes} * 1'000'000;
  const std::int64_t row = 2 * (p.head_dim + p.head_dim_v) + 4 * p.head_dim;
  const std::int64_t pair = std::max<std::int64_t>(1, p.seqlen_q * (p.heads_q / p.heads_k) * row);
  const std::int64_t blocks =
      std::max<std::int64_t>(1, ceil_div(p.seqlen_k, config.tiling.block_m));
  const std::int64_t pairs = std::max<std::int64_t>(1, p.batch * p.heads_k);
  std::int64_t most = std::max(bytes / pair, ceil_div(kLeastTiles, blocks));
  // Tiles of a window are as long as each other but for those of the last keys of each pair. Where
  // they are few, of several query heads each, a last long one begins when other multiprocessors
  // are done. Of several pairs together all of these short tiles come last; the rows of one query
  // head of each pair stay in L2. 64:8 heads, 8192 of 16384 queries, a window of 4096, on 132
  // multiprocessors: with 2 pairs 8 % of the time is lost to the end, with 4 pairs 3 % (list
  // scheduling; timed in docs/log/dist.md).
  constexpr std::int64_t kFewTiles = 8 * 132, kHeadBytes = 34'000'000;
  if (p.heads_q > p.heads_k && blocks * pairs <= kFewTiles &&
      !mask_bounds(p.mask, true).first.empty()) {
    const std::int64_t head = std::max<std::int64_t>(1, p.seqlen_q * row);
    most = std::max(most, kHeadBytes / head);
  }
  return static_cast<int>(even_group(pairs, most));
}

std::int64_t even_group(std::int64_t pairs, std::int64_t most) noexcept {
  most = std::clamp<std::int64_t>(most, 1, pairs);
  for (std::int64_t size = most; 2 * size > most; --size) {
    if (pairs % size == 0) return size;
  }
  return ceil_div(pairs, ceil_div(pairs, most));
}

}  // namespace attn::cuda
