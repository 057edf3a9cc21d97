#include "explain/tile_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "attn/error.hpp"
#include "core/expr/bounds.hpp"

namespace attn::explain {
namespace {

using expr::Coverage;
using expr::Op;

constexpr std::int64_t kMostRanges = std::int64_t{1} << 22;

void check_visits(const TileCounts& counts, const Scores& scores, const Tiling& tiling) {
  if (counts.visits <= kMostRanges) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format(
          "block_q is {} and block_k is {}, of which {} x {} tiles cover the scores, and the "
          "mask would be bounded over more than {} ranges of them; accepted are larger blocks",
          tiling.block_q, tiling.block_k, tiling.tiles_q(scores), tiling.tiles_k(scores),
          kMostRanges));
}

// A mask larger than this is shown as far as its upper levels.
constexpr std::size_t kMaxNodes = 24;

std::string_view op_name(Op op) {
  switch (op) {
    case Op::logical_and:
      return "and";
    case Op::logical_or:
      return "or";
    case Op::logical_not:
      return "not";
    case Op::lt:
      return "<";
    case Op::le:
      return "<=";
    case Op::eq:
      return "==";
    case Op::ne:
      return "!=";
    default:
      return "value";
  }
}

// Nodes in the order of their indices: the mask, then what it is made of, level by level. Values
// other than booleans are not taken apart.
class Nodes {
 public:
  Nodes(const Scores& scores, std::int64_t query_step, std::int64_t key_step)
      : scores_(scores), query_step_(query_step), key_step_(key_step) {}

  Json json() {
    list_.push_back(scores_.mask);
    Json nodes = Json::array();
    while (nodes.size() < list_.size()) {
      const expr::Expr next = list_[nodes.size()];  // node() may move what is in the list
      nodes.push_back(node(next));
    }
    return nodes;
  }

 private:
  Json node(const expr::Expr& e) {
    const expr::Node& n = e.node();
    Json args = Json::array();
    const bool apart = op_name(n.op) != "value" && list_.size() + n.args.size() <= kMaxNodes;
    for (const expr::Expr& arg : apart ? n.args : std::vector<expr::Expr>{}) {
      args.push_back(list_.size());
      list_.push_back(arg);
    }
    const bool by_row = expr::depends_on(e, Op::query);
    const bool by_column = expr::depends_on(e, Op::key);
    Json lo = Json::array();
    Json hi = Json::array();
    const std::int64_t rows = scores_.seqlen_q;
    const std::int64_t keys = scores_.seqlen_k;
    const std::int64_t row_step = by_row ? query_step_ : rows;
    const std::int64_t key_step = by_column ? key_step_ : keys;
    for (std::int64_t i = 0; i < rows; i += row_step) {
      for (std::int64_t j = 0; j < keys; j += key_step) {
        const expr::Bounds bounds =
            expr::bounds_of(e, scores_.tile(i, i + row_step, j, j + key_step), scores_.buffers);
        add_bounds(n.type, bounds, lo, hi);
      }
    }
    return {{"text", expr::to_string(e)},
            {"op", apart ? op_name(n.op) : "value"},
            {"args", args},
            {"type", n.type == expr::Type::boolean ? "boolean" : "number"},
            {"per", by_row ? (by_column ? "cell" : "row") : (by_column ? "column" : "all")},
            {"lo", lo},
            {"hi", hi}};
  }

  static void add_bounds(expr::Type type, const expr::Bounds& bounds, Json& lo, Json& hi) {
    if (type != expr::Type::float32) {
      lo.push_back(bounds.lo);
      hi.push_back(bounds.hi);
      return;
    }
    const auto number = [](float x) { return std::isinf(x) ? Json(nullptr) : Json(x); };
    lo.push_back(number(bounds.flo));
    hi.push_back(number(bounds.fhi));
  }

  const Scores& scores_;
  std::int64_t query_step_, key_step_;
  std::vector<expr::Expr> list_;
};

}  // namespace

TileCounts& TileCounts::operator+=(const TileCounts& other) {
  empty += other.empty;
  full += other.full;
  mixed += other.mixed;
  queries += other.queries;
  keys += other.keys;
  visits += other.visits;
  return *this;
}

TileCounts& TileCounts::operator*=(std::int64_t factor) {
  for (std::int64_t* count : {&empty, &full, &mixed, &queries, &keys}) *count *= factor;
  return *this;
}

