// FlashAttention, algorithm 1 (Dao et al. 2022), and algorithm 5, its block-sparse form: outer loop
// over K, V blocks; for each, every Q block's O, l and m are read, brought up to date, normalised
// and written back.
#include <limits>

#include "core/ceil_div.hpp"
#include "cpu/forward/forward.hpp"
#include "cpu/forward/query_group.hpp"
#include "cpu/nonfinite.hpp"

namespace attn::cpu {
namespace {

struct Scratch {
  int dim = 0, dim_v = 0;
  std::int64_t blocks = 0;  // Q blocks of the longest sequence
  TileScratch tile;
  KeyBlock keys;
  QueryBlock* query_blocks = nullptr;
  float* q_t = nullptr;
  float* o_t = nullptr;    // [blocks][dim_v][rows], normalised
  float* new_o = nullptr;  // [dim_v][rows], P~ V of a pair of blocks

  void carve(Carver& c) {
    float* k = nullptr;
    float* v = nullptr;
    tile.carve(c);
    c.take(k, static_cast<std::size_t>(kBlockK * leading_dim(dim)));
    c.take(v, static_cast<std::size_t>(kBlockK * leading_dim(dim_v)));
    c.take(query_blocks, blocks);
    c.take(q_t, static_cast<std::size_t>((dim + 1) * kMaxRows));
    c.take(o_t, core::Size(blocks) * dim_v * kMaxRows);
    c.take(new_o, static_cast<std::size_t>(dim_v * kMaxRows));
    keys.k = k;
    keys.v = v;
  }
};

// Lines 9 to 13 for one pair of blocks: O_i <- diag(l')^-1 (diag(l) e^(m - m') O_i + e^(m~ - m') P~
// V_j). The factor of O_i is 1 where a row's keys of the block weigh nothing: O_i l (1 / l) would
// wear it down by an ulp a block.
void update(const Attention& a, const core::Sequence& sequence, int head_k, QueryBlock& q,
            const KeyBlock& keys, std::uint64_t apart, expr::Coverage coverage, Scratch& s) {
  TileScratch& t = s.tile;
  const QueryTile tile{&q, coverage, &t};
  a.scores(&tile, 1, keys.k, keys.key0, keys.keys);
  float before[kMaxRows];
  std::copy_n(q.l, a.ops.rows, before);
  a.ops.softmax(t.s, keys.keys, a.c(), t.row_max, a.keep(q, keys.key0, keys.keys, t), q.m, q.l,
                t.alpha, t.p);
  float factor[kMaxRows], normalizer[kMaxRows];
  for (int r = 0; r < a.ops.rows; ++r) {
    const bool sees = t.row_max[r] != -std::numeric_limits<float>::infinity();
    factor[r] = sees ? t.alpha[r] * before[r] / q.l[r] : 1.0f;
    normalizer[r] = sees ? 1.0f / q.l[r] : 1.0f;
  }
  std::fill_n(s.new_o, a.dim_v * a.ops.rows, 0.0f);
  const OutputTile output{t.p, t.alpha, s.new_o};
  a.ops.accumulate(&output, 1, keys.v, keys.keys, a.dim_v);
  if (apart != 0) add_values_apart(a, sequence, head_k, keys.key0, keys.keys, apart, output);
  for (int d = 0; d < a.dim_v; ++d) {
    float* const o = q.o_t + d * a.ops.rows;
    const float* const new_o = s.new_o + d * a.ops.rows;
    for (int r = 0; r < a.ops.rows; ++r) o[r] = factor[r] * o[r] + normalizer[r] * new_o[r];
  }
}

// The outer loop over the K, V blocks of a head, and the inner one over its Q blocks. again: O was
// not finite (nonfinite.hpp).
void attend_head(const Attention& a, const core::Sequence& sequence, int head_k, bool skip_empty,
                 bool again, Scratch& s) {
  const std::int64_t rows = a.rows(sequence), blocks = core::ceil_div(rows, a.ops.rows);
  const expr::Tile head_rows = a.tile(sequence, head_k, 0, rows);
  for (std::int64_t i = 0; i < blocks; ++i) a.start_rows(s.query_blocks[i]);
  KeyBlock& room = s.keys;
  for (int key0 = 0; key0 < sequence.length_k; key0 += kBlockK) {
    a.load_key_block(sequence, head_k, key0, std::min(kBlockK, sequence.length_k - key0), room);
    const bool hides =
        again || a.has_score() || a.coverage(head_rows, key0, room.keys) != expr::Coverage::full;
    const std::uint64_t apart = hides ? set_apart_values(a, sequence, head_k, room.v, room) : 0;
    for (std::int64_t i = 0; i < blocks; ++i) {
      QueryBlock& q = s.query_blocks[i];
      expr::Coverage coverage = a.coverage(q.tile, key0, room.keys);
      if (coverage == expr::Coverage::empty) {
        if (skip_empty) continue;
        coverage = expr::Coverage::mixed;  // algorithm 1 computes and masks every tile
      }
      a.pack_query_block(sequence, q);
      update(a, sequence, head_k, q, room, apart, coverage, s);
    }
  }
}

}  // namespace

void forward_flash_attention(const Attention& a, const Plan& plan, const Outputs& outputs,
                             const Workers& workers) {
  const bool skip_empty = plan.algorithm == Algorithm::block_sparse;
  Scratch sizes;
  sizes.dim = a.dim;
  sizes.dim_v = a.dim_v;
  sizes.tile = a.tile_scratch();
  for (const core::Sequence& sequence : a.sequences) {
    sizes.blocks = std::max(sizes.blocks, core::ceil_div(a.rows(sequence), a.ops.rows));
  }
  const WorkerScratch<Scratch> scratch(workers.workspace(), workers.count(), sizes);
  const std::int64_t heads = a.problem.heads_k;
  workers.parallel_for(a.problem.batch * heads, [&](std::int64_t index, int worker) {
    const core::Sequence& sequence = a.sequences[static_cast<std::size_t>(index / heads)];
    const int head_k = static_cast<int>(index % heads);
    const std::int64_t rows = a.rows(sequence);
    const std::int64_t blocks = core::ceil_div(rows, a.ops.rows);
    Scratch s = scratch.of(worker);
    const TileState tile_state(a.ops);
    for (std::int64_t i = 0; i < blocks; ++i) {
      QueryBlock& q = s.query_blocks[i];
      const std::int64_t row0 = i * a.ops.rows;
      a.describe_query_block(sequence, head_k, row0,
                             static_cast<int>(std::min<std::int64_t>(rows - row0, a.ops.rows)), q);
      q.q_t = s.q_t;
      q.o_t = s.o_t + i * a.dim_v * a.ops.rows;
    }
    attend_head(a, sequence, head_k, skip_empty, false, s);
    const auto is_finite = [&](const QueryBlock& q) { return has_finite_output(a, q); };
    if (!a.has_score() && !std::all_of(s.query_blocks, s.query_blocks + blocks, is_finite)) {
      attend_head(a, sequence, head_k, skip_empty, true, s);
    }
    for (std::int64_t i = 0; i < blocks; ++i) {
      a.store_block(sequence, s.query_blocks[i], outputs, /*normalized=*/true);
    }
  });
}

}  // namespace attn::cpu
