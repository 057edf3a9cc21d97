#include "cpu/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/philox.hpp"
#include "core/problem/dropout_state.hpp"
#include "core/problem/max_logit.hpp"
#include "core/tensor/element.hpp"
#include "cpu/workspace.hpp"

namespace attn::cpu {

namespace {

std::pmr::vector<core::Sequence> all_sequences(const Problem& p, const Inputs& in,
                                               Workspace& workspace) {
  std::pmr::vector<core::Sequence> all(&workspace);
  all.reserve(static_cast<std::size_t>(p.batch));
  for (std::int64_t b = 0; b < p.batch; ++b) all.push_back(core::sequence(p, in, b));
  return all;
}

}  // namespace

Attention::Attention(const Problem& p, const Inputs& in, const TileOps& table,
                     const Expressions& compiled, Workspace& workspace)
    : Attention(p, in, table, compiled, workspace, all_sequences(p, in, workspace)) {}

Attention::Attention(const Problem& p, const Inputs& in, const TileOps& table,
                     const Expressions& compiled, Workspace& workspace,
                     std::pmr::vector<core::Sequence> its_sequences)
    : problem(p),
      inputs(in),
      ops(table),
      group(static_cast<int>(p.heads_q / p.heads_k)),
      dim(static_cast<int>(p.head_dim)),
      dim_v(static_cast<int>(p.head_dim_v)),
      type_q(core::type_of_q(p)),
      type_k(core::type_of_k(p)),
      type_v(core::type_of_v(p)),
      scale(static_cast<float>(p.scale())),
      programs(compiled),
      sequences(std::move(its_sequences)) {
  has_mask_ = !p.mask.empty();
  has_score_ = !p.score.empty();
  // f32 operands: softmax_scale is folded into Q^T once a block, so scores are in natural units.
  // bf16 operands cannot be scaled without rounding, so the expression or, without one, the softmax
  // multiplies.
  const bool fold = ops.operand == DType::f32;
  if (fold) q_scale_ = scale;
  if (!fold && !has_score_) {
    c_ = scale * kLog2e;
    natural_ = p.scale();
  }
  if (has_mask_) mask_ = bind(programs.mask(), workspace);
  if (has_score_) score_ = bind(programs.score(), workspace);
  if (p.dropout.probability > 0) {
    dropout_ = core::with_state(p.dropout, in.rng_state);
    dropout_threshold_ = core::dropout_threshold(p.dropout.probability);
    dropout_scale_ = static_cast<float>(core::dropout_scale(dropout_threshold_));
  }
}

expr::BoundProgram Attention::bind(const expr::Program& program, Workspace& workspace) const {
  auto* views = workspace.take_array<expr::BufferView>(program.buffers.size());
  return expr::bind(program, inputs.buffers, views);
}

expr::Tile Attention::tile(const core::Sequence& sequence, int head_k, std::int64_t row0,
                           std::int64_t count) const {
  const std::int64_t last = row0 + count - 1;
  expr::Tile t;
  t.query_min = static_cast<std::int32_t>(row0 / group);
  t.query_max = static_cast<std::int32_t>(last / group);
  const bool one_query = t.query_min == t.query_max;
  t.head_min = head_k * group + (one_query ? static_cast<std::int32_t>(row0 % group) : 0);
  t.head_max = head_k * group + (one_query ? static_cast<std::int32_t>(last % group) : group - 1);
  t.batch = sequence.batch;
  t.seqlen_q = sequence.length_q;
  t.seqlen_k = sequence.length_k;
  return t;
}

expr::Coverage Attention::coverage(expr::Tile rows, int key0, int keys) const {
  if (!has_mask_) return expr::Coverage::full;
  rows.key_min = key0;
  rows.key_max = key0 + keys - 1;
  return expr::classify(problem.mask, rows, inputs.buffers);
}

void Attention::place_query_block(const core::Sequence& sequence, int head_k, std::int64_t row0,
                                  int count, QueryBlock& block) const {
  block.count = count;
  block.tile = tile(sequence, head_k, row0, count);
  // Rows are told queries and heads without divisions, on which a tiny call would spend a tenth of
  // its time.
  std::int32_t query = block.tile.query_min;
  int head = head_k * group + static_cast<int>(row0 - std::int64_t{query} * group);
  if (group == 1) {
    for (int r = 0; r < ops.rows; ++r) block.query[r] = query + std::min(r, count - 1);
    std::fill_n(block.head, ops.rows, head);
  } else {
    for (int r = 0; r < ops.rows; ++r) {
      block.query[r] = query;
      block.head[r] = head;
      if (r + 1 < count && ++head == (head_k + 1) * group) {
        head = head_k * group;
        ++query;
      }
    }
  }
}

void Attention::describe_query_block(const core::Sequence& sequence, int head_k, std::int64_t row0,
                                     int count, QueryBlock& block) const {
  place_query_block(sequence, head_k, row0, count, block);
  const auto first_head = static_cast<std::uint32_t>(sequence.batch * problem.heads_q);
  for (int r = 0; r < ops.rows; ++r) {
    block.batch_head[r] = first_head + static_cast<std::uint32_t>(block.head[r]);
  }
  std::fill_n(block.m, ops.rows, kMaximumStart);
  std::fill_n(block.l, ops.rows, 0.0f);
}

void Attention::start_rows(QueryBlock& block) const {
  std::fill_n(block.m, ops.rows, kMaximumStart);
  std::fill_n(block.l, ops.rows, 0.0f);
  std::fill_n(block.o_t, dim_v * ops.rows, 0.0f);
}

void Attention::load_query_block(const core::Sequence& sequence, int head_k, std::int64_t row0,
                                 int count, QueryBlock& block) const {
  describe_query_block(sequence, head_k, row0, count, block);
  pack_query_block(sequence, block);
}

void Attention::pack_query_block(const core::Sequence& sequence, QueryBlock& block) const {
  const std::byte* row[kMaxRows];
  for (int r = 0; r < block.count; ++r) row[r] = sequence.q.row(block.query[r], block.head[r]);
  float scale[kMaxRows];
  ops.pack_q(row, block.count, dim, type_q, scales_of_q(sequence, block, scale), q_scale_,
             block.q_t);
}

const float* Attention::scales_of_q(const core::Sequence& sequence, const QueryBlock& block,
                                    float* scale) const {
  if (!inputs.scale_q.given()) return nullptr;
  const core::Scales scales = core::Scales::of_q(problem, inputs, sequence.batch);
  for (int r = 0; r < block.count; ++r) scale[r] = scales.at(block.query[r], block.head[r]);
  return scale;
}

const float* Attention::scales(const Tensor& of, const core::Sequence& sequence, int head_k,
                               int key0, int keys, float* scale) const {
  if (!of.given()) return nullptr;
  const core::Scales scales(problem, inputs, of, sequence.batch);
  for (int j = 0; j < keys; ++j) scale[j] = scales.at(key0 + j, head_k);
  return scale;
}

void Attention::load_key_block(const core::Sequence& sequence, int head_k, int key0, int keys,
                               KeyBlock& block) const {
  block.key0 = key0;
  block.keys = keys;
  const std::byte* row[kBlockK];
  float scale[kBlockK];
  if (block.k != nullptr) {
    for (int j = 0; j < keys; ++j) row[j] = sequence.k.row(key0 + j, head_k);
    ops.pack_k(row, keys, dim, type_k, scales(inputs.scale_k, sequence, head_k, key0, keys, scale),
               block.k);
  }
  if (block.v != nullptr) {
    for (int j = 0; j < keys; ++j) row[j] = sequence.v.row(key0 + j, head_k);
    ops.pack_v(row, keys, dim_v, type_v,
               scales(inputs.scale_v, sequence, head_k, key0, keys, scale), block.v);
  }
}

void Attention::scores(const QueryTile* tile, int tiles, const void* k, int key0, int keys) const {
  ScoreTile product[kMaxRegisterBlocks];
  for (int i = 0; i < tiles; ++i) {
    product[i] = {tile[i].q->q_t, tile[i].t->s, tile[i].t->row_max};
  }
  ops.scores(product, tiles, k, keys, dim);
  for (int i = 0; i < tiles; ++i) {
    TileScratch& t = *tile[i].t;
    if (modify(*tile[i].q, key0, keys, tile[i].coverage, t)) ops.row_max(t.s, keys, t.row_max);
  }
}

bool Attention::modify(const QueryBlock& q, int key0, int keys, expr::Coverage coverage,
                       TileScratch& t) const {
  const bool masked = coverage == expr::Coverage::mixed;
  if (!has_score_ && !masked) return false;
  const expr::TileContext context = expression_context(q, key0, keys, t);
  if (has_score_) ops.evaluate_score(score_, context, t.s);
  if (masked) ops.apply_mask(mask_, context, t.s);
  return true;
}

TileScratch Attention::tile_scratch() const {
  TileScratch t;
  t.operand = ops.operand;
  t.expression_floats = programs.scratch_floats();
  return t;
}

expr::TileContext Attention::expression_context(const QueryBlock& q, int key0, int keys,
                                                const TileScratch& t) const {
  expr::TileContext context;
  context.query = q.query;
  context.head = q.head;
  context.rows = ops.rows;
  context.key0 = key0;
  context.keys = keys;
  context.batch = q.tile.batch;
  context.seqlen_q = q.tile.seqlen_q;
  context.seqlen_k = q.tile.seqlen_k;
  context.scratch = t.expression;
  return context;
}

void Attention::draw_dropout(const std::int32_t* query, const std::uint32_t* batch_head,
                             std::int32_t batch, int key0, int keys, std::uint32_t* keep) const {
  DropoutTile tile{dropout_.seed, dropout_.offset, dropout_threshold_, query, batch_head};
  if (places == nullptr) return ops.dropout_keep(tile, key0, keys, keep);
  alignas(kAlignment) std::int32_t whole[kMaxRows];
  for (int r = 0; r < ops.rows; ++r) whole[r] = core::place_of(places->queries(batch), query[r]);
  tile.query = whole;
  places->for_key_runs(batch, key0, keys, [&](int first, int count, int key) {
    // Bits are drawn for pairs of keys.
    std::uint32_t bits[kBlockK + 2];
    const int odd = key % 2;
    ops.dropout_keep(tile, key - odd, count + odd, bits);
    std::copy_n(bits + odd, count, keep + first);
  });
}

const std::uint32_t* Attention::keep(const QueryBlock& q, int key0, int keys,
                                     TileScratch& t) const {
  if (dropout_threshold_ == 0) return nullptr;
  draw_dropout(q.query, q.batch_head, q.tile.batch, key0, keys, t.keep);
  return t.keep;
}

LseRest::LseRest(const Attention& a, const core::Sequence& sequence) : given_(a.lse_rest.given()) {
  if (given_) rows_ = core::lse_rows(a.problem, a.inputs, a.lse_rest, sequence.batch);
}

void LseRest::store(std::int32_t query, std::int32_t head, double m, double l) const {
  if (!given_) return;
  const double log = std::log(l), lse = m + log;
  *reinterpret_cast<double*>(rows_.row(query, head)) = std::isfinite(lse) ? m - lse + log : 0;
}

void Attention::store_block(const core::Sequence& sequence, QueryBlock& block,
                            const Outputs& outputs, bool normalized) const {
  alignas(kAlignment) float factor[kMaxRows] = {};
  std::byte* row[kMaxRows] = {};
  const core::Rows o = core::rows_like_q(problem, inputs, outputs.o, sequence.batch);
  const bool has_lse = outputs.lse.given();
  const core::Rows lse = core::lse_rows(problem, inputs, outputs.lse, sequence.batch);
  const LseRest rest(*this, sequence);
  const core::MaxLogit max_logit(outputs.max_logit);
  const std::size_t row_bytes = static_cast<std::size_t>(dim_v) * size_of(outputs.o.dtype);
  for (int r = 0; r < block.count; ++r) {
    row[r] = o.row(block.query[r], block.head[r]);
    prefetch_row(row[r], row_bytes);  // while the logarithms are taken
  }
  for (int r = 0; r < block.count; ++r) {
    double m = double{block.m[r]} * natural_;
    double l = block.l[r];
    double rescale = 1;
    double empty_lse = -std::numeric_limits<double>::infinity();
    const bool empty = l == 0;  // the row sees no key: O is 0, whatever the sink
    // m has left out scores that are NaN.
    if (!empty) max_logit.raise(block.head[r], std::isnan(l) ? l : m);
    if (problem.sink) {
      const double sink = static_cast<const float*>(inputs.sink.data)[block.head[r]];
      const double maximum = std::max(m, sink);
      rescale = std::exp(m - maximum);
      l = l * rescale + std::exp(sink - maximum);
      m = maximum;
      empty_lse = sink;
    }
    const double normalizer = normalized ? rescale * double{block.l[r]} : rescale;
    factor[r] = empty ? 0.0f : static_cast<float>(normalizer / l * double{dropout_scale_});
    if (has_lse) {
      // In f64 where a part of a prefix's keys is to be merged.
      core::store_element(lse.row(block.query[r], block.head[r]), outputs.lse.dtype,
                          empty ? empty_lse : m + std::log(l));
      rest.store(block.query[r], block.head[r], m, empty ? 1 : l);
    }
  }
  ops.unpack_o(block.o_t, dim_v, factor, outputs.o.dtype, row, block.count);
}

void Attention::store_query_rows(const core::Rows& rows, const QueryBlock& block, const float* x_t,
                                 int width, float factor) const {
  alignas(kAlignment) float factors[kMaxRows];
  std::byte* row[kMaxRows];
  std::fill_n(factors, kMaxRows, factor);
  for (int r = 0; r < block.count; ++r) row[r] = rows.row(block.query[r], block.head[r]);
  ops.unpack_o(x_t, width, factors, problem.dtype, row, block.count);
}

void Attention::store_key_rows(const Tensor& tensor, const core::Sequence& sequence, int head_k,
                               int key0, int keys, const float* x, int width, float factor) const {
  if (!tensor.given()) return;
  const core::Rows rows = core::rows_like_k(problem, inputs, tensor, sequence.batch);
  const std::size_t row_bytes = static_cast<std::size_t>(width) * size_of(tensor.dtype);
  for (int j = 0; j < keys; ++j) {
    if (j + kRowsAhead < keys) prefetch_row(rows.row(key0 + j + kRowsAhead, head_k), row_bytes);
    ops.store_row(x + std::ptrdiff_t{j} * leading_dim(width), width, factor, tensor.dtype,
                  rows.row(key0 + j, head_k));
  }
}

namespace {

void zero_rows(const core::Rows& rows, std::int64_t begin, std::int64_t end, std::int64_t heads,
               std::size_t bytes) {
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t h = 0; h < heads; ++h) std::memset(rows.row(i, h), 0, bytes);
  }
}

