#include "cuda/plan/tile_order.hpp"

#include <algorithm>

#include "cuda/kernels/forward_tiles.hpp"

namespace attn::cuda {

int heads_at_once(const Problem& p, const ForwardConfig& config) {
  if (p.mask.empty()) return 1;
  const std::int64_t pairs =
      std::max<std::int64_t>(1, p.batch * p.heads_q / std::int64_t{config.tiling.group});
  // The first tile of a head waits for K and V from memory. Where a head has few tiles, and the
  // first of many heads come together, all multiprocessors wait at a time; so those of half of them
  // come together, beside later tiles of other heads. Head size 128, causal, 512 keys, TFLOP/s: 512
  // heads 283, 128 (the rule below) 315, 33 324, 16 333; 1024 keys, 8 heads 487, 64 479.
  // Other masks and fewer tiles a head follow by the same reason and were not timed.
  constexpr std::int64_t kFewTiles = 8;
  const std::int64_t tiles = m_blocks(p, config).value();
  if (config.tiling.tiles_together > 0 && tiles > 0 && tiles <= kFewTiles) {
    return static_cast<int>(std::min(pairs, config.tiling.tiles_together / tiles));
  }
  // Half of the 50 to 60 MB of L2 of the GPUs this runs on; a smaller one only costs traffic.
  constexpr std::int64_t kBytes = 32 << 20;
  const std::int64_t pair = std::max<std::int64_t>(
      1, p.seqlen_k * (p.head_dim + p.head_dim_v) * static_cast<std::int64_t>(size_of(p.dtype)));
  return static_cast<int>(std::clamp<std::int64_t>(kBytes / pair, 1, pairs));
}

}  // namespace attn::cuda
