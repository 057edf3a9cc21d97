// The scores of one head cut into tiles, and what interval arithmetic proves about each.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "attn/expr.hpp"

namespace attn::explain {

using Json = nlohmann::ordered_json;

// The scores of one query head of one sequence, and the mask over them (empty: every key is seen).
struct Scores {
  expr::Expr mask{};
  expr::Bindings buffers{};
  std::int32_t batch = 0, head = 0;
  std::int32_t seqlen_q = 0, seqlen_k = 0;  // of the sequence; both at least 1

  // Queries [query, query_end) and keys [key, key_end), cut off at the lengths.
  expr::Tile tile(std::int64_t query, std::int64_t query_end, std::int64_t key,
                  std::int64_t key_end) const;
  expr::Coverage classify(const expr::Tile& tile) const;
};

// How many tiles of each coverage, and how far those that are not empty reach: a row of Q counts in
// `queries` once for each such tile that it lies in, a key in `keys`.
struct TileCounts {
  std::int64_t empty = 0, full = 0, mixed = 0;
  std::int64_t queries = 0, keys = 0;
  std::int64_t visits = 0;  // ranges of tiles that the mask was bounded over

  TileCounts& operator+=(const TileCounts& other);
  TileCounts& operator*=(std::int64_t factor);
};
Json to_json(const TileCounts& counts);  // by the names of the members; without visits

// Tile (i, j) holds queries i * block_q .. and keys j * block_k ...; the last ones may be smaller.
struct Tiling {
  std::int64_t block_q = 0, block_k = 0;
  std::int64_t tiles_q(const Scores& s) const { return (s.seqlen_q + block_q - 1) / block_q; }
  std::int64_t tiles_k(const Scores& s) const { return (s.seqlen_k + block_k - 1) / block_k; }
};

// Counts the tiles [row, row_end) x [column, column_end). Bounds of a part of a tile are within
// those of the whole, so a range of tiles that is proven at once is not looked at one by one.
// Throws Error(invalid_argument) past 2^22 visits, some 2 s.
TileCounts count_tiles(const Scores& scores, const Tiling& tiling, std::int64_t row,
                       std::int64_t row_end, std::int64_t column, std::int64_t column_end);
TileCounts count_tiles(const Scores& scores, const Tiling& tiling);

// {"block_q", "block_k", "tiles_q", "tiles_k", "group_q", "group_k": tiles of a cell each way,
// "rows", "columns", "cells": {"empty", "full": tiles of each cell, row-major}, "counts",
// "expression": text or null, "nodes"}. At most max_cells rows and as many columns. A node is a
// part of the mask:
// {"text", "op", "args": indices of nodes, "type", "per": "all", "row", "column" or "cell", "lo",
// "hi": one bound for each of those; null: unbounded}. Node 0 is the mask.
Json tile_map(const Scores& scores, const Tiling& tiling, std::int64_t max_cells);

}  // namespace attn::explain
