// FlashAttention-2, algorithm 2, over keys by list (Problem::key_list). Tasks are (sequence, K, V
// head, range of queries). A task takes its queries one after the other: it gathers the keys of a
// query's list block by block, as the forward pass does (forward/key_list.cpp), and adds what they
// give to the rows of dK and dV that the list names, of which each range has sums of its own. The
// ranges are added in order at the end, so that no two tasks write to the same memory and the sums
// do not depend on the number of threads.
#include <algorithm>

#include "core/ceil_div.hpp"
#include "cpu/backward/backward.hpp"
#include "cpu/budgets.hpp"
#include "cpu/pairs.hpp"

namespace attn::cpu {
namespace {

struct Scratch {
  int dim = 0, dim_v = 0;
  GradientTiles tiles;
  GradientBlock* block = nullptr;
  std::byte *k = nullptr, *v = nullptr;  // a block of keys
  std::byte* k_pairs = nullptr;          // K as dQ takes it: k itself for f32 operands
  float *dk = nullptr, *dv = nullptr;    // [kBlockK][leading dimension]
  float* dq_t = nullptr;                 // [dim][rows]

  void carve(Carver& c) {
    const DType operand = tiles.tile.operand;
    tiles.carve(c);
    GradientBlock::carve_one(c, block, dim, dim_v, operand);
    const auto of_k = static_cast<std::size_t>(kBlockK * leading_dim(dim));
    const auto of_v = static_cast<std::size_t>(kBlockK * leading_dim(dim_v));
    c.take(k, of_k * size_of(operand));
    c.take(v, of_v * size_of(operand));
    k_pairs = k;
    if (operand != DType::f32) c.take(k_pairs, of_k * size_of(operand));
    c.take(dk, of_k);
    c.take(dv, of_v);
    c.take(dq_t, static_cast<std::size_t>(dim) * kMaxRows);
  }
};

// Sums of dK and dV of one range of queries of a pair: [key][leading dimension].
struct KeySums {
  float *dk, *dv;
};

// Those of a wave of pairs.
struct WaveSums {
  float* memory;
  std::int64_t ranges, keys, ld, ld_v;  // keys: of a sequence at most

  std::int64_t floats() const { return keys * (ld + ld_v); }
  KeySums of(std::int64_t pair_in_wave, std::int64_t range) const {
    float* const dk = memory + (pair_in_wave * ranges + range) * floats();
    return {dk, dk + keys * ld};
  }
};

// Pairs whose sums are held at once.
std::int64_t pairs_at_once(std::int64_t pairs, core::Size bytes_each) {
  const std::int64_t fit = kSplitBudget / std::max<std::int64_t>(1, bytes_each.value());
  return std::clamp<std::int64_t>(fit, 1, std::max<std::int64_t>(1, pairs));
}

class Pass {
 public:
  Pass(const Attention& a, const GradientContext& g, const Gradients& gradients)
      : a_(a), g_(g), gradients_(gradients) {}

  // Queries [first, last) of a pair: dQ is stored, dK and dV are left in `sums`.
  void run(std::int64_t pair, std::int64_t first, std::int64_t last, const KeySums& sums,
           Scratch& s) const {
    const auto [sequence, head_k] = pair_at(a_, pair);
    std::fill_n(sums.dk, std::int64_t{sequence.length_k} * leading_dim(a_.dim), 0.0f);
    std::fill_n(sums.dv, std::int64_t{sequence.length_k} * leading_dim(a_.dim_v), 0.0f);
    const core::Rows dq = core::rows_like_q(a_.problem, a_.inputs, gradients_.dq, sequence.batch);
    for (std::int64_t query = first; query < last; ++query) {
      const core::KeyList list = core::key_list(a_.problem, a_.inputs, sequence, query, head_k);
      for (std::int64_t i = 0; i < g_.blocks_of_query(); ++i) {
        g_.load(pair, query * g_.blocks_of_query() + i, *s.block);
        std::fill_n(s.dq_t, a_.dim * a_.ops.rows, 0.0f);
        for (std::int64_t entry = 0; entry < list.count; entry += kBlockK) {
          const ListedKeys keys(list, entry);
          if (keys.any) add(sequence, head_k, keys, sums, s);
        }
        if (gradients_.dq.given()) {
          a_.store_query_rows(dq, s.block->q, s.dq_t, a_.dim, a_.scale);
        }
      }
    }
  }

  // Keys [key0, key0 + keys) of a pair: the ranges' sums, in order.
  void store_keys(std::int64_t pair, int key0, int keys, const WaveSums& sums,
                  std::int64_t pair_in_wave) const {
    const auto [sequence, head_k] = pair_at(a_, pair);
    const KeySums all = sums.of(pair_in_wave, 0);
    const auto add_ranges = [&](float* KeySums::*of, std::int64_t ld) {
      float* const sum = all.*of + key0 * ld;
      for (std::int64_t range = 1; range < sums.ranges; ++range) {
        const float* const part = sums.of(pair_in_wave, range).*of + key0 * ld;
        for (std::int64_t i = 0; i < keys * ld; ++i) sum[i] += part[i];
      }
      return sum;
    };
    const float* const dk = add_ranges(&KeySums::dk, sums.ld);
    const float* const dv = add_ranges(&KeySums::dv, sums.ld_v);
    g_.store_key_gradients(gradients_, sequence, head_k, key0, keys, dk, dv);
  }

