#include "cuda/heuristics/backward_tiles.hpp"

#include <algorithm>

#include "core/ceil_div.hpp"

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
  const std::int64_t rows = c.by_position ? p.seqlen_k : p.seqlen_q;
  return core::divide_up(rows, c.block_m) * core::divide_up(p.seqlen_k, c.block_n) *
         num_pairs(p, c.reads_batch, c.reads_head);
}

}  // namespace

int num_splits(const Problem& p, const BackwardConfig& config) {
  // Two blocks of threads for each multiprocessor of an H100, or the one that it holds; the same on
  // every GPU, as the order of sums depends on it.
  const std::int64_t full = config.kernel == BackwardKernel::sm90_buffers ? 132 : 264;
  if (!config.own_elements) return 1;
  const core::Size tiles = element_tiles(p, config);
  if (tiles > full || tiles.value() == 0) return 1;
  const core::Size wanted = core::divide_up(full, tiles.value());
  return static_cast<int>(
      std::clamp(num_pairs(p, !config.reads_batch, !config.reads_head), core::Size(1), wanted)
          .value());
}

core::Size num_tiles(const Problem& p, const BackwardConfig& config) {
  if (config.own_elements) return element_tiles(p, config) * num_splits(p, config);
  if (config.kernel == BackwardKernel::flash_attention) return core::Size(p.heads_k) * p.batch;
  const bool of_queries = config.gradient == Gradient::dq || config.gradient == Gradient::buffers ||
                          config.gradient == Gradient::ds;
  const std::int64_t rows = of_queries ? p.seqlen_q : p.seqlen_k;
  return core::divide_up(rows, config.block_m) * p.batch * (of_queries ? p.heads_q : p.heads_k);
}

int heads_at_once(const Problem& p, const BackwardConfig& config) {
  constexpr std::int64_t kLeastTiles = 128;
  const std::int64_t bytes = std::int64_t{config.l2_megabytes} * 1'000'000;
  const std::int64_t row = 2 * (p.head_dim + p.head_dim_v) + 4 * p.head_dim;
  const std::int64_t pair = std::max<std::int64_t>(1, p.seqlen_q * (p.heads_q / p.heads_k) * row);
  const std::int64_t least =
      ceil_div(kLeastTiles, std::max<std::int64_t>(1, ceil_div(p.seqlen_k, config.block_m)));
  return static_cast<int>(
      even_group(std::max<std::int64_t>(1, p.batch * p.heads_k), std::max(bytes / pair, least)));
}

std::int64_t even_group(std::int64_t pairs, std::int64_t most) noexcept {
  most = std::clamp<std::int64_t>(most, 1, pairs);
  for (std::int64_t size = most; 2 * size > most; --size) {
    if (pairs % size == 0) return size;
  }
  return ceil_div(pairs, ceil_div(pairs, most));
}

}  // namespace attn::cuda
