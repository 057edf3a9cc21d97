// Q blocks that share one pass over K and V: the inner loop of every algorithm whose outer loop
// runs over Q.
#pragma once

#include <algorithm>

#include "cpu/attention.hpp"
#include "cpu/forward/packed_keys.hpp"
#include "cpu/nonfinite.hpp"
#include "cpu/workspace.hpp"

namespace attn::cpu {

// Packing a K, V block costs as much as 4 to 8 % of one tile's products (measured); shared by four
// Q blocks it is 1 to 2 %.
inline constexpr int kMaxBlocksPerTask = 8;

struct GroupScratch {
  int dim = 0, dim_v = 0;
  int block_count = kMaxBlocksPerTask;
  TileScratch tile[kMaxRegisterBlocks];
  QueryBlock* blocks = nullptr;  // [block_count]
  KeyBlock keys;

  void carve(Carver& c) {
    for (TileScratch& t : tile) {
      t.carve(c);
      t.expression = tile[0].expression;
    }
    float* k = nullptr;
    float* v = nullptr;
    c.take(blocks, block_count);
    c.take(k, static_cast<std::size_t>(kBlockK) * static_cast<std::size_t>(leading_dim(dim)));
    c.take(v, static_cast<std::size_t>(kBlockK) * static_cast<std::size_t>(leading_dim(dim_v)));
    keys.k = k;
    keys.v = v;
    for (int i = 0; i < block_count; ++i) {
      float* q_t = nullptr;
      float* o_t = nullptr;
      c.take(q_t, static_cast<std::size_t>(dim + 1) * kMaxRows);
      c.take(o_t, static_cast<std::size_t>(dim_v) * kMaxRows);
      if (blocks != nullptr) {
        blocks[i].q_t = q_t;
        blocks[i].o_t = o_t;
      }
    }
  }
};

// Heads that a task reads together where each has one Q block and they lie side by side, so that
// each alone would fetch every memory page again (few_rows.hpp); else 1.
inline int heads_per_tile_group(const Attention& a) {
  const core::Rows& k = a.sequences.front().k;
  const bool side_by_side = k.head_stride < k.row_stride;
  if (!side_by_side || a.most_blocks(2) > 1) return 1;
  return static_cast<int>(std::min<std::int64_t>(a.problem.heads_k, kMaxBlocksPerTask));
}

// heads: of one Q block each, if there are several.
inline GroupScratch group_scratch(const Attention& a, int heads = 1) {
  GroupScratch scratch;
  scratch.dim = a.dim;
  scratch.dim_v = a.dim_v;
  scratch.block_count = heads == 1 ? a.most_blocks(kMaxBlocksPerTask) : heads;
  // One after the other the tiles evaluate expressions: the scratch of the first serves all.
  std::fill_n(scratch.tile, kMaxRegisterBlocks, a.tile_scratch());
  for (int i = 1; i < kMaxRegisterBlocks; ++i) scratch.tile[i].expression_floats = 0;
  return scratch;
}

// Loads the Q blocks of rows [row0, row0 + rows) of a head into q_blocks and clears their O;
// returns how many.
inline int load_query_group(const Attention& a, const core::Sequence& sequence, int head_k,
                            std::int64_t row0, std::int64_t rows, QueryBlock* q_blocks) {
  // Rows of Q lie heads * head_dim apart: asked for together, their cache misses overlap.
  const std::size_t row_bytes = static_cast<std::size_t>(a.dim) * size_of(a.problem.dtype);
  std::int64_t query = row0 / a.group, in_group = row0 % a.group;
  for (std::int64_t r = 0; r < rows; ++r) {
    prefetch_row(sequence.q.row(query, head_k * a.group + in_group), row_bytes);
    if (++in_group == a.group) {
      in_group = 0;
      ++query;
    }
  }
  int blocks = 0;
  for (std::int64_t r = 0; r < rows; r += a.ops.rows, ++blocks) {
    QueryBlock& q = q_blocks[blocks];
    a.load_query_block(sequence, head_k, row0 + r,
                       static_cast<int>(std::min<std::int64_t>(rows - r, a.ops.rows)), q);
    std::fill_n(q.o_t, a.dim_v * a.ops.rows, 0.0f);
  }
  return blocks;
}

// K, V heads [first, first + count) that a task reads.
struct HeadRange {
  int first = 0, count = 1;
};

// FlashAttention-2, algorithm 1, lines 6 to 11, for one K, V block: m, l and the unnormalised O of
// the `blocks` Q blocks of a head take it in.
inline void attend_block(const Attention& a, const core::Sequence& sequence, int head_k, int key0,
                         int n, expr::Coverage coverage, std::int64_t key_end,
                         const PackedKeys& packed, QueryBlock* q_blocks, int blocks,
                         GroupScratch& s) {
  if (!packed.packed()) a.load_key_block(sequence, head_k, key0, n, s.keys);
  KeyBlock block = packed.packed() ? packed.block(key0, n) : s.keys;
  QueryTile tile[kMaxRegisterBlocks];
  int tiles = 0;
  int tile_keys = 0;  // of each
  const auto add_tiles = [&](std::uint64_t apart) {
    a.scores(tile, tiles, block.k, key0, tile_keys);
    OutputTile output[kMaxRegisterBlocks];
    for (int i = 0; i < tiles; ++i) {
      QueryBlock& q = *tile[i].q;
      TileScratch& t = *tile[i].t;
      a.ops.softmax(t.s, tile_keys, a.c(), t.row_max, a.keep(q, key0, tile_keys, t), q.m, q.l,
                    t.alpha, t.p);
      output[i] = {t.p, t.alpha, q.o_t};
    }
    a.ops.accumulate(output, tiles, block.v, tile_keys, a.dim_v);
    for (int i = 0; apart != 0 && i < tiles; ++i) {
      add_values_apart(a, sequence, head_k, key0, tile_keys, apart, output[i]);
    }
    tiles = 0;
  };
  // The Q blocks that `takes` the coverage of.
  const auto add_blocks = [&](std::uint64_t apart, const auto& takes) {
    for (int i = 0; i < blocks; ++i) {
      if (packed.packed() && key0 + kBlockK < key_end) packed.prefetch(key0 + kBlockK, i, blocks);
      QueryBlock& q = q_blocks[i];
      const expr::Coverage own =
          coverage == expr::Coverage::full || blocks == 1 ? coverage : a.coverage(q.tile, key0, n);
      if (own == expr::Coverage::empty || !takes(own)) continue;
      const int keys = own == expr::Coverage::mixed ? a.visible_keys(q.tile, key0, n) : n;
      if (tiles > 0 && keys != tile_keys) add_tiles(apart);
      tile[tiles] = {&q, own, &s.tile[tiles]};
      tile_keys = keys;
      if (++tiles == a.ops.q_blocks) add_tiles(apart);
    }
    if (tiles > 0) add_tiles(apart);
  };
  const std::uint64_t apart = values_to_set_apart(a, sequence, head_k, coverage, block);
  if (apart == 0) return add_blocks(0, [](expr::Coverage) { return true; });
  // What a row adds apart comes last in its sums. So that a Q block has the same bits in any task,
  // its own coverage decides: one that sees all keys reads V as it is.
  add_blocks(0, [&](expr::Coverage own) { return !may_hide(a, own); });
  pack_values_without(a, sequence, head_k, apart, s.keys.v, block);
  add_blocks(apart, [&](expr::Coverage own) { return may_hide(a, own); });
}

// The same over keys [key_begin, key_end), for every K, V block that is visible. s.blocks: `blocks`
// of a head; of several heads one each.
inline void attend(const Attention& a, const core::Sequence& sequence, HeadRange heads,
                   const expr::Tile& rows, int blocks, std::int64_t key_begin, std::int64_t key_end,
                   const PackedKeys& packed, GroupScratch& s) {
  for_visible_blocks(a, rows, key_begin, key_end, [&](int key0, int n, expr::Coverage coverage) {
    if (heads.count == 1) {
      return attend_block(a, sequence, heads.first, key0, n, coverage, key_end, packed, s.blocks,
                          blocks, s);
    }
    for (int h = 0; h < heads.count; ++h) {
      const expr::Coverage own =
          coverage == expr::Coverage::full ? coverage : a.coverage(s.blocks[h].tile, key0, n);
      if (own == expr::Coverage::empty) continue;
      attend_block(a, sequence, heads.first + h, key0, n, own, key_end, packed, s.blocks + h, 1, s);
    }
  });
}

}  // namespace attn::cpu
