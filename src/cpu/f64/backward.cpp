// FlashAttention-2, algorithm 2, in double. Tasks are (sequence, K, V head, range of keys): one
// holds a chunk of keys with its dK and dV while the Q blocks pass by, and adds dQ to memory of its
// range; the ranges are added in order.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/ceil_div.hpp"
#include "core/tensor/element.hpp"
#include "cpu/budgets.hpp"
#include "cpu/f64/f64.hpp"
#include "cpu/f64/gradients.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu::f64 {
namespace {

// K blocks of a chunk: each Q block is read once for all of them. K, K^T, V^T, dK and dV of 128
// keys are 340 KB at d = 64.
constexpr int kChunkBlocks = 2;

struct ChunkBlock {
  Keys keys;
  double *dk = nullptr, *dv = nullptr;  // [kBlockK][leading dimension]
};

struct Scratch {
  int dim = 0, dim_v = 0;
  Tile tile;
  GradientRows* rows = nullptr;
  ChunkBlock* blocks = nullptr;  // [kChunkBlocks]

  void carve(Carver& c) {
    tile.carve(c);
    c.take(rows, 1);
    c.take(blocks, kChunkBlocks);
    GradientRows counted_rows;
    (rows == nullptr ? counted_rows : *rows).carve(c, dim, dim_v);
    ChunkBlock counted;
    const auto k = std::size_t{kBlockK} * static_cast<std::size_t>(leading_dim_f64(dim));
    const auto v = std::size_t{kBlockK} * static_cast<std::size_t>(leading_dim_f64(dim_v));
    for (int i = 0; i < kChunkBlocks; ++i) {
      ChunkBlock& block = blocks == nullptr ? counted : blocks[i];
      block.keys.v = nullptr;
      block.keys.in_place = false;
      c.take(block.keys.k, k);
      c.take(block.keys.k_t, static_cast<std::size_t>(dim) * kTileLd);
      c.take(block.keys.v_t, static_cast<std::size_t>(dim_v) * kTileLd);
      c.take(block.dk, k);
      c.take(block.dv, v);
    }
  }
};

constexpr auto kOnes = [] {
  std::array<double, kBlockK> ones{};
  ones.fill(1);
  return ones;
}();
static_assert(kRows <= kBlockK);

// dQ of a wave of pairs: of each range of keys and each row.
struct QueryGradients {
  double* memory = nullptr;
  std::int64_t first_pair = 0, splits = 0, rows = 0, ld = 0;  // rows: of a pair at most

  double* of(std::int64_t pair, std::int64_t split, std::int64_t row) const {
    return memory + (((pair - first_pair) * splits + split) * rows + row) * ld;
  }
};

class Backward {
 public:
  Backward(const Attention& a, const GradientTiles& g, const Gradients& gradients)
      : a_(a),
        g_(g),
        gradients_(gradients),
        ld_(leading_dim_f64(a.dim)),
        ld_v_(leading_dim_f64(a.dim_v)) {}

  // The pair's keys of one range.
  void run(std::int64_t pair, std::int64_t split, const QueryGradients& dq, Scratch& s) const {
    const core::Sequence& sequence = pair_at(a_, pair).sequence;
    std::fill_n(dq.of(pair, split, 0), g_.rows(pair) * ld_, 0.0);
    const KeyRange range = split_range(sequence.length_k, dq.splits, split);
    for (std::int64_t key = range.begin; key < range.end; key += kChunkBlocks * kBlockK) {
      const std::int64_t end = std::min<std::int64_t>(range.end, key + kChunkBlocks * kBlockK);
      run_chunk(pair, {key, end}, dq.of(pair, split, 0), s);
    }
  }

  // Rows [row0, row0 + kRows) of dQ: the ranges in order.
  void store_queries(std::int64_t pair, std::int64_t row0, const QueryGradients& dq) const {
    const auto [sequence, head_k] = pair_at(a_, pair);
    const core::Rows to = core::rows_like_q(a_.problem, a_.inputs, gradients_.dq, sequence.batch);
    const std::int64_t end = std::min(row0 + kRows, g_.rows(pair));
    for (std::int64_t row = row0; row < end; ++row) {
      auto* const out =
          reinterpret_cast<double*>(to.row(row / a_.group, head_k * a_.group + row % a_.group));
      for (int d = 0; d < a_.dim; ++d) {
        double sum = 0;
        for (std::int64_t split = 0; split < dq.splits; ++split) sum += dq.of(pair, split, row)[d];
        out[d] = a_.problem.scale() * sum;
      }
    }
  }

