#include "cpu/f64/gradients.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

namespace attn::cpu::f64 {
namespace {

// As of float and of the reference: P is off by |LSE| 2^-53 before.
constexpr double kFarLse = 0x1p20;
bool is_far(double lse) { return std::abs(lse) >= kFarLse && std::isfinite(lse); }

// Memory of a worker that adds up P of a block of rows.
struct SumScratch {
  int dim = 0, dim_v = 0;
  Tile tile;
  GradientRows* rows = nullptr;
  Keys* keys = nullptr;

  void carve(Carver& c) {
    tile.carve(c);
    c.take(rows, 1);
    c.take(keys, 1);
    GradientRows counted_rows;
    (rows == nullptr ? counted_rows : *rows).carve(c, dim, dim_v);
    Keys counted;
    Keys& placed = keys == nullptr ? counted : *keys;
    placed = {};
    c.take(placed.k_t, static_cast<std::size_t>(dim) * kTileLd);
  }
};

}  // namespace

GradientTiles::GradientTiles(const Attention& a, const Outputs& outputs,
                             const OutputGradients& d_outputs, const Workers& workers)
    : a_(a), tiles_(a), d_outputs_(d_outputs), first_row_(&workers.workspace()) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Workspace& workspace = workers.workspace();
  first_row_.reserve(at(pair_count(a)) + 1);
  first_row_.push_back(0);
  for (std::int64_t pair = 0; pair < pair_count(a); ++pair) {
    first_row_.push_back(first_row_.back() + a.rows(pair_at(a, pair).sequence));
  }
  has_derivative_ = a.programs.has_derivative();
  if (has_derivative_) derivative_ = a.bind(a.programs.derivative(), workspace);
  lse_ = workspace.take_array<double>(first_row_.back(), "LSE of every row");
  delta_ = workspace.take_array<double>(first_row_.back(), "D of every row");
  std::atomic<bool> far = false;
  workers.parallel_for(pair_count(a), [&](std::int64_t pair, int) {
    const auto [sequence, head_k] = pair_at(a, pair);
    const core::Rows o = core::rows_like_q(a.problem, a.inputs, outputs.o, sequence.batch);
    const core::Rows grad = core::rows_like_q(a.problem, a.inputs, d_outputs.o, sequence.batch);
    const core::Rows lse = core::lse_rows(a.problem, a.inputs, outputs.lse, sequence.batch);
    const core::Rows d_lse = core::lse_rows(a.problem, a.inputs, d_outputs.lse, sequence.batch);
    for (std::int64_t row = 0; row < rows(pair); ++row) {
      const std::int64_t query = row / a.group, head = head_k * a.group + row % a.group;
      const auto* const x = reinterpret_cast<const double*>(o.row(query, head));
      const auto* const y = reinterpret_cast<const double*>(grad.row(query, head));
      double sum = 0;
      for (int d = 0; d < a.dim_v; ++d) sum += x[d] * y[d];
      double& row_lse = lse_[first_row_[at(pair)] + row];
      double& row_delta = delta_[first_row_[at(pair)] + row];
      row_lse = *reinterpret_cast<const double*>(lse.row(query, head));
      row_delta = sum;
      if (is_far(row_lse)) far.store(true, std::memory_order_relaxed);
      if (row_lse == -kInfinity) {  // a row without visible keys: e^(s - this) is 0
        row_lse = kInfinity;
        row_delta = 0;
      } else if (d_outputs.lse.given()) {
        row_delta -= *reinterpret_cast<const double*>(d_lse.row(query, head));
      }
    }
  });
  if (far) weigh_far_rows(workers);
}

