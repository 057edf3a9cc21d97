#include "cpu/backward/gradient_context.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "core/ceil_div.hpp"
#include "core/tensor/element.hpp"
#include "cpu/nonfinite.hpp"
#include "cpu/pairs.hpp"

namespace attn::cpu {
namespace {

// LSE of a row without visible keys, and of lanes without a row: 2^(s - this) is 0 for every score.
constexpr float kNoKeys = std::numeric_limits<float>::infinity();

// From here on LSE, a float, is off by 2^-4 and more, and P = exp(s - LSE) by as much as a factor:
// of keys with a mask of -1e9 added LSE is -1e9 whatever their number. P of such rows is divided by
// its sum.
constexpr float kFarLse = 0x1p20f;

// S and dP of so many keys and 32 rows are 8 KB, which stay in L1 whatever passes by: from L2
// storing a tile of AMX takes four times as long.
constexpr int kStripKeys = kBlockK / 2;

float element(const Attention& a, const std::byte* row, int d) {
  const auto size = static_cast<std::ptrdiff_t>(size_of(a.problem.dtype));
  return static_cast<float>(core::load_element(row + d * size, a.problem.dtype));
}

bool is_far(float lse) { return std::abs(lse) >= kFarLse && std::isfinite(lse); }

// What a tensor laid out as LSE says of row r of a Q block.
float of_row(const core::Rows& like_lse, const QueryBlock& q, int r) {
  return *reinterpret_cast<const float*>(like_lse.row(q.query[r], q.head[r]));
}

// Memory of a worker that adds up P of a block of rows.
struct SumScratch {
  int dim = 0, dim_v = 0;
  GradientTiles tiles;
  GradientBlock* block = nullptr;
  std::byte *k = nullptr, *v = nullptr;  // a block of keys