 private:
  void run_chunk(std::int64_t pair, KeyRange chunk, double* dq, Scratch& s) const {
    const auto [sequence, head_k] = pair_at(a_, pair);
    const auto first = static_cast<int>(chunk.begin), keys = static_cast<int>(chunk.end) - first;
    const int blocks = (keys + kBlockK - 1) / kBlockK;
    for (int i = 0; i < blocks; ++i) {
      ChunkBlock& block = s.blocks[i];
      g_.tiles().load_keys(sequence, head_k, first + i * kBlockK,
                           std::min(kBlockK, keys - i * kBlockK), true, block.keys);
      std::fill_n(block.dk, kBlockK * ld_, 0.0);
      std::fill_n(block.dv, kBlockK * ld_v_, 0.0);
    }
    for (std::int64_t row = 0; row < g_.rows(pair); row += kRows) {
      const std::int64_t count = std::min<std::int64_t>(kRows, g_.rows(pair) - row);
      const expr::Tile tile = a_.tile(sequence, head_k, row, count);
      const expr::Coverage coverage = a_.coverage(tile, first, keys);
      if (coverage == expr::Coverage::empty) continue;
      g_.load(pair, row, *s.rows);
      for (int i = 0; i < blocks; ++i) {
        const Keys& of = s.blocks[i].keys;
        const expr::Coverage of_block =
            coverage == expr::Coverage::full ? coverage : a_.coverage(tile, of.key0, of.keys);
        if (of_block != expr::Coverage::empty) add(s.blocks[i], of_block, dq + row * ld_, s);
      }
    }
    for (int i = 0; i < blocks; ++i) {
      const Keys& of = s.blocks[i].keys;
      store_keys(gradients_.dk, sequence, head_k, of, s.blocks[i].dk, a_.dim, a_.problem.scale());
      store_keys(gradients_.dv, sequence, head_k, of, s.blocks[i].dv, a_.dim_v,
                 g_.tiles().dropout_scale());
    }
  }

  // dV += P^T dO, dK += dS^T Q, dQ += dS K.
  void add(const ChunkBlock& block, expr::Coverage coverage, double* dq, Scratch& s) const {
    const GradientRows& rows = *s.rows;
    const Keys& keys = block.keys;
    const Tiles& tiles = g_.tiles();
    g_.value_gradients(rows, keys, coverage, s.tile);
    g_.through_score(rows, keys, s.tile);
    const auto add_rows = [&](const double* weight, const double* x, double* sum, int dim) {
      const int ld = leading_dim_f64(dim);
      tiles.verbs().multiply({.a = weight,
                              .a_row = 1,
                              .a_step = kTileLd,
                              .b = x,
                              .b_row = ld,
                              .c = sum,
                              .c_row = ld,
                              .rows = keys.keys,
                              .columns = whole_lines(dim),
                              .depth = rows.rows.count,
                              .keep = kOnes.data(),
                              .careful = !rows.finite});
    };
    if (gradients_.dv.given()) add_rows(s.tile.s, rows.d_o, block.dv, a_.dim_v);
    if (gradients_.dk.given()) add_rows(s.tile.ds, rows.q, block.dk, a_.dim);
    if (!gradients_.dq.given()) return;
    tiles.verbs().multiply({.a = s.tile.ds,
                            .a_row = kTileLd,
                            .a_step = 1,
                            .b = keys.k,
                            .b_row = ld_,
                            .c = dq,
                            .c_row = ld_,
                            .rows = rows.rows.count,
                            .columns = whole_lines(a_.dim),
                            .depth = keys.keys,
                            .keep = kOnes.data(),
                            .careful = !keys.finite});
  }

  void store_keys(const Tensor& tensor, const core::Sequence& sequence, int head_k,
                  const Keys& keys, const double* x, int dim, double factor) const {
    if (!tensor.given()) return;
    const core::Rows rows = core::rows_like_k(a_.problem, a_.inputs, tensor, sequence.batch);
    for (int j = 0; j < keys.keys; ++j, x += leading_dim_f64(dim)) {
      auto* const to = reinterpret_cast<double*>(rows.row(keys.key0 + j, head_k));
      for (int d = 0; d < dim; ++d) to[d] = factor * x[d];
    }
  }