// Visits every sequence whose unused rows are cleared (core::cleared_sequences).
template <class Visit>
void for_cleared(const Attention& a, const Visit& visit) {
  for (const core::Sequence& sequence : a.sequences) visit(sequence);
  if (a.sequences.empty()) visit(core::sequence(a.problem, a.inputs, 0));
}

}  // namespace

void Attention::clear_unused_rows(const Outputs& outputs) const {
  const std::size_t row_bytes = static_cast<std::size_t>(dim_v) * size_of(outputs.o.dtype);
  for_cleared(*this, [&](const core::Sequence& q) {
    zero_rows(core::rows_like_q(problem, inputs, outputs.o, q.batch), q.length_q, q.capacity_q,
              problem.heads_q, row_bytes);
    if (!outputs.lse.given()) return;
    for (std::int64_t h = 0; h < problem.heads_q; ++h) {
      const core::LseRow lse = core::lse_row(problem, inputs, outputs.lse, q.batch, h);
      for (std::int64_t i = q.length_q; i < q.capacity_q; ++i) {
        core::store_element(lse.base + i * lse.stride, outputs.lse.dtype,
                            -std::numeric_limits<double>::infinity());
      }
    }
  });
}

void Attention::clear_unused_gradients(const Gradients& gradients) const {
  const auto bytes = [](const Tensor& t, int width) {
    return static_cast<std::size_t>(width) * size_of(t.dtype);
  };
  for_cleared(*this, [&](const core::Sequence& s) {
    if (gradients.dq.given()) {
      zero_rows(core::rows_like_q(problem, inputs, gradients.dq, s.batch), s.length_q, s.capacity_q,
                problem.heads_q, bytes(gradients.dq, dim));
    }
    if (gradients.dk.given()) {
      zero_rows(core::rows_like_k(problem, inputs, gradients.dk, s.batch), s.length_k, s.capacity_k,
                problem.heads_k, bytes(gradients.dk, dim));
    }
    if (gradients.dv.given()) {
      zero_rows(core::rows_like_k(problem, inputs, gradients.dv, s.batch), s.length_k, s.capacity_k,
                problem.heads_k, bytes(gradients.dv, dim_v));
    }
  });
}

}  // namespace attn::cpu
