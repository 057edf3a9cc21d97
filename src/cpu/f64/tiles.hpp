// What the f64 forward and backward passes share: rows of Q against a block of keys, in double.
// Masks are the float ones of every backend, score expressions are evaluated in double.
#pragma once

#include <cstdint>

#include "core/philox.hpp"
#include "cpu/attention.hpp"
#include "cpu/f64/row_expression.hpp"
#include "cpu/f64/verbs.hpp"
#include "cpu/listed_keys.hpp"

namespace attn::cpu::f64 {

inline constexpr int kRows = kMaxRows;  // of a Q block, on every instruction set

// Up to kRows rows of Q of a sequence and K, V head; rows as in QueryBlock.
struct QueryRows {
  int count = 0;
  expr::Tile tile;  // ranges of query and head
  // Lanes past count repeat the last row.
  alignas(64) std::int32_t query[kRows];
  alignas(64) std::int32_t head[kRows];
  alignas(64) std::uint32_t batch_head[kRows];
};

// A packed block of keys: rows as they are, [kBlockK][leading_dim_f64], or transposed, [dim]
// [kTileLd]. What a pass does not need is null. in_place: nothing is packed, and k_row and v_row
// say where each key lies.
struct Keys {
  int key0 = 0;
  const std::int32_t* listed = nullptr;  // [keys]: their own indices, or -1; null: key0, key0 + 1
  int keys = 0;
  double *k = nullptr, *k_t = nullptr, *v = nullptr, *v_t = nullptr;
  bool finite = true;  // k and v hold no infinity and no NaN; only looked at where P may be 0
  bool in_place = false;
  const double *k_row[kBlockK], *v_row[kBlockK];
};

// Scratch of one tile.
struct Tile {
  double *s = nullptr, *ds = nullptr;  // [kRows][kTileLd]: S, then P; dP, then dS
  double* raw = nullptr;               // [kRows][kTileLd]: S before the expression
  float* visible = nullptr;            // [kBlockK][kRows]: 0, and -inf where the mask hides
  std::uint32_t* keep = nullptr;       // [kBlockK], a bit a row
  float* expression = nullptr;
  RowValues values;
  std::size_t expression_floats = 0, row_values = 0;

  template <class Carver>
  void carve(Carver& c) {
    const std::size_t n = std::size_t{kRows} * kTileLd;
    c.take(s, n);
    c.take(ds, n);
    c.take(raw, n);
    c.take(visible, std::size_t{kBlockK} * kRows);
    c.take(keep, kBlockK);
    c.take(expression, expression_floats);
    c.take(values.of_double, row_values);
    c.take(values.of_float, row_values);
  }
};

class Tiles {
 public:
  explicit Tiles(const Attention& a) : a_(a), verbs_(a.ops.f64) {}

  static Tile scratch(const Expressions& programs);  // sizes only, to be carved

  void describe(const core::Sequence& sequence, int head_k, std::int64_t row0, int count,
                QueryRows& q) const;
  // to[row][leading_dim_f64(dim)] <- the rows of a tensor laid out as Q.
  static void load_rows(const core::Rows& rows, const QueryRows& q, int dim, double* to);
  // Packs keys [key0, key0 + keys) into what `block` has. may_hide: P may be 0 where K or V is
  // used.
  void load_keys(const core::Sequence& sequence, int head_k, int key0, int keys, bool may_hide,
                 Keys& block) const;

  // The same with the keys of a list, which `block` looks at.
  void load_keys(const core::Sequence& sequence, int head_k, const ListedKeys& keys, bool may_hide,
                 Keys& block) const;

  // t.s <- the scores, t.raw <- those before the expression where there is one; hidden ones, and
  // those past the keys up to a whole line, are -inf.
  void scores(const QueryRows& q, const double* q_rows, const Keys& keys, expr::Coverage coverage,
              const Tile& t) const;
  // t.keep <- the dropout bits of the tile.
  void draw_dropout(const QueryRows& q, const Keys& keys, const Tile& t) const;
  // x[row][key] <- factor x where dropout keeps it, else 0.
  static void drop(const QueryRows& q, const Keys& keys, const Tile& t, double factor, double* x);

  double dropout_scale() const {  // 1 / (1 - probability)
    return a_.has_dropout() ? core::dropout_scale(a_.dropout_threshold()) : 1;
  }
  bool may_hide(expr::Coverage coverage) const {
    return coverage == expr::Coverage::mixed || a_.has_score();
  }
  // `scores` of keys key0 to key0 + keys - 1.
  static RowPoint point(const QueryRows& q, int key0, int keys, int row, const double* scores);
  RowPoint point(const QueryRows& q, const Keys& keys, int row, const double* scores) const {
    return point(q, keys.key0, keys.keys, row, scores);
  }
  // Whether x[rows][leading_dim_f64(dim)] holds no infinity and no NaN.
  bool all_finite(const double* x, int rows, int dim) const {
    return verbs_.all_finite(x, std::ptrdiff_t{rows} * leading_dim_f64(dim));
  }
  const VerbsF64& verbs() const { return verbs_; }

 private:
  void load_rows_of_keys(bool may_hide, Keys& block) const;  // from k_row and v_row
  void apply_mask(const QueryRows& q, const Keys& keys, const Tile& t) const;

  const Attention& a_;
  const VerbsF64& verbs_;
};

}  // namespace attn::cpu::f64
