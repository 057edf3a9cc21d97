// The order of tiles of keys in kernels that add dQ to memory.
#pragma once

#include "device.cuh"
#include "params.cuh"

namespace attn::device {

// Keys of a K, V head, which stay; blocks of queries of all heads of its group pass by.
struct KeyTile {
  int batch, head_k, key_block;
  bool from_last;  // from the last block of queries of a head to its first
};

// Tiles of heads_at_once pairs of batch and K, V head are gone through together, so that Q, dO and
// dQ of these stay in L2. A mask leaves the first keys the most queries, if it is causal: the
// longest tiles come first. Without one, all tiles of a head follow each other. Where tiles take
// turns, the last keys come first (schedule/dq_turns.cuh), of several heads in turn so that those
// of one follow each other slowly; but of the heads that are last the first keys, if a mask may
// leave these more queries, so that no long tile begins when others are done.
//
// Reads of C: kLongestFirst, kOrdered (tiles take turns)
template <class C>
ATTN_DEVICE KeyTile key_tile_at(const BackwardParams& p, int index) {
  const int together = p.heads_at_once * p.key_blocks;
  const int group = index / together, inside = index % together;
  const int first = group * p.heads_at_once;
  const int width = min(p.heads_at_once, p.batch * p.heads_k - first);
  constexpr bool kInTurn = C::kLongestFirst || C::kOrdered;
  const int pair = first + (kInTurn ? inside % width : inside / p.key_blocks);
  const int key_block = kInTurn ? inside / width : inside % p.key_blocks;
  const bool from_last = C::kOrdered && C::kLongestFirst && first + width == p.batch * p.heads_k;
  return {pair / p.heads_k, pair % p.heads_k,
          C::kOrdered && !from_last ? p.key_blocks - 1 - key_block : key_block, from_last};
}

}  // namespace attn::device
