// The tile map against the mask evaluated at every element.
#include "explain/tile_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "attn/error.hpp"
#include "explain_test_util.hpp"

namespace attn::explain {
namespace {

// What of a tile the mask lets through, element by element.
expr::Coverage brute_force(const MaskedScores& s, const expr::Tile& t) {
  bool some = false;
  bool all = true;
  for (std::int64_t i = t.query_min; i <= t.query_max; ++i) {
    for (std::int64_t j = t.key_min; j <= t.key_max; ++j) {
      (s.sees(i, j) ? some : all) = s.sees(i, j);
    }
  }
  return all ? expr::Coverage::full : some ? expr::Coverage::mixed : expr::Coverage::empty;
}

TileCounts brute_force(const MaskedScores& s, const Tiling& tiling, std::int64_t row,
                       std::int64_t row_end, std::int64_t column, std::int64_t column_end) {
  TileCounts counts;
  for (std::int64_t i = row; i < row_end; ++i) {
    for (std::int64_t j = column; j < column_end; ++j) {
      const expr::Tile tile = s.scores.tile(i * tiling.block_q, (i + 1) * tiling.block_q,
                                            j * tiling.block_k, (j + 1) * tiling.block_k);
      const expr::Coverage coverage = brute_force(s, tile);
      if (coverage == expr::Coverage::empty) {
        ++counts.empty;
        continue;
      }
      ++(coverage == expr::Coverage::full ? counts.full : counts.mixed);
      counts.queries += std::int64_t{tile.query_max} - tile.query_min + 1;
      counts.keys += std::int64_t{tile.key_max} - tile.key_min + 1;
    }
  }
  return counts;
}

// Masks that interval arithmetic decides exactly. Lengths that are no multiples of the tiles; maps
// of fewer cells than tiles.
TEST(TileMap, EqualsBruteForce) {
  for (const char* descriptor :
       {"n50_d8", "n50_d8_causal", "sq20_sk70_d8_causal", "sq70_sk20_d8_causal", "n64_d8_window9x3",
        "n50_d8_prefix11", "n64_d8_butterfly8", "sq20_sk64_d8_butterfly8", "b1_n61_d8_documents",
        "n48_d8_mask(query/16==key/16)", "sq1_sk1_d8_causal", "n40_d8_mask(key<0)"}) {
    const MaskedScores s(verify::parse_case(descriptor).problem);
    for (const Tiling tiling : {Tiling{4, 4}, Tiling{8, 16}, Tiling{7, 3}, Tiling{100, 100}}) {
      for (const std::int64_t max_cells : {64, 3}) {
        SCOPED_TRACE(testing::Message() << descriptor << " in " << tiling.block_q << " x "
                                        << tiling.block_k << ", " << max_cells << " cells");
        const Json map = tile_map(s.scores, tiling, max_cells);
        const std::int64_t tiles_q = map["tiles_q"];
        const std::int64_t tiles_k = map["tiles_k"];
        const std::int64_t group_q = map["group_q"];
        const std::int64_t group_k = map["group_k"];
        EXPECT_LE(map["rows"], max_cells);
        EXPECT_LE(map["columns"], max_cells);
        EXPECT_EQ(map["cells"]["empty"].size(),
                  map["rows"].get<std::size_t>() * map["columns"].get<std::size_t>());
        EXPECT_EQ(map["counts"], to_json(brute_force(s, tiling, 0, tiles_q, 0, tiles_k)));
        std::size_t cell = 0;
        for (std::int64_t i = 0; i < tiles_q; i += group_q) {
          for (std::int64_t j = 0; j < tiles_k; j += group_k, ++cell) {
            const TileCounts counts = brute_force(s, tiling, i, std::min(i + group_q, tiles_q), j,
                                                  std::min(j + group_k, tiles_k));
            EXPECT_EQ(map["cells"]["empty"][cell], counts.empty) << i << ", " << j;
            EXPECT_EQ(map["cells"]["full"][cell], counts.full) << i << ", " << j;
          }
        }
      }
    }
  }
}

// A union that is proven stands for its tiles: the counts are those of the tiles one by one.
TEST(TileMap, CountsAreThoseOfSingleTiles) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Request r = random_request(seed);
    MaskedScores s(r.problem, seed);
    s.scores.head = static_cast<std::int32_t>(r.head);
    const Tiling tiling{5, 7};
    TileCounts expected;
    for (std::int64_t i = 0; i < tiling.tiles_q(s.scores); ++i) {
      for (std::int64_t j = 0; j < tiling.tiles_k(s.scores); ++j) {
        const expr::Tile tile = s.scores.tile(i * 5, (i + 1) * 5, j * 7, (j + 1) * 7);
        const expr::Coverage proven = s.scores.classify(tile);
        const expr::Coverage truth = brute_force(s, tile);
        EXPECT_TRUE(proven == expr::Coverage::mixed || proven == truth) << "seed " << seed;
        expected += count_tiles(s.scores, tiling, i, i + 1, j, j + 1);
      }
    }
    EXPECT_EQ(to_json(count_tiles(s.scores, tiling)), to_json(expected)) << "seed " << seed;
  }
}

// A mask that cuts 2^25 tiles would be looked at for half a minute.
TEST(TileMap, TilesPastAnyPageAreRefused) {
  const MaskedScores s(verify::parse_case("sq5_sk2147483647_d8_mask((query+key)%3!=0)").problem);
  const Tiling tiling{32, 64};
  EXPECT_THROW(count_tiles(s.scores, tiling), Error);
  EXPECT_THROW(tile_map(s.scores, tiling, 48), Error);
  EXPECT_EQ(count_tiles(s.scores, {32, std::int64_t{1} << 20}).mixed, 2048);
}

// What the page shows of the proof holds at every element of the tile.
TEST(TileMap, BoundsHoldEverywhere) {
  for (const char* descriptor :
       {"n40_d8_causal_window9x-1", "n40_d8_mask(key<4||position-key<8&&!(query%3==key))",
        "b1_n40_d8_documents_causal", "n40_d8_mask(to_float(query)*0.5<to_float(key))",
        "n40_d8_butterfly8"}) {
    const MaskedScores s(verify::parse_case(descriptor).problem);
    const Json map = tile_map(s.scores, {8, 4}, 3);
    const std::int64_t step_q = map["group_q"].get<std::int64_t>() * 8;
    const std::int64_t step_k = map["group_k"].get<std::int64_t>() * 4;
    std::vector<expr::Buffer> buffers;
    for (const auto& buffer : expr::buffers(s.scores.mask)) buffers.push_back(*buffer);
    ASSERT_FALSE(map["nodes"].empty()) << descriptor;
    EXPECT_EQ(map["nodes"][0]["text"], map["expression"]);
    for (const Json& node : map["nodes"]) {
      const expr::Expr e = expr::parse(node["text"].get<std::string>(), buffers);
      for (std::int64_t i = 0; i < 40; ++i) {
        for (std::int64_t j = 0; j < 40; ++j) {
          const std::string per = node["per"];
          const std::int64_t row = i / step_q;
          const std::int64_t column = j / step_k;
          const std::int64_t at = per == "row"      ? row
                                  : per == "column" ? column
                                  : per == "cell"
                                      ? row * map["columns"].get<std::int64_t>() + column
                                      : 0;
          const double value = expr::evaluate<float>(e, s.at(i, j), s.scores.buffers);
          EXPECT_GE(value, node["lo"].at(static_cast<std::size_t>(at)).get<double>())
              << node["text"];
          EXPECT_LE(value, node["hi"].at(static_cast<std::size_t>(at)).get<double>())
              << node["text"];
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn::explain
