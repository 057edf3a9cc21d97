#include "cpu/listed_keys.hpp"

#include <limits>

namespace attn::cpu {

void modify_listed(const Attention& a, const QueryBlock& q, const ListedKeys& keys,
                   TileScratch& t) {
  const int rows = a.ops.rows;
  if (a.has_score() || a.has_mask()) {
    core::for_key_runs(keys.key, keys.count, [&](int first, int count, std::int32_t key) {
      const expr::TileContext context = a.expression_context(q, key, count, t);
      float* const s = t.s + std::ptrdiff_t{first} * rows;
      if (a.has_score()) a.ops.evaluate_score(a.score(), context, s);
      if (a.has_mask()) a.ops.apply_mask(a.mask(), context, s);
    });
  }
  for (int j = 0; j < keys.count && !keys.all; ++j) {
    if (keys.key[j] >= 0) continue;
    std::fill_n(t.s + std::ptrdiff_t{j} * rows, rows, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace attn::cpu
