#include "cpu/f64/tiles.hpp"

#include <algorithm>
#include <limits>

namespace attn::cpu::f64 {
namespace {

const double* row_of(const core::Rows& rows, std::int64_t i, std::int64_t head) {
  return reinterpret_cast<const double*>(rows.row(i, head));
}

// to[0, leading dimension) <- row[0, dim), then zeros.
void copy_row(const double* row, int dim, double* to) {
  std::copy_n(row, dim, to);
  std::fill_n(to + dim, leading_dim_f64(dim) - dim, 0.0);
}

}  // namespace

Tile Tiles::scratch(const Expressions& programs) {
  Tile t;
  t.expression_floats = programs.scratch_floats();
  t.row_values = programs.most_instructions() * expr::kMaxTileKeys;
  return t;
}

void Tiles::describe(const core::Sequence& sequence, int head_k, std::int64_t row0, int count,
                     QueryRows& q) const {
  q.count = count;
  q.tile = a_.tile(sequence, head_k, row0, count);
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = row0 + std::min(r, count - 1);
    q.query[r] = static_cast<std::int32_t>(row / a_.group);
    q.head[r] = head_k * a_.group + static_cast<std::int32_t>(row % a_.group);
    q.batch_head[r] = static_cast<std::uint32_t>(sequence.batch * a_.problem.heads_q + q.head[r]);
  }
}

void Tiles::load_rows(const core::Rows& rows, const QueryRows& q, int dim, double* to) {
  for (int r = 0; r < q.count; ++r, to += leading_dim_f64(dim)) {
    copy_row(row_of(rows, q.query[r], q.head[r]), dim, to);
  }
}

void Tiles::load_keys(const core::Sequence& sequence, int head_k, int key0, int keys, bool may_hide,
                      Keys& block) const {
  block.key0 = key0;
  block.keys = keys;
  block.listed = nullptr;
  for (int j = 0; j < keys; ++j) {
    block.k_row[j] = row_of(sequence.k, key0 + j, head_k);
    block.v_row[j] = row_of(sequence.v, key0 + j, head_k);
  }
  load_rows_of_keys(may_hide, block);
}

void Tiles::load_keys(const core::Sequence& sequence, int head_k, const ListedKeys& keys,
                      bool may_hide, Keys& block) const {
  block.key0 = 0;
  block.keys = keys.count;
  block.listed = keys.key;
  const auto find = [&](const core::Rows& rows, const double** row) {
    const std::byte* at[kBlockK];
    keys.find(rows, head_k, at);
    for (int j = 0; j < keys.count; ++j) row[j] = reinterpret_cast<const double*>(at[j]);
  };
  find(sequence.k, block.k_row);
  find(sequence.v, block.v_row);
  load_rows_of_keys(may_hide, block);
}

void Tiles::load_rows_of_keys(bool may_hide, Keys& block) const {
  const int keys = block.keys;
  block.finite = true;
  if (block.in_place) {
    block.finite = !may_hide;  // looking would take as long as what it might save
    return;
  }
  const auto load = [&](const double* const* row, int dim, double* natural, double* transposed) {
    if (natural != nullptr) {
      for (int j = 0; j < keys; ++j) copy_row(row[j], dim, natural + j * leading_dim_f64(dim));
      if (may_hide) block.finite = block.finite && all_finite(natural, keys, dim);
    }
    if (transposed == nullptr) return;
    verbs_.transpose(row, keys, dim, transposed, kTileLd);
    for (int d = 0; d < dim && keys < whole_lines(keys); ++d) {
      std::fill_n(transposed + d * kTileLd + keys, whole_lines(keys) - keys, 0.0);
    }
  };
  load(block.k_row, a_.dim, block.k, block.k_t);
  load(block.v_row, a_.dim_v, block.v, block.v_t);
}

RowPoint Tiles::point(const QueryRows& q, int key0, int keys, int row, const double* scores) {
  return {.query = q.query[row],
          .head = q.head[row],
          .key0 = key0,
          .keys = keys,
          .batch = q.tile.batch,
          .seqlen_q = q.tile.seqlen_q,
          .seqlen_k = q.tile.seqlen_k,
          .score = scores};
}