 private:
  // The rows of s.block and some keys of their list: added to s.dq_t and to the sums.
  void add(const core::Sequence& sequence, int head_k, const ListedKeys& keys, const KeySums& sums,
           Scratch& s) const {
    const int ld = leading_dim(a_.dim), ld_v = leading_dim(a_.dim_v);
    KeyBlock block{.k = s.k, .v = s.v};
    g_.load_keys(sequence, head_k, keys, block, s.k_pairs != s.k ? s.k_pairs : nullptr);
    const GradientTile tile{s.block, expr::Coverage::mixed, &s.tiles};
    g_.tile_gradients(&tile, 1, block);
    const OutputTile dq{s.tiles.ds_pairs, nullptr, s.dq_t};
    a_.ops.accumulate(&dq, 1, s.k_pairs, keys.count, a_.dim);
    g_.add_keys_apart(block, tile, s.dq_t);
    std::fill_n(s.dk, kBlockK * ld, 0.0f);
    std::fill_n(s.dv, kBlockK * ld_v, 0.0f);
    const WeightedRows d_o{s.tiles.tile.p, s.block->do_rows, s.block->q.count};
    const WeightedRows queries{s.tiles.ds_rows, s.block->q_rows, s.block->q.count};
    a_.ops.accumulate_rows(&d_o, 1, keys.count, a_.dim_v, s.dv);
    a_.ops.accumulate_rows(&queries, 1, keys.count, a_.dim, s.dk);
    g_.add_rows_apart(tile, keys.count, s.dk, s.dv);
    for (int j = 0; j < keys.count; ++j) {
      const std::ptrdiff_t key = keys.key[j];
      if (key < 0) continue;
      for (int d = 0; d < ld; ++d) sums.dk[key * ld + d] += s.dk[j * ld + d];
      for (int d = 0; d < ld_v; ++d) sums.dv[key * ld_v + d] += s.dv[j * ld_v + d];
    }
  }

  const Attention& a_;
  const GradientContext& g_;
  const Gradients& gradients_;
};

Scratch sizes(const Problem& p, const GradientTiles& tiles) {
  Scratch s;
  s.dim = static_cast<int>(p.head_dim);
  s.dim_v = static_cast<int>(p.head_dim_v);
  s.tiles = tiles;
  return s;
}

}  // namespace

void backward_key_list(const Attention& a, const GradientContext& g, const Plan& plan,
                       const Gradients& gradients, const Workers& workers) {
  Workspace& workspace = workers.workspace();
  const WorkerScratch<Scratch> scratch(workspace, workers.count(), sizes(a.problem, g.tiles()));
  WaveSums sums{nullptr, plan.num_splits, 0, leading_dim(a.dim), leading_dim(a.dim_v)};
  for (const core::Sequence& sequence : a.sequences) {
    sums.keys = std::max<std::int64_t>(sums.keys, sequence.length_k);
  }
  const core::Size floats = core::Size(sums.ranges) * sums.floats();
  // As workspace_bytes counts them, also where all sequences are shorter than the problem allows.
  const core::Size most = core::Size(sums.ranges) * a.problem.seqlen_k * (sums.ld + sums.ld_v);
  const std::int64_t pairs = pair_count(a), wave = pairs_at_once(pairs, most * sizeof(float));
  sums.memory = workspace.take_array<float>(floats * wave, "dK and dV of the ranges of queries");
  const Pass pass(a, g, gradients);
  const std::int64_t key_blocks = core::ceil_div(sums.keys, std::int64_t{kBlockK});
  for (std::int64_t first = 0; first < pairs; first += wave) {
    const std::int64_t count = std::min(wave, pairs - first);
    workers.parallel_for(count * sums.ranges, [&](std::int64_t index, int worker) {
      const std::int64_t pair = index / sums.ranges, range = index % sums.ranges;
      const std::int64_t queries = pair_at(a, first + pair).sequence.length_q;
      const TileState tile_state(a.ops);
      Scratch s = scratch.of(worker);
      pass.run(first + pair, queries * range / sums.ranges, queries * (range + 1) / sums.ranges,
               sums.of(pair, range), s);
    });
    workers.parallel_for(count * key_blocks, [&](std::int64_t index, int) {
      const std::int64_t pair = index / key_blocks;
      const auto key0 = static_cast<int>(index % key_blocks * kBlockK);
      const int keys = pair_at(a, first + pair).sequence.length_k - key0;
      if (keys > 0) pass.store_keys(first + pair, key0, std::min(keys, kBlockK), sums, pair);
    });
  }
}

core::Size key_list_gradient_bytes(const Plan& plan, const GradientTiles& tiles) {
  const Problem& p = plan.problem;
  const core::Size pairs = core::Size(p.batch) * p.heads_k;
  const core::Size bytes =
      core::Size(plan.num_splits) * p.seqlen_k *
      (leading_dim(static_cast<int>(p.head_dim)) + leading_dim(static_cast<int>(p.head_dim_v))) *
      sizeof(float);
  const core::Size waves = bytes.fits() && pairs.fits()
                               ? bytes * pairs_at_once(pairs.value(), bytes)
                               : core::Size(bytes);
  return waves + plan.threads * WorkerScratch<Scratch>::bytes(sizes(p, tiles));
}

}  // namespace attn::cpu
