// Which tile of the output a block works on next.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "params.cuh"
#include "schedule/sequence.cuh"

namespace attn::device {

struct OutputTile {
  int m_block, head_k, batch, split;
};

// Tiles in the order of work: `heads_at_once` pairs of batch and K, V head at a time, so that their
// K and V stay in L2; of those the last block of queries first, which under a causal mask is the
// longest.
// With kGroup == 1 a "head" here is a query head, else a K, V head whose group of query heads
// shares the tile.
// Where keys are split and one block has all queries, no other block waits to find K and V in L2:
// all heads of a piece of keys follow each other, whose rows of K and V lie beside each other in
// memory.
template <class C>
ATTN_DEVICE OutputTile tile_at(const ForwardParams& p, int index) {
  const int heads = C::kGroup == 1 ? p.heads_q : p.heads_k;
  if (C::kSplits && p.m_blocks == 1) {
    const int head = index % heads;
    index /= heads;
    return {0, head, index / p.num_splits, index % p.num_splits};
  }
  const int split = index % p.num_splits;
  index /= p.num_splits;
  const int all = heads * p.batch;
  const int together = index / (p.heads_at_once * p.m_blocks);
  const int first = together * p.heads_at_once;
  const int width = min(p.heads_at_once, all - first);
  const int rest = index - first * p.m_blocks;
  const int pair = first + rest % width;
  return {p.m_blocks - 1 - rest / width, pair % heads, pair / heads, split};
}

// The same where sequences of a packed Q differ much in their numbers of queries: only tiles that
// have rows, sequence after sequence, the last block of queries of all heads first. For a whole
// warp, whose lanes get the same; batch is -1 where there are no more.
template <class C>
ATTN_DEVICE OutputTile tile_with_rows(const ForwardParams& p, int index) {
  const int split = index % p.num_splits;
  const int heads = C::kGroup == 1 ? p.heads_q : p.heads_k;
  int left = index / p.num_splits;  // tiles before it, of all heads
#pragma unroll 1
  for (int first = 0; first < p.batch; first += 32) {
    const int batch = first + static_cast<int>(threadIdx.x % 32);
    int tiles = 0;
    if (batch < p.batch) {
      const int rows = own_sequence_of<C>(p, batch).rows_q * C::kGroup;
      tiles = divide_up<C::kBlockM>(rows) * heads;
    }
    int up_to = tiles;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const int other = __shfl_up_sync(~0u, up_to, i);
      if (static_cast<int>(threadIdx.x % 32) >= i) up_to += other;
    }
    const unsigned after = __ballot_sync(~0u, up_to > left);
    if (after == 0) {
      left -= __shfl_sync(~0u, up_to, 31);
      continue;
    }
    const int where = __ffs(after) - 1;
    const int from_last = __shfl_sync(~0u, up_to, where) - 1 - left;
    return {from_last / heads, from_last % heads, first + where, split};
  }
  return {0, 0, -1, 0};
}

}  // namespace attn::device
