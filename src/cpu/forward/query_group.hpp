// Q blocks that share one pass over K and V, for every algorithm whose outer loop runs over Q.
#pragma once

#include <algorithm>

#include "cpu/attention.hpp"
#include "cpu/forward/packed_keys.hpp"
#include "cpu/tasks.hpp"
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
  const std::size_t row_bytes = static_cast<std::size_t>(core::row_bytes(a.type_q, a.dim));
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

// The Q blocks of a task, loaded into s.blocks, and the keys that they are to take in.
struct GroupPass {
  const Attention& a;
  const core::Sequence& sequence;
  HeadRange heads;
  const expr::Tile& rows;  // of all the Q blocks
  int blocks;              // Q blocks of a head: 1 where there are several heads
  KeyRange keys;           // begin is a multiple of kBlockK
  const PackedKeys& packed;
  GroupScratch& s;
  bool again = false;  // O was not finite (nonfinite.hpp)
};

// FlashAttention-2, algorithm 1, lines 6 to 11 (flash_attention_2.cpp): m, l and the unnormalised O
// of the Q blocks take in every K, V block that is visible.
void attend(const GroupPass& pass);

}  // namespace attn::cpu
