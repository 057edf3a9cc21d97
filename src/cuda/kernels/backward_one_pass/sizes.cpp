#include "cuda/kernels/backward_one_pass/sizes.hpp"

#include <algorithm>
#include <bit>

#include "core/ceil_div.hpp"
#include "cuda/kernels/backward_tiles.hpp"

namespace attn::cuda {
using core::ceil_div;
namespace {

// Queries of whole places that blocks of the kernel fill: of one block, or of several smaller ones.
int whole_places(const BackwardConfig& c) { return std::max(c.tiling.block_n, kPlaceQueries); }

}  // namespace

std::int64_t query_blocks(const Problem& p, const BackwardConfig& c) {
  return ceil_div(p.seqlen_q, whole_places(c)) * (whole_places(c) / kPlaceQueries);
}

std::int64_t key_blocks(const Problem& p, const BackwardConfig& c) {
  return ceil_div(p.seqlen_k, c.tiling.block_m);
}

core::Size one_pass_rows(const Problem& p, const BackwardConfig& c) {
  return core::divide_up(p.seqlen_q, whole_places(c)) * whole_places(c) * p.heads_q * p.batch;
}

core::Size one_pass_words(const Problem& p, const BackwardConfig& c) {
  if (c.kernel->query_words.empty()) return 0;
  return core::divide_up(query_blocks(p, c), kWordBlocks) * key_blocks(p, c) *
         (c.features.mask_heads ? p.heads_q : 1) * (c.features.mask_batches ? p.batch : 1);
}

int backward_row_threads(const BackwardConfig& config) noexcept {
  constexpr int kLeast = 4, kWarp = 32;
  return static_cast<int>(std::bit_ceil(
      static_cast<unsigned>(std::clamp(config.features.head_dim_v / 8, kLeast, kWarp))));
}

core::Size one_pass_blocks(const Problem& p, const BackwardConfig& config) {
  const core::Size rows = core::divide_up(
      one_pass_rows(p, config) * static_cast<std::int64_t>(backward_row_threads(config)),
      kRowsThreads);
  return std::max({rows, core::divide_up(one_pass_words(p, config) * kWordThreads, kWordsThreads),
                   core::divide_up(one_pass_rows(p, config), kPlaceQueries), num_tiles(p, config)});
}

}  // namespace attn::cuda