void GradientTiles::weigh_far_rows(const Workers& workers) {
  weight_ = workers.workspace().take_array<double>(first_row_.back(), "weights of every row");
  std::fill_n(weight_, first_row_.back(), 1.0);
  SumScratch sizes;
  sizes.dim = a_.dim;
  sizes.dim_v = a_.dim_v;
  sizes.tile = Tiles::scratch(a_.programs);
  const WorkerScratch<SumScratch> scratch(workers.workspace(), workers.count(), sizes);
  const auto coverage = a_.has_mask() ? expr::Coverage::mixed : expr::Coverage::full;
  workers.parallel_for(pair_count(a_), [&](std::int64_t pair, int worker) {
    SumScratch s = scratch.of(worker);
    const auto [sequence, head_k] = pair_at(a_, pair);
    for (std::int64_t row0 = 0; row0 < rows(pair); row0 += kRows) {
      const double* const of_block = lse(pair) + row0;
      const auto count = static_cast<int>(std::min<std::int64_t>(kRows, rows(pair) - row0));
      if (std::none_of(of_block, of_block + count, is_far)) continue;
      load(pair, row0, *s.rows);
      double sum[kRows] = {};
      for (int key0 = 0; key0 < sequence.length_k; key0 += kBlockK) {
        tiles_.load_keys(sequence, head_k, key0, std::min(kBlockK, sequence.length_k - key0), false,
                         *s.keys);
        tiles_.scores(s.rows->rows, s.rows->q, *s.keys, coverage, s.tile);
        tiles_.verbs().probabilities(s.tile.s, count, whole_lines(s.keys->keys), of_block);
        for (int r = 0; r < count; ++r) {
          for (int j = 0; j < s.keys->keys; ++j) sum[r] += s.tile.s[r * kTileLd + j];
        }
      }
      for (int r = 0; r < count; ++r) {
        if (!is_far(of_block[r])) continue;
        if (a_.problem.sink) {
          const double sink = static_cast<const float*>(a_.inputs.sink.data)[s.rows->rows.head[r]];
          sum[r] += std::exp(sink - of_block[r]);
        }
        if (sum[r] > 0) weight_[first_row_[at(pair)] + row0 + r] = 1 / sum[r];
      }
    }
  });
}

std::int64_t GradientTiles::most_rows() const {
  std::int64_t most = 0;
  for (std::int64_t pair = 0; pair < pair_count(a_); ++pair) most = std::max(most, rows(pair));
  return most;
}

void GradientTiles::load(std::int64_t pair, std::int64_t row0, GradientRows& block) const {
  const auto [sequence, head_k] = pair_at(a_, pair);
  const auto count = static_cast<int>(std::min<std::int64_t>(kRows, rows(pair) - row0));
  tiles_.describe(sequence, head_k, row0, count, block.rows);
  const core::Rows grad = core::rows_like_q(a_.problem, a_.inputs, d_outputs_.o, sequence.batch);
  Tiles::load_rows(sequence.q, block.rows, a_.dim, block.q);
  Tiles::load_rows(grad, block.rows, a_.dim_v, block.d_o);
  block.finite =
      tiles_.all_finite(block.q, count, a_.dim) && tiles_.all_finite(block.d_o, count, a_.dim_v);
  block.lse = lse(pair) + row0;
  block.delta = delta(pair) + row0;
  block.weight = weight_ == nullptr ? nullptr : weight(pair) + row0;
}

void GradientTiles::value_gradients(const GradientRows& block, const Keys& keys,
                                    expr::Coverage coverage, const Tile& t) const {
  const int count = block.rows.count, columns = whole_lines(keys.keys);
  tiles_.scores(block.rows, block.q, keys, coverage, t);
  tiles_.verbs().probabilities(t.s, count, columns, block.lse);
  for (int r = 0; block.weight != nullptr && r < count; ++r) {
    if (block.weight[r] == 1) continue;
    for (int j = 0; j < columns; ++j) t.s[r * kTileLd + j] *= block.weight[r];
  }
  tiles_.verbs().multiply({.a = block.d_o,
                           .a_row = leading_dim_f64(a_.dim_v),
                           .a_step = 1,
                           .b = keys.v_t,
                           .b_row = kTileLd,
                           .c = t.ds,
                           .c_row = kTileLd,
                           .rows = count,
                           .columns = columns,
                           .depth = a_.dim_v});
  if (a_.has_dropout()) {
    tiles_.draw_dropout(block.rows, keys, t);
    Tiles::drop(block.rows, keys, t, tiles_.dropout_scale(), t.ds);
  }
  tiles_.verbs().score_gradient(t.s, t.ds, count, columns, block.delta);
  if (a_.has_dropout()) Tiles::drop(block.rows, keys, t, 1, t.s);
}

void GradientTiles::through_score(const GradientRows& block, const Keys& keys,
                                  const Tile& t) const {
  if (!has_derivative_) return;
  for (int r = 0; r < block.rows.count; ++r) {
    double* const ds = t.ds + r * kTileLd;
    const RowResult slope =
        evaluate_row(derivative_, tiles_.point(block.rows, keys, r, t.raw + r * kTileLd), t.values);
    // The slope of an element of weight 0 may be infinite or NaN.
    for (int j = 0; j < keys.keys; ++j) ds[j] = ds[j] == 0 ? 0 : ds[j] * slope.number(j);
  }
}

}  // namespace attn::cpu::f64
