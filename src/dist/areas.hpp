// How many (query, key) pairs are visible between chunks of queries and chunks of keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attn/dist.hpp"
#include "dist/sides.hpp"

namespace attn::dist {

// Chunk i of a line is [cuts[i], cuts[i + 1]).
using Cuts = std::vector<std::int64_t>;
Cuts equal_cuts(std::int64_t rows, std::int64_t chunk);
inline std::size_t chunks(const Cuts& cuts) { return cuts.size() - 1; }

struct Areas {
  // Each pair with a chunk of keys in [begin, end) has this area, which is above 0.
  struct Run {
    std::size_t begin, end;
    double area;
    std::size_t size() const { return end - begin; }
  };
  // Of each chunk of queries, over batch and query heads: ascending, apart. Other pairs have 0.
  std::vector<std::vector<Run>> rows{};
};

// Ranges of chunks are bounded first and halved where the mask is mixed, a pair of chunks down to
// tiles of 128 x 128, larger ones of chunks above 16384 rows, in which a mixed mask counts as full:
// an area is never too small, and 0 only where the mask hides everything. `mask` empty: every pair
// is full.
Areas count_areas(const Problem& problem, const expr::Expr& mask, const expr::Bindings& buffers,
                  const Side& q, const Side& k, const Cuts& cuts_q, const Cuts& cuts_k);

}  // namespace attn::dist