  const Attention& a_;
  const GradientTiles& g_;
  const Gradients& gradients_;
  int ld_, ld_v_;
};

// As backward/sink.cpp.
void backward_sink(const Attention& a, const GradientTiles& g, const Tensor& d_sink) {
  const auto* const sink = static_cast<const float*>(a.inputs.sink.data);
  for (std::int64_t head = 0; head < a.problem.heads_q; ++head) {
    const double logit = sink[head];
    double sum = 0;
    for (const core::Sequence& sequence : a.sequences) {
      const std::int64_t pair = sequence.batch * a.problem.heads_k + head / a.group;
      for (std::int64_t row = head % a.group; row < g.rows(pair); row += a.group) {
        const double* const weight = g.weight(pair);
        const double lse = g.lse(pair)[row];
        // 1 of a row without keys, be the sink infinite or NaN.
        const double p = lse == logit || std::isnan(logit) ? 1 : std::exp(logit - lse);
        sum -= p * (weight == nullptr ? 1 : weight[row]) * g.delta(pair)[row];
      }
    }
    const auto size = static_cast<std::int64_t>(size_of(d_sink.dtype));
    core::store_element(static_cast<std::byte*>(d_sink.data) + head * d_sink.strides[0] * size,
                        d_sink.dtype, sum);
  }
}

Scratch sizes(const Problem& p, const Expressions& expressions) {
  Scratch s;
  s.dim = static_cast<int>(p.head_dim);
  s.dim_v = static_cast<int>(p.head_dim_v);
  s.tile = Tiles::scratch(expressions);
  return s;
}

// Pairs whose dQ is held at once.
std::int64_t wave_pairs(std::int64_t pairs, core::Size bytes_each) {
  const std::int64_t fit = kSplitBudget / std::max<std::int64_t>(1, bytes_each.value());
  return std::clamp<std::int64_t>(fit, 1, std::max<std::int64_t>(1, pairs));
}

}  // namespace

void backward(const Attention& a, const Plan& plan, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients,
              const Workers& workers) {
  Workspace& workspace = workers.workspace();
  const GradientTiles g(a, outputs, d_outputs, workers);
  if (gradients.dq.given() || gradients.dk.given() || gradients.dv.given()) {
    const WorkerScratch<Scratch> scratch(workspace, workers.count(), sizes(a.problem, a.programs));
    const Backward pass(a, g, gradients);
    QueryGradients dq{
        .splits = plan.num_splits, .rows = g.most_rows(), .ld = leading_dim_f64(a.dim)};
    const core::Size doubles = core::Size(dq.splits) * dq.rows * dq.ld;
    const std::int64_t pairs = pair_count(a), wave = wave_pairs(pairs, doubles * sizeof(double));
    dq.memory = workspace.take_array<double>(doubles * wave, "dQ of the ranges of keys");
    const std::int64_t blocks = core::ceil_div(dq.rows, kRows);
    for (std::int64_t first = 0; first < pairs; first += wave) {
      const std::int64_t count = std::min(wave, pairs - first);
      dq.first_pair = first;
      workers.parallel_for(count * dq.splits, [&](std::int64_t index, int worker) {
        Scratch s = scratch.of(worker);
        pass.run(first + index / dq.splits, index % dq.splits, dq, s);
      });
      if (!gradients.dq.given()) continue;
      workers.parallel_for(count * blocks, [&](std::int64_t index, int) {
        pass.store_queries(first + index / blocks, index % blocks * kRows, dq);
      });
    }
  }
  if (gradients.dsink.given()) backward_sink(a, g, gradients.dsink);
  if (!gradients.buffers.empty()) backward_buffers(a, g, gradients, workers);
}

core::Size backward_bytes(const Plan& plan, const Expressions& expressions) {
  const Problem& p = plan.problem;
  const core::Size pairs = core::Size(p.batch) * p.heads_k;
  const core::Size rows = core::Size(p.seqlen_q) * (p.heads_q / p.heads_k);
  const core::Size dq = rows * plan.num_splits * leading_dim_f64(static_cast<int>(p.head_dim)) * 8;
  const core::Size waves =
      dq.fits() && pairs.fits() ? dq * wave_pairs(pairs.value(), dq) : core::Size(dq);
  core::Size bytes = (pairs + 1) * 8 + 2 * (pairs * rows * 8) + waves +
                     plan.threads * WorkerScratch<Scratch>::bytes(sizes(p, expressions)) +
                     core::Size(8 * kAlignment);
  if (expressions.gradient_buffers() > 0) {
    bytes = bytes + buffer_gradient_bytes(p, expressions);
  }
  return bytes;
}

}  // namespace attn::cpu::f64
