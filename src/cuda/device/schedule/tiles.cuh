// Which tile of the output a block works on next.
#pragma once

#include "device.cuh"
#include "params.cuh"

namespace attn::device {

struct OutputTile {
  int m_block, head_k, batch, split;
};

// Tiles in the order of work: `heads_at_once` pairs of batch and K, V head at a time, so that their
// K and V stay in L2; of those the last block of queries first, which under a causal mask is the
// longest.
// With kGroup == 1 a "head" here is a query head, else a K, V head whose group of query heads
// shares the tile.
template <class C>
ATTN_DEVICE OutputTile tile_at(const ForwardParams& p, int index) {
  const int split = index % p.num_splits;
  index /= p.num_splits;
  const int heads = C::kGroup == 1 ? p.heads_q : p.heads_k;
  const int all = heads * p.batch;
  const int together = index / (p.heads_at_once * p.m_blocks);
  const int first = together * p.heads_at_once;
  const int width = min(p.heads_at_once, all - first);
  const int rest = index - first * p.m_blocks;
  const int pair = first + rest % width;
  return {p.m_blocks - 1 - rest / width, pair % heads, pair / heads, split};
}

}  // namespace attn::device