  void carve(Carver& c) {
    const DType operand = tiles.tile.operand;
    tiles.carve(c);
    GradientBlock::carve_one(c, block, dim, dim_v, operand);
    c.take(k, static_cast<std::size_t>(kBlockK * leading_dim(dim)) * size_of(operand));
    c.take(v, static_cast<std::size_t>(kBlockK * leading_dim(dim_v)) * size_of(operand));
  }
};

// s[row] <- the scores of one key with the Q block.
void score_apart(const Attention& a, const QueryBlock& q, const std::byte* key, float* s) {
  std::fill_n(s, a.ops.rows, 0.0f);
  for (int d = 0; d < a.dim; ++d) {
    const float k = element(a, key, d);
    for (int r = 0; r < a.ops.rows; ++r) s[r] += operand_element(a, q.q_t, d, r) * k;
  }
}

}  // namespace

void GradientBlock::carve_one(Carver& c, GradientBlock*& block, int dim, int dim_v, DType operand) {
  c.take(block, 1);
  GradientBlock placed;
  placed.carve(c, dim, dim_v, operand);
  if (block != nullptr) *block = placed;
}

void GradientBlock::carve(Carver& c, int dim, int dim_v, DType operand) {
  const auto take = [&](void*& array, int elements_of_row) {
    std::byte* bytes = nullptr;
    c.take(bytes, static_cast<std::size_t>(kMaxRows * elements_of_row) * size_of(operand));
    array = bytes;
  };
  take(q.q_t, (dim + 1) / 2 * 2);
  take(do_t, (dim_v + 1) / 2 * 2);
  take(q_rows, leading_dim(dim));
  take(do_rows, leading_dim(dim_v));
}

void GradientTiles::carve(Carver& c) {
  const auto n = static_cast<std::size_t>(kBlockK * kMaxRows);
  tile.carve(c);
  c.take(ds, n);
  ds_rows = ds_pairs = ds;
  if (tile.operand == DType::bf16) {
    std::uint32_t *rows = nullptr, *pairs = nullptr;
    c.take(rows, n / 2);
    c.take(pairs, n / 2);
    ds_rows = rows;
    ds_pairs = pairs;
  }
  c.take(raw, n);
  c.take(factor, n);
}

GradientContext::GradientContext(const Attention& a, const Outputs& outputs,
                                 const OutputGradients& d_outputs, const Workers& workers)
    : a_(a), d_outputs_(d_outputs), first_block_(&workers.workspace()) {
  Workspace& workspace = workers.workspace();
  first_block_.reserve(static_cast<std::size_t>(pair_count(a)) + 1);
  first_block_.push_back(0);
  for (std::int64_t pair = 0; pair < pair_count(a); ++pair) {
    const core::Sequence& sequence = pair_at(a, pair).sequence;
    first_block_.push_back(first_block_.back() +
                           (a.problem.key_list > 0 ? sequence.length_q * blocks_of_query()
                                                   : core::ceil_div(a.rows(sequence), a.ops.rows)));
  }
  has_factor_ = a.programs.has_derivative();
  if (has_factor_) derivative_ = a.bind(a.programs.derivative(), workspace);
  const int rows = a.ops.rows;
  const core::Size floats = core::Size(first_block_.back()) * rows;
  lse_ = workspace.take_array<float>(floats, "LSE of every row");
  delta_ = workspace.take_array<float>(floats, "D of every row");

  std::atomic<bool> far = false;
  workers.parallel_for(first_block_.back(), [&](std::int64_t block, int) {
    const std::int64_t pair = pair_of_block(block);
    const auto [sequence, head_k] = pair_at(a, pair);
    const core::Rows o = core::rows_like_q(a.problem, a.inputs, outputs.o, sequence.batch);
    const core::Rows grad = core::rows_like_q(a.problem, a.inputs, d_outputs.o, sequence.batch);
    const core::Rows lse_rows = core::lse_rows(a.problem, a.inputs, outputs.lse, sequence.batch);
    const core::Rows d_lse_rows =
        core::lse_rows(a.problem, a.inputs, d_outputs.lse, sequence.batch);
    QueryBlock q;
    const auto [row0, count] = block_rows(pair, block - first_block(pair));
    a.place_query_block(sequence, head_k, row0, count, q);
    const std::byte* o_row[kMaxRows];
    const std::byte* d_o_row[kMaxRows];
    float* lse = lse_ + block * rows;
    float* delta = delta_ + block * rows;
    std::fill_n(lse, rows, kNoKeys);
    std::fill_n(delta, rows, 0.0f);
    for (int r = 0; r < q.count; ++r) {
      o_row[r] = o.row(q.query[r], q.head[r]);
      d_o_row[r] = grad.row(q.query[r], q.head[r]);
    }
    a.ops.dot_rows(o_row, d_o_row, q.count, a.dim_v, a.problem.dtype, delta);
    for (int r = 0; r < q.count; ++r) {
      const float natural = of_row(lse_rows, q, r);
      if (natural == -std::numeric_limits<float>::infinity()) continue;
      lse[r] = natural;
      if (is_far(natural)) far.store(true, std::memory_order_relaxed);
      if (d_outputs.lse.given()) delta[r] -= of_row(d_lse_rows, q, r);
    }
  });
  if (far) weigh_far_rows(workers);
}

void GradientContext::weigh_far_rows(const Workers& workers) {
  const int rows = a_.ops.rows;
  auto* const weights = workers.workspace().take_array<float>(
      core::Size(first_block_.back()) * rows, "weights of every row");
  SumScratch sizes;
  sizes.dim = a_.dim;
  sizes.dim_v = a_.dim_v;
  sizes.tiles = tiles();
  const WorkerScratch<SumScratch> scratch(workers.workspace(), workers.count(), sizes);
  workers.parallel_for(first_block_.back(), [&](std::int64_t block, int worker) {
    float* const weight = weights + block * rows;
    std::fill_n(weight, rows, 1.0f);
    const float* const of_block = lse(block);
    if (std::none_of(of_block, of_block + rows, is_far)) return;
    const TileState tile_state(a_.ops);
    SumScratch s = scratch.of(worker);
    const std::int64_t pair = pair_of_block(block);
    load(pair, block - first_block(pair), *s.block);
    const auto coverage = a_.has_mask() ? expr::Coverage::mixed : expr::Coverage::full;
    double sum[kMaxRows] = {};
    sum_exponentials(pair, {s.block, coverage, &s.tiles}, {0, 0, s.k, s.v}, sum);
    for (int r = 0; r < s.block->q.count; ++r) {
      if (is_far(of_block[r]) && sum[r] > 0) weight[r] = static_cast<float>(1 / sum[r]);
    }
  });
  weight_ = weights;
}

void GradientContext::sum_exponentials(std::int64_t pair, const GradientTile& tile,
                                       const KeyBlock& room, double* sum) const {
  const auto [sequence, head_k] = pair_at(a_, pair);
  const QueryBlock& q = tile.block->q;
  KeyBlock keys = room;
  const auto add = [&] {
    exponentials(&tile, 1, keys);
    for (int j = 0; j < keys.keys; ++j) {
      for (int r = 0; r < q.count; ++r) sum[r] += double{tile.t->tile.s[j * a_.ops.rows + r]};
    }
  };
  if (a_.problem.key_list > 0) {
    const core::KeyList list =
        core::key_list(a_.problem, a_.inputs, sequence, q.tile.query_min, head_k);
    for (std::int64_t entry = 0; entry < list.count; entry += kBlockK) {
      const ListedKeys listed(list, entry);
      load_keys(sequence, head_k, listed, keys);
      add();
    }
  } else {
    for (int key0 = 0; key0 < sequence.length_k; key0 += kBlockK) {
      load_keys(sequence, head_k, key0, std::min(kBlockK, sequence.length_k - key0), keys);
      add();
    }
  }
  if (!a_.problem.sink) return;
  const auto* const sink = static_cast<const float*>(a_.inputs.sink.data);
  for (int r = 0; r < q.count; ++r) {
    sum[r] += std::exp(double{sink[q.head[r]]} - double{tile.block->lse[r]});
  }
}

std::int64_t GradientContext::pair_of_block(std::int64_t block) const {
  const auto after = std::upper_bound(first_block_.begin(), first_block_.end(), block);
  return after - first_block_.begin() - 1;
}

GradientContext::BlockRows GradientContext::block_rows(std::int64_t pair, std::int64_t i) const {
  const int rows = a_.ops.rows;
  if (a_.problem.key_list == 0) {
    const std::int64_t first = i * rows, all = a_.rows(pair_at(a_, pair).sequence);
    return {first, static_cast<int>(std::min<std::int64_t>(all - first, rows))};
  }
  const std::int64_t head = i % blocks_of_query() * rows;
  return {i / blocks_of_query() * a_.group + head,
          static_cast<int>(std::min<std::int64_t>(a_.group - head, rows))};
}

std::int64_t GradientContext::lane_of(std::int64_t row) const {
  if (a_.problem.key_list == 0) return row;
  return row / a_.group * blocks_of_query() * a_.ops.rows + row % a_.group;
}

void GradientContext::load(std::int64_t pair, std::int64_t i, GradientBlock& block) const {
  const auto [sequence, head_k] = pair_at(a_, pair);
  const auto [row0, count] = block_rows(pair, i);
  a_.load_query_block(sequence, head_k, row0, count, block.q);
  const core::Rows grad = core::rows_like_q(a_.problem, a_.inputs, d_outputs_.o, sequence.batch);
  const std::byte* q[kMaxRows];
  const std::byte* d_o[kMaxRows];
  for (int r = 0; r < count; ++r) {
    q[r] = sequence.q.row(block.q.query[r], block.q.head[r]);
    d_o[r] = grad.row(block.q.query[r], block.q.head[r]);
  }
  a_.ops.pack_q(d_o, count, a_.dim_v, core::cache_type(a_.problem.dtype), nullptr, 1.0f,
                block.do_t);
  // Q and dO are of the type of K and V.
  block.q_apart = a_.ops.nonfinite_rows(q, count, a_.dim, a_.type_k);
  block.do_apart = a_.ops.nonfinite_rows(d_o, count, a_.dim_v, a_.type_v);
  for_each_bit(block.q_apart, count, [&](int r) { q[r] = nullptr; });
  for_each_bit(block.do_apart, count, [&](int r) { d_o[r] = nullptr; });
  a_.ops.pack_rows(q, count, a_.dim, a_.problem.dtype, block.q_rows);
  a_.ops.pack_rows(d_o, count, a_.dim_v, a_.problem.dtype, block.do_rows);
  block.lse = lse(first_block(pair) + i);
  block.delta = delta(first_block(pair) + i);
  block.weight = weight(first_block(pair) + i);
}

GradientTiles GradientContext::tiles() const {
  GradientTiles t;
  t.tile = a_.tile_scratch();
  return t;
}

void GradientContext::exponentials(const GradientTile* tile, int tiles,
                                   const KeyBlock& keys) const {
  const int n = keys.keys;
  const auto natural = static_cast<float>(a_.natural());
  ScoreTile scores[kMaxRegisterBlocks];
  for (int i = 0; i < tiles; ++i) {
    scores[i] = {tile[i].block->q.q_t, tile[i].t->tile.s, nullptr};
  }
  a_.ops.scores(scores, tiles, keys.k, n, a_.dim);
  for (int i = 0; i < tiles; ++i) {
    GradientTiles& t = *tile[i].t;
    for_each_bit(keys.k_apart, n, [&](int j) {
      const std::byte* row = key_row(tile[i], keys, j);
      score_apart(a_, tile[i].block->q, row, t.tile.s + j * a_.ops.rows);
    });
    float* p = t.tile.s;
    if (a_.has_score()) std::copy_n(p, n * a_.ops.rows, t.raw);
    if (keys.listed != nullptr) {
      modify_listed(a_, tile[i].block->q, *keys.listed, t.tile);
    } else {
      a_.modify(tile[i].block->q, keys.key0, n, tile[i].coverage, t.tile);
    }
    a_.ops.probabilities(p, n, natural, tile[i].block->lse, p);
  }
}

void GradientContext::tile_value_gradients(const GradientTile* tile, int tiles,
                                           const KeyBlock& keys) const {
  const int n = keys.keys;
  exponentials(tile, tiles, keys);
  ScoreTile dp[kMaxRegisterBlocks];
  for (int i = 0; i < tiles; ++i) {
    dp[i] = {tile[i].block->do_t, tile[i].t->ds, nullptr};
    const float* const weight = tile[i].block->weight;
    for (int j = 0; weight != nullptr && j < n * a_.ops.rows; ++j) {
      tile[i].t->tile.s[j] *= weight[j % a_.ops.rows];
    }
  }
  a_.ops.scores(dp, tiles, keys.v, n, a_.dim_v);
  for (int i = 0; i < tiles; ++i) {
    const GradientBlock& block = *tile[i].block;
    GradientTiles& t = *tile[i].t;
    const std::uint32_t* keep = a_.keep(block.q, keys.key0, n, t.tile);
    a_.ops.score_gradient(t.tile.s, t.ds, n, keep, a_.dropout_scale(), block.delta, t.ds);
  }
}

void GradientContext::gradients_in_strips(const GradientTile& tile, const KeyBlock& keys) const {
  const GradientBlock& block = *tile.block;
  const TileOps& ops = a_.ops;
  TileScratch strip = tile.t->tile;
  strip.s = tile.t->factor;
  float* const dp = tile.t->factor + kStripKeys * ops.rows;
  for (int j = 0; j < keys.keys; j += kStripKeys) {
    const int n = std::min(kStripKeys, keys.keys - j);
    const auto from = [&](void* x, int row) {
      return static_cast<std::byte*>(x) + static_cast<std::size_t>(j * row) * size_of(ops.operand);
    };
    const ScoreTile scores{block.q.q_t, strip.s, nullptr}, of_dp{block.do_t, dp, nullptr};
    ops.scores(&scores, 1, from(keys.k, leading_dim(a_.dim)), n, a_.dim);
    a_.modify(block.q, keys.key0 + j, n, tile.coverage, strip);
    ops.scores(&of_dp, 1, from(keys.v, leading_dim(a_.dim_v)), n, a_.dim_v);
    ops.softmax_gradient(strip.s, dp, n, block.q.count, static_cast<float>(a_.natural()), block.lse,
                         block.delta, from(tile.t->tile.p, ops.rows),
                         from(tile.t->ds_rows, ops.rows), from(tile.t->ds_pairs, ops.rows));
  }
}

bool GradientContext::in_strips(const GradientTile& tile, const KeyBlock& keys) const {
  return a_.ops.softmax_gradient != nullptr && keys.listed == nullptr && !has_factor_ &&
         !a_.has_dropout() && tile.block->weight == nullptr &&
         (keys.k_apart | tile.block->q_apart | tile.block->do_apart) == 0;
}

void GradientContext::tile_gradients(const GradientTile* tile, int tiles,
                                     const KeyBlock& keys) const {
  if (tiles == 1 && in_strips(*tile, keys)) return gradients_in_strips(*tile, keys);
  tile_value_gradients(tile, tiles, keys);
  for (int i = 0; i < tiles; ++i) {
    const QueryBlock& q = tile[i].block->q;
    GradientTiles& t = *tile[i].t;
    if (has_factor_) {
      for_each_run(keys, [&](int first, int count, int key) {
        const std::ptrdiff_t at = std::ptrdiff_t{first} * a_.ops.rows;
        a_.ops.evaluate(derivative_, a_.expression_context(q, key, count, t.tile), t.raw + at,
                        t.factor + at);
      });
      a_.ops.multiply_gradient(t.factor, keys.keys, t.ds);
    }
    if (a_.ops.round_gradients != nullptr) {
      a_.ops.round_gradients(t.tile.s, t.ds, keys.keys, q.count, t.tile.p, t.ds_rows, t.ds_pairs);
    }
  }
}

void GradientContext::load_keys(const core::Sequence& sequence, int head_k, int key0, int keys,
                                KeyBlock& block, void* k_pairs) const {
  const std::byte *k[kBlockK], *v[kBlockK];
  for (int j = 0; j < keys; ++j) {
    k[j] = sequence.k.row(key0 + j, head_k);
    v[j] = sequence.v.row(key0 + j, head_k);
  }
  block.key0 = key0;
  pack_keys(k, v, keys, block, k_pairs);
}

void GradientContext::load_keys(const core::Sequence& sequence, int head_k,
                                const ListedKeys& listed, KeyBlock& block, void* k_pairs) const {
  const std::byte *k[kBlockK], *v[kBlockK];
  listed.find(sequence.k, head_k, k);
  listed.find(sequence.v, head_k, v);
  block.listed = &listed;
  pack_keys(k, v, listed.count, block, k_pairs);
}

void GradientContext::pack_keys(const std::byte** k, const std::byte** v, int keys, KeyBlock& block,
                                void* k_pairs) const {
  const CacheType type = a_.type_k;  // backward has one type of all
  block.keys = keys;
  block.k_apart = a_.ops.nonfinite_rows(k, keys, a_.dim, type);
  for_each_bit(block.k_apart, keys, [&](int j) { k[j] = nullptr; });
  a_.ops.pack_k(k, keys, a_.dim, type, nullptr, block.k);
  if (k_pairs != nullptr) a_.ops.pack_v(k, keys, a_.dim, type, nullptr, k_pairs);
  a_.ops.pack_k(v, keys, a_.dim_v, type, nullptr, block.v);
}

const std::byte* GradientContext::key_row(const GradientTile& tile, const KeyBlock& keys,
                                          int j) const {
  const expr::Tile& rows = tile.block->q.tile;
  const int key = keys.listed != nullptr ? keys.listed->key[j] : keys.key0 + j;
  return a_.sequences[static_cast<std::size_t>(rows.batch)].k.row(key, rows.head_min / a_.group);
}

void GradientContext::add_keys_apart(const KeyBlock& keys, const GradientTile& tile,
                                     float* dq_t) const {
  for_each_bit(keys.k_apart, keys.keys, [&](int j) {
    add_outer(a_, tile.t->ds + j * a_.ops.rows, key_row(tile, keys, j), a_.dim, a_.type_k, 1, dq_t);
  });
}

void GradientContext::add_rows_apart(const GradientTile& tile, int keys, float* dk,
                                     float* dv) const {
  const GradientBlock& block = *tile.block;
  const core::Sequence& sequence = a_.sequences[static_cast<std::size_t>(block.q.tile.batch)];
  const auto add = [&](std::uint64_t apart, const core::Rows& rows, const float* weight, int dim,
                       float* sum) {
    for_each_bit(apart, block.q.count, [&](int r) {
      const std::byte* row = rows.row(block.q.query[r], block.q.head[r]);
      for (int j = 0; j < keys; ++j) {
        const float w = weight[j * a_.ops.rows + r];
        float* out = sum + std::ptrdiff_t{j} * leading_dim(dim);
        for (int d = 0; w != 0 && d < dim; ++d) out[d] += w * element(a_, row, d);
      }
    });
  };
  add(block.do_apart, core::rows_like_q(a_.problem, a_.inputs, d_outputs_.o, sequence.batch),
      tile.t->tile.s, a_.dim_v, dv);
  add(block.q_apart, sequence.q, tile.t->ds, a_.dim, dk);
}

// Dropout's factor comes after the sums, as in the forward pass: P of a query that sees one key is
// exactly 1, and 1 / (1 - probability) rounded to bf16 with it would be off alike in every row.
void GradientContext::store_key_gradients(const Gradients& gradients,
                                          const core::Sequence& sequence, int head_k, int key0,
                                          int keys, const float* dk, const float* dv) const {
  a_.store_key_rows(gradients.dk, sequence, head_k, key0, keys, dk, a_.dim, a_.scale);
  a_.store_key_rows(gradients.dv, sequence, head_k, key0, keys, dv, a_.dim_v, a_.dropout_scale());
}

}  // namespace attn::cpu
