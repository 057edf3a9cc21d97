// Tiles of the score matrix: their sizes by the paper's rule, and which of them a mask leaves.
#pragma once

#include <cstdint>
#include <functional>

#include "attn/plan.hpp"

namespace attn::traffic {

struct Blocks {
  std::int64_t q = 0, k = 0;  // B_r, B_c: rows of a Q block, keys of a K, V block
  bool operator==(const Blocks&) const = default;
};

// FlashAttention, algorithm 1, line 1: B_c = ceil(M / 4 d) and B_r = min(B_c, d) for a fast memory
// of M elements of the problem's dtype, d the larger of head_dim and head_dim_v. The block that
// stays is the one of M / 4 d: of Q in the forward pass of FlashAttention-2, of K, V elsewhere. At
// least 1, at most the sequence. M = 100 KB, d = 64, f32: B_c = 100, B_r = 64.
Blocks paper_blocks(const Problem& problem, Phase phase, Algorithm algorithm,
                    std::int64_t fast_bytes);

// The tiles that an algorithm works on, of every query head of every sequence.
struct TileSums {
  double tiles = 0;     // all there are
  double visited = 0;   // worked on
  double rows = 0;      // of the visited ones, summed
  double keys = 0;      // likewise
  double elements = 0;  // likewise, rows times keys
};

// Whether the algorithm skips tiles that the mask proves empty: FlashAttention-2 and block-sparse
// do, standard attention and FlashAttention compute every score and mask it.
bool skips_empty_tiles(Algorithm algorithm);

// Sequences have their full lengths. Buffers of the mask must have data; without, each tile counts
// as visible. Cost: up to some microseconds a tile.
TileSums tile_sums(const Problem& problem, Algorithm algorithm, const Blocks& blocks);

// Whether the mask leaves something of rows [row, row + rows) and keys [key, key + keys).
bool visible(const Problem& problem, std::int64_t batch, std::int64_t head, std::int64_t row,
             std::int64_t rows, std::int64_t key, std::int64_t keys);

// Calls visit(batch, head, weight) for heads that together stand for all: `weight` heads have the
// same tiles.
void for_each_head(const Problem& problem,
                   const std::function<void(std::int64_t, std::int64_t, double)>& visit);

}  // namespace attn::traffic
