// Standard attention (FlashAttention paper, algorithm 0): S = Q K^T, P = softmax(S) and O = P V,
// each a pass over memory, with S and P of one K, V head materialised. The baseline that the others
// are measured against.
#include "core/ceil_div.hpp"
#include "cpu/forward/forward.hpp"
#include "cpu/forward/query_group.hpp"
#include "cpu/nonfinite.hpp"

namespace attn::cpu {
namespace {

struct Scratch {
  int dim = 0, dim_v = 0;
  TileScratch tile;
  QueryBlock* block = nullptr;
  KeyBlock keys;
  float* q_t = nullptr;
  float* o_t = nullptr;

  void carve(Carver& c) {
    float* k = nullptr;
    float* v = nullptr;
    tile.carve(c);
    c.take(block, 1);
    c.take(k, static_cast<std::size_t>(kBlockK * leading_dim(dim)));
    c.take(v, static_cast<std::size_t>(kBlockK * leading_dim(dim_v)));
    c.take(q_t, static_cast<std::size_t>(dim * kMaxRows));
    c.take(o_t, static_cast<std::size_t>(dim_v * kMaxRows));
    keys.k = k;
    keys.v = v;
    if (block != nullptr) {
      block->q_t = q_t;
      block->o_t = o_t;
    }
  }
};

// One head's S, later P: [Q block][key][row].
struct ScoreMatrix {
  float* data = nullptr;
  std::int64_t keys = 0;
  int rows = 0;
  float* tile(std::int64_t block, std::int64_t key) const {
    return data + (block * keys + key) * rows;
  }
};

// Zeroes the elements of P that dropout drops.
void drop(const Attention& a, const QueryBlock& q, int length_k, float* p, TileScratch& t) {
  for (int key0 = 0; key0 < length_k; key0 += kBlockK) {
    const int keys = std::min(kBlockK, length_k - key0);
    const std::uint32_t* keep = a.keep(q, key0, keys, t);
    for (int j = 0; j < keys; ++j) {
      for (int r = 0; r < a.ops.rows; ++r) {
        if ((keep[j] >> r & 1u) == 0) p[std::int64_t{key0 + j} * a.ops.rows + r] = 0;
      }
    }
  }
}

// O^T of Q block i <- V^T P^T. hides: P may be 0 where V is used.
void multiply_values(const Attention& a, const core::Sequence& sequence, int head_k,
                     const ScoreMatrix& p, std::int64_t i, bool hides, Scratch& s) {
  std::fill_n(s.block->o_t, a.dim_v * a.ops.rows, 0.0f);
  for (int key0 = 0; key0 < sequence.length_k; key0 += kBlockK) {
    const int keys = std::min(kBlockK, sequence.length_k - key0);
    a.load_key_block(sequence, head_k, key0, keys, s.keys);
    KeyBlock block = s.keys;
    const std::uint64_t apart = hides ? set_apart_values(a, sequence, head_k, s.keys.v, block) : 0;
    const OutputTile output{p.tile(i, key0), nullptr, s.block->o_t};
    a.ops.accumulate(&output, 1, block.v, keys, a.dim_v);
    if (apart != 0) add_values_apart(a, sequence, head_k, key0, keys, apart, output);
  }
}

}  // namespace

void forward_standard(const Attention& a, const Plan&, const Outputs& outputs,
                      const Workers& workers) {
  Scratch sizes;
  sizes.dim = a.dim;
  sizes.dim_v = a.dim_v;
  sizes.tile = a.tile_scratch();
  const WorkerScratch<Scratch> scratch(workers.workspace(), workers.count(), sizes);
  const int rows = a.ops.rows;
  const expr::Coverage coverage = a.has_mask() ? expr::Coverage::mixed : expr::Coverage::full;
  core::Size elements;
  for (const core::Sequence& sequence : a.sequences) {
    const std::int64_t blocks = core::ceil_div(a.rows(sequence), rows);
    elements = std::max(elements, core::Size(blocks) * rows * sequence.length_k);
  }
  auto* const memory = workers.workspace().take_array<float>(elements, "the scores of a K, V head");

  for (const core::Sequence& sequence : a.sequences) {
    const std::int64_t total = a.rows(sequence);
    const std::int64_t blocks = core::ceil_div(total, rows);
    const ScoreMatrix matrix{memory, sequence.length_k, rows};
    const auto describe = [&](int head_k, std::int64_t i, QueryBlock& q) {
      a.describe_query_block(sequence, head_k, i * rows,
                             static_cast<int>(std::min<std::int64_t>(total - i * rows, rows)), q);
    };
    for (int head_k = 0; head_k < a.problem.heads_k; ++head_k) {
      workers.parallel_for(blocks, [&](std::int64_t i, int worker) {  // S = Q K^T
        Scratch s = scratch.of(worker);
        describe(head_k, i, *s.block);
        a.pack_query_block(sequence, *s.block);
        s.keys.v = nullptr;
        for (int key0 = 0; key0 < sequence.length_k; key0 += kBlockK) {
          const int keys = std::min(kBlockK, sequence.length_k - key0);
          a.load_key_block(sequence, head_k, key0, keys, s.keys);
          s.tile.s = matrix.tile(i, key0);
          const QueryTile tile{s.block, coverage, &s.tile};
          a.scores(&tile, 1, s.keys.k, key0, keys);
        }
      });
      // P = softmax(S), then O = P V.
      workers.parallel_for(blocks, [&](std::int64_t i, int worker) {
        Scratch s = scratch.of(worker);
        QueryBlock& q = *s.block;
        describe(head_k, i, q);
        TileScratch& t = s.tile;
        a.ops.row_max(matrix.tile(i, 0), sequence.length_k, t.row_max);
        a.ops.softmax(matrix.tile(i, 0), sequence.length_k, a.c(), t.row_max, nullptr, q.m, q.l,
                      t.alpha, matrix.tile(i, 0));
        float normalizer[kMaxRows];
        for (int r = 0; r < rows; ++r) normalizer[r] = q.l[r] == 0 ? 0.0f : 1.0f / q.l[r];
        for (int key = 0; key < sequence.length_k; ++key) {
          float* p = matrix.tile(i, key);
          for (int r = 0; r < rows; ++r) p[r] *= normalizer[r];
        }
        if (a.has_dropout()) drop(a, q, sequence.length_k, matrix.tile(i, 0), t);
        s.keys.k = nullptr;
        multiply_values(a, sequence, head_k, matrix, i, may_hide(a, coverage), s);
        if (!may_hide(a, coverage) && !has_finite_output(a, q)) {
          multiply_values(a, sequence, head_k, matrix, i, true, s);
        }
        a.store_block(sequence, q, outputs, /*normalized=*/true);
      });
    }
  }
}

}  // namespace attn::cpu
