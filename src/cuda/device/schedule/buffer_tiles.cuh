// What a block of threads goes through for the gradients of buffers that a score reads.
//
// Where queries and keys read elements of their own, as those of a bias, it has one tile of queries
// and one block of keys, and goes through the batch entries and heads that share its elements, or
// through a part of them, a split: with [1, heads, query, key] through all batch entries. Else it
// has a tile of queries of one batch entry and head, and goes through the blocks of keys.
//
// Reads of C: kBlockM (queries of a tile), kBlockN (keys of a block), and what GradientTile reads.
// Derivatives: src/cuda/codegen/buffer_gradients.hpp.
#pragma once

#include "device.cuh"
#include "schedule/gradient_tile.cuh"

namespace attn::device {

template <class C, class Derivatives>
struct BufferTiles {
  static constexpr bool kOwn = Derivatives::kElements > 0;

  const BackwardParams& p;
  // With kOwn: the row of elements that the tile begins with, which is a position where buffers are
  // read by position, else a query; the block of keys; and the first of the `count` pairs of batch
  // entry and head, of those that are gone through.
  int place, block;
  int batch, head;  // where they are the same for all
  int split, begin, count;

  static ATTN_DEVICE BufferTiles at(const BackwardParams& p, int splits, int index) {
    using Tile = GradientTile<C>;
    const int rows = Derivatives::kByPosition ? p.seqlen_k : p.seqlen_q;
    const int tiles = Tile::template blocks_of<C::kBlockM>(rows);
    if constexpr (!kOwn) {
      // Tiles that see most under a causal mask come first: the last queries.
      const int pairs = p.heads_q * p.batch, pair = index % pairs;
      BufferTiles all{
          p, (tiles - 1 - index / pairs) * C::kBlockM, 0, pair / p.heads_q, pair % p.heads_q, 0, 0,
          0};
      all.count = all.tile(0).blocks();
      return all;
    } else {
      const int blocks = Tile::template blocks_of<C::kBlockN>(p.seqlen_k);
      const int block = index % blocks, tile = index / blocks % tiles;
      const int part = index / blocks / tiles;
      const int split = part % splits, pair = part / splits;
      const int heads = Derivatives::kReadsHead ? p.heads_q : 1;
      const long long pairs = static_cast<long long>(Derivatives::kReadsBatch ? 1 : p.batch) *
                              (Derivatives::kReadsHead ? 1 : p.heads_q);
      const auto begin = static_cast<int>(pairs * split / splits);
      const auto end = static_cast<int>(pairs * (split + 1) / splits);
      return {p, tile * C::kBlockM, block, pair / heads, pair % heads, split, begin, end - begin};
    }
  }

  // The i-th of `count`: the tile of queries, and its block of keys. The first query may be below
  // 0.
  ATTN_DEVICE GradientTile<C> tile(int i) const {
    if constexpr (!kOwn) {
      return {sequence_of<C>(p, batch), head, place};
    } else {
      const int heads = Derivatives::kReadsHead ? 1 : p.heads_q, pair = begin + i;
      const Sequence s = sequence_of<C>(p, Derivatives::kReadsBatch ? batch : pair / heads);
      return {s, Derivatives::kReadsHead ? head : pair % heads,
              place - (Derivatives::kByPosition ? s.length_k - s.length_q : 0)};
    }
  }
  ATTN_DEVICE int key_block(int i) const { return kOwn ? block : i; }

  template <class Expressions>
  ATTN_DEVICE Coverage coverage(const Expressions& e, int i) const {
    const GradientTile<C> t = tile(i);
    return t.coverage(e, key_block(i), t.head);
  }
};

}  // namespace attn::device
