// Standard attention backward (FlashAttention paper, algorithm 3): P and dS of one K, V head are
// materialised, then dV = P^T dO, dK = dS^T Q and dQ = dS K are products over whole matrices.
#include <algorithm>

#include "core/ceil_div.hpp"
#include "cpu/backward/backward.hpp"
#include "cpu/pairs.hpp"

namespace attn::cpu {
namespace {

struct Scratch {
  int dim = 0, dim_v = 0;
  GradientTiles tiles;
  GradientBlock* block = nullptr;
  float *k = nullptr, *v = nullptr, *dk = nullptr, *dv = nullptr;  // one K, V block
  float* dq_t = nullptr;

  void carve(Carver& c) {
    tiles.carve(c);
    GradientBlock::carve_one(c, block, dim, dim_v, DType::f32);
    c.take(k, static_cast<std::size_t>(kBlockK * leading_dim(dim)));
    c.take(v, static_cast<std::size_t>(kBlockK * leading_dim(dim_v)));
    c.take(dk, static_cast<std::size_t>(kBlockK * leading_dim(dim)));
    c.take(dv, static_cast<std::size_t>(kBlockK * leading_dim(dim_v)));
    c.take(dq_t, static_cast<std::size_t>(dim * kMaxRows));
  }
};

}  // namespace

void backward_standard(const Attention& a, const GradientContext& g, const Gradients& gradients,
                       const Workers& workers) {
  Scratch sizes;
  sizes.dim = a.dim;
  sizes.dim_v = a.dim_v;
  sizes.tiles = g.tiles();
  const WorkerScratch<Scratch> scratch(workers.workspace(), workers.count(), sizes);
  const int rows = a.ops.rows;
  core::Size elements;
  for (std::int64_t pair = 0; pair < pair_count(a); ++pair) {
    elements =
        std::max(elements, core::Size(g.blocks(pair)) * rows * pair_at(a, pair).sequence.length_k);
  }
  auto* const p = workers.workspace().take_array<float>(elements, "P of a K, V head");
  auto* const ds = workers.workspace().take_array<float>(elements, "dS of a K, V head");
  const expr::Coverage coverage = a.has_mask() ? expr::Coverage::mixed : expr::Coverage::full;

  for (std::int64_t pair = 0; pair < pair_count(a); ++pair) {
    const core::Sequence& sequence = pair_at(a, pair).sequence;
    const int head_k = pair_at(a, pair).head_k;
    const std::int64_t blocks = g.blocks(pair);
    const int length_k = sequence.length_k;
    const auto at = [&](std::int64_t block, int key) { return (block * length_k + key) * rows; };
    workers.parallel_for(blocks, [&](std::int64_t i, int worker) {  // P, dS, and dQ = dS K
      Scratch s = scratch.of(worker);
      GradientBlock& q = *s.block;
      g.load(pair, i, q);
      std::fill_n(s.dq_t, a.dim * rows, 0.0f);
      for (int key0 = 0; key0 < length_k; key0 += kBlockK) {
        KeyBlock keys{0, 0, s.k, s.v};
        g.load_keys(sequence, head_k, key0, std::min(kBlockK, length_k - key0), keys);
        s.tiles.tile.s = p + at(i, key0);
        s.tiles.ds = ds + at(i, key0);
        const GradientTile tile{&q, coverage, &s.tiles};
        g.tile_gradients(&tile, 1, keys);
        const OutputTile dq{s.tiles.ds, nullptr, s.dq_t};
        a.ops.accumulate(&dq, 1, s.k, keys.keys, a.dim);
        g.add_keys_apart(keys, tile, s.dq_t);
      }
      if (gradients.dq.given()) {
        a.store_query_rows(core::rows_like_q(a.problem, a.inputs, gradients.dq, sequence.batch),
                           q.q, s.dq_t, a.dim, a.scale);
      }
    });
    const std::int64_t key_blocks = core::ceil_div(length_k, kBlockK);
    // dV = P^T dO, dK = dS^T Q
    workers.parallel_for(key_blocks, [&](std::int64_t j, int worker) {
      Scratch s = scratch.of(worker);
      const int key0 = static_cast<int>(j) * kBlockK;
      const int keys = std::min(kBlockK, length_k - key0);
      std::fill_n(s.dk, keys * leading_dim(a.dim), 0.0f);
      std::fill_n(s.dv, keys * leading_dim(a.dim_v), 0.0f);
      for (std::int64_t i = 0; i < blocks; ++i) {
        GradientBlock& q = *s.block;
        g.load(pair, i, q);
        const WeightedRows d_o{p + at(i, key0), q.do_rows, q.q.count};
        const WeightedRows queries{ds + at(i, key0), q.q_rows, q.q.count};
        a.ops.accumulate_rows(&d_o, 1, keys, a.dim_v, s.dv);
        a.ops.accumulate_rows(&queries, 1, keys, a.dim, s.dk);
        s.tiles.tile.s = p + at(i, key0);
        s.tiles.ds = ds + at(i, key0);
        g.add_rows_apart({&q, coverage, &s.tiles}, keys, s.dk, s.dv);
      }
      g.store_key_gradients(gradients, sequence, head_k, key0, keys, s.dk, s.dv);
    });
  }
}

}  // namespace attn::cpu