Json to_json(const TileCounts& counts) {
  return {{"empty", counts.empty},
          {"full", counts.full},
          {"mixed", counts.mixed},
          {"queries", counts.queries},
          {"keys", counts.keys}};
}

expr::Tile Scores::tile(std::int64_t query, std::int64_t query_end, std::int64_t key,
                        std::int64_t key_end) const {
  expr::Tile t;
  t.query_min = static_cast<std::int32_t>(query);
  t.query_max = static_cast<std::int32_t>(std::min<std::int64_t>(query_end, seqlen_q) - 1);
  t.key_min = static_cast<std::int32_t>(key);
  t.key_max = static_cast<std::int32_t>(std::min<std::int64_t>(key_end, seqlen_k) - 1);
  t.batch = batch;
  t.head_min = t.head_max = head;
  t.seqlen_q = seqlen_q;
  t.seqlen_k = seqlen_k;
  return t;
}

Coverage Scores::classify(const expr::Tile& tile) const {
  return mask.empty() ? Coverage::full : expr::classify(mask, tile, buffers);
}

TileCounts count_tiles(const Scores& scores, const Tiling& tiling, std::int64_t row,
                       std::int64_t row_end, std::int64_t column, std::int64_t column_end) {
  const expr::Tile tile = scores.tile(row * tiling.block_q, row_end * tiling.block_q,
                                      column * tiling.block_k, column_end * tiling.block_k);
  const std::int64_t rows = row_end - row;
  const std::int64_t columns = column_end - column;
  const Coverage coverage = scores.classify(tile);
  TileCounts counts;
  counts.visits = 1;
  if (coverage == Coverage::empty) {
    counts.empty = rows * columns;
    return counts;
  }
  if (coverage == Coverage::full || rows * columns == 1) {
    (coverage == Coverage::full ? counts.full : counts.mixed) = rows * columns;
    counts.queries = columns * (std::int64_t{tile.query_max} - tile.query_min + 1);
    counts.keys = rows * (std::int64_t{tile.key_max} - tile.key_min + 1);
    return counts;
  }
  if (rows >= columns) {
    const std::int64_t middle = row + rows / 2;
    counts += count_tiles(scores, tiling, row, middle, column, column_end);
    counts += count_tiles(scores, tiling, middle, row_end, column, column_end);
  } else {
    const std::int64_t middle = column + columns / 2;
    counts += count_tiles(scores, tiling, row, row_end, column, middle);
    counts += count_tiles(scores, tiling, row, row_end, middle, column_end);
  }
  check_visits(counts, scores, tiling);
  return counts;
}

TileCounts count_tiles(const Scores& scores, const Tiling& tiling) {
  return count_tiles(scores, tiling, 0, tiling.tiles_q(scores), 0, tiling.tiles_k(scores));
}

Json tile_map(const Scores& scores, const Tiling& tiling, std::int64_t max_cells) {
  const std::int64_t tiles_q = tiling.tiles_q(scores);
  const std::int64_t tiles_k = tiling.tiles_k(scores);
  const std::int64_t group_q = (tiles_q + max_cells - 1) / max_cells;
  const std::int64_t group_k = (tiles_k + max_cells - 1) / max_cells;
  TileCounts total;
  Json empty = Json::array();
  Json full = Json::array();
  for (std::int64_t i = 0; i < tiles_q; i += group_q) {
    for (std::int64_t j = 0; j < tiles_k; j += group_k) {
      const TileCounts counts = count_tiles(scores, tiling, i, std::min(i + group_q, tiles_q), j,
                                            std::min(j + group_k, tiles_k));
      empty.push_back(counts.empty);
      full.push_back(counts.full);
      total += counts;
      check_visits(total, scores, tiling);
    }
  }
  Json map{{"block_q", tiling.block_q},
           {"block_k", tiling.block_k},
           {"tiles_q", tiles_q},
           {"tiles_k", tiles_k},
           {"group_q", group_q},
           {"group_k", group_k},
           {"rows", (tiles_q + group_q - 1) / group_q},
           {"columns", (tiles_k + group_k - 1) / group_k},
           {"cells", {{"empty", empty}, {"full", full}}},
           {"counts", to_json(total)},
           {"expression", nullptr},
           {"nodes", Json::array()}};
  if (scores.mask.empty()) return map;
  map["expression"] = expr::to_string(scores.mask);
  map["nodes"] = Nodes(scores, group_q * tiling.block_q, group_k * tiling.block_k).json();
  return map;
}

}  // namespace attn::explain
