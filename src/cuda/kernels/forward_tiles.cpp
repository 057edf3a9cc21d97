#include "cuda/kernels/forward_tiles.hpp"

#include <algorithm>
#include <cstdint>

#include "core/ceil_div.hpp"

namespace attn::cuda {

using core::ceil_div;

int packed_group(const Problem& p, int tile_rows, int rows, bool uneven) {
  const std::int64_t group = p.heads_q / p.heads_k;
  if (group == 1 || rows % group != 0) return 1;
  if (uneven) return static_cast<int>(group);
  const std::int64_t apart = group * ceil_div(p.seqlen_q, tile_rows);
  const std::int64_t together = ceil_div(p.seqlen_q * group, tile_rows);
  return 10 * together <= 9 * apart ? static_cast<int>(group) : 1;
}

Problem one_query_each(const Problem& p) {
  if (p.key_list == 0) return p;
  Problem each = p;
  each.batch = p.batch * p.seqlen_q;
  each.seqlen_q = std::min<std::int64_t>(p.seqlen_q, 1);
  each.seqlen_k = p.key_list;
  return each;
}

core::Size all_rows(const Problem& p) { return core::Size(p.batch) * p.heads_q * p.seqlen_q; }

core::Size m_blocks(const Problem& p, const ForwardConfig& config) {
  if (config.features.key_list) {  // a tile has rows of one query
    return core::Size(p.seqlen_q) * ceil_div(config.tiling.group, config.tiling.rows);
  }
  return core::divide_up(core::Size(p.seqlen_q) * config.tiling.group, config.tiling.rows);
}

core::Size num_tiles(const Problem& p, const ForwardConfig& config, std::int32_t num_splits) {
  if (config.kernel->tile_is_head) return core::Size(p.heads_q) * p.batch;
  return m_blocks(p, config) * (p.heads_q / config.tiling.group) * p.batch * num_splits;
}

bool stays(const ForwardConfig& config) noexcept {
  const ForwardKernel& kernel = *config.kernel;
  return kernel.stays || (kernel.takes_pieces && has_own_lengths(config.features));
}

}  // namespace attn::cuda
