// Partial results over disjoint ranges of keys, and their merge: with M = max_p m_p,
//   l = sum_p 2^(c (m_p - M)) l_p,   O = sum_p 2^(c (m_p - M)) O_p   (unnormalised).
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/attention.hpp"
#include "cpu/workspace.hpp"

namespace attn::cpu {

// A partial result of `rows` rows: those of a Q block, or as many as there are, if few.
struct Partial {
  float* m = nullptr;    // [rows]
  float* l = nullptr;    // [rows]
  float* o_t = nullptr;  // [dim_v][rows]; holds anything where l is 0 in all rows
};
inline bool is_empty(const float* l, int rows) {
  return std::all_of(l, l + rows, [](float x) { return x == 0; });
}

// [count] partials in one block of memory.
class Partials {
 public:
  Partials(Workspace& workspace, core::Size count, int dim_v, int rows)
      : stride_(bytes_each(dim_v, rows).bytes()),
        rows_(rows),
        memory_(workspace.take(count * stride_, "partial results of the splits")) {}
  int rows() const { return rows_; }
  static core::Size bytes_each(int dim_v, int rows) {
    return aligned(core::Size(dim_v + 2) * rows * sizeof(float));
  }

  Partial operator[](std::int64_t i) const {
    auto* base = reinterpret_cast<float*>(memory_ + stride_ * static_cast<std::size_t>(i));
    return {base, base + rows_, base + 2 * rows_};
  }

 private:
  std::size_t stride_;
  int rows_;
  std::byte* memory_;
};

// Saves m, l and O of all rows of a Q block.
inline void save_partial(const Attention& a, const QueryBlock& q, const float* o_t,
                         const Partial& p) {
  std::copy_n(q.m, a.ops.rows, p.m);
  std::copy_n(q.l, a.ops.rows, p.l);
  if (!is_empty(q.l, a.ops.rows)) std::copy_n(o_t, a.dim_v * a.ops.rows, p.o_t);
}
// Saves that no row sees a key.
inline void save_nothing(const Attention& a, const Partial& p) {
  std::fill_n(p.m, a.ops.rows, kMaximumStart);
  std::fill_n(p.l, a.ops.rows, 0.0f);
}

// q.m, q.l, q.o_t <- the merge of partials first, first + step, ... (count of them), in that order;
// as of a row without visible keys where the partials have no row.
inline void merge_partials(const Attention& a, const Partials& partials, std::int64_t first,
                           std::int64_t step, int count, QueryBlock& q) {
  const int rows = partials.rows();
  const int lanes = a.ops.rows;
  a.start_rows(q);
  for (int i = 0; i < count; ++i) {
    const Partial p = partials[first + i * step];
    for (int r = 0; r < rows; ++r) q.m[r] = std::max(q.m[r], p.m[r]);
  }
  for (int i = 0; i < count; ++i) {
    const Partial p = partials[first + i * step];
    if (is_empty(p.l, rows)) continue;
    float weight[kMaxRows];
    for (int r = 0; r < rows; ++r) {
      // The floor keeps -FLT_MAX, of a part without visible keys, times c from overflowing.
      weight[r] = std::exp2(std::max(p.m[r] - q.m[r], -1e30f) * a.c());
      q.l[r] += weight[r] * p.l[r];
    }
    for (int d = 0; d < a.dim_v; ++d) {
      for (int r = 0; r < rows; ++r) q.o_t[d * lanes + r] += weight[r] * p.o_t[d * rows + r];
    }
  }
}

}  // namespace attn::cpu