namespace {

// Calls visit(first, count, key) for each run of neighbouring keys: of those of a sequence one.
template <class Visit>
void for_runs(const Keys& keys, const Visit& visit) {
  if (keys.listed == nullptr) return visit(0, keys.keys, keys.key0);
  core::for_key_runs(keys.listed, keys.keys, visit);
}

}  // namespace

void Tiles::scores(const QueryRows& q, const double* q_rows, const Keys& keys,
                   expr::Coverage coverage, const Tile& t) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int columns = whole_lines(keys.keys);
  if (keys.in_place) {
    for (int r = 0; r < q.count; ++r) {
      verbs_.dots(q_rows + r * leading_dim_f64(a_.dim), keys.k_row, keys.keys, a_.dim,
                  a_.problem.scale(), t.s + r * kTileLd);
    }
  } else {
    verbs_.multiply({.a = q_rows,
                     .a_row = leading_dim_f64(a_.dim),
                     .a_step = 1,
                     .b = keys.k_t,
                     .b_row = kTileLd,
                     .c = t.s,
                     .c_row = kTileLd,
                     .rows = q.count,
                     .columns = columns,
                     .depth = a_.dim,
                     .scale = a_.problem.scale()});
  }
  for (int r = 0; r < q.count && a_.has_score(); ++r) {
    double* const s = t.s + r * kTileLd;
    double* const raw = t.raw + r * kTileLd;
    std::copy_n(s, keys.keys, raw);
    for_runs(keys, [&](int first, int count, int key) {
      const RowResult value =
          evaluate_row(a_.score(), point(q, key, count, r, raw + first), t.values);
      for (int j = 0; j < count; ++j) s[first + j] = value.number(j);
    });
  }
  if (coverage == expr::Coverage::mixed) apply_mask(q, keys, t);
  for (int r = 0; r < q.count; ++r) {
    std::fill_n(t.s + r * kTileLd + keys.keys, columns - keys.keys, -kInfinity);
  }
}

void Tiles::apply_mask(const QueryRows& q, const Keys& keys, const Tile& t) const {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  expr::TileContext context;
  context.query = q.query;
  context.head = q.head;
  context.rows = kRows;
  context.batch = q.tile.batch;
  context.seqlen_q = q.tile.seqlen_q;
  context.seqlen_k = q.tile.seqlen_k;
  context.scratch = t.expression;
  std::fill_n(t.visible, keys.keys * kRows, keys.listed == nullptr ? 0.0f : kHidden);
  for_runs(keys, [&](int first, int count, int key) {
    context.key0 = key;
    context.keys = count;
    float* const visible = t.visible + first * kRows;
    std::fill_n(visible, count * kRows, 0.0f);
    if (a_.has_mask()) a_.ops.apply_mask(a_.mask(), context, visible);
  });
  for (int r = 0; r < q.count; ++r) {
    double* const s = t.s + r * kTileLd;
    for (int j = 0; j < keys.keys; ++j) {
      const float hidden = t.visible[j * kRows + r];
      s[j] = hidden == 0 ? s[j] : static_cast<double>(hidden);
    }
  }
}

void Tiles::draw_dropout(const QueryRows& q, const Keys& keys, const Tile& t) const {
  std::uint32_t bits[kBlockK];
  std::fill_n(t.keep, keys.keys, 0u);
  for (int r = 0; r < kRows; r += a_.ops.rows) {
    a_.draw_dropout(q.query + r, q.batch_head + r, q.tile.batch, keys.key0, keys.keys, bits);
    const std::uint32_t lanes = a_.ops.rows == kRows ? ~0u : (1u << a_.ops.rows) - 1;
    for (int j = 0; j < keys.keys; ++j) t.keep[j] |= (bits[j] & lanes) << r;
  }
}

void Tiles::drop(const QueryRows& q, const Keys& keys, const Tile& t, double factor, double* x) {
  for (int r = 0; r < q.count; ++r, x += kTileLd) {
    for (int j = 0; j < keys.keys; ++j) x[j] = (t.keep[j] >> r & 1) != 0 ? factor * x[j] : 0;
  }
}

}  // namespace attn::cpu::f64
