#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "attn/mask.hpp"
#include "random_expr.hpp"

namespace attn {
namespace {

using expr::classify;
using expr::Coverage;
using expr::Expr;
using expr::Tile;

// What holds at the points of the tile, one by one.
Coverage brute_force(const Expr& mask, const Tile& tile) {
  bool any = false;
  bool all = true;
  // 64-bit counters: a tile may end at the largest int32.
  for (std::int64_t q = tile.query_min; q <= tile.query_max; ++q) {
    for (std::int64_t k = tile.key_min; k <= tile.key_max; ++k) {
      for (std::int32_t h = tile.head_min; h <= tile.head_max; ++h) {
        expr::Point at;
        at.query = static_cast<std::int32_t>(q);
        at.key = static_cast<std::int32_t>(k);
        at.batch = tile.batch;
        at.head = h;
        at.seqlen_q = tile.seqlen_q;
        at.seqlen_k = tile.seqlen_k;
        const bool seen = evaluate<float>(mask, at) != 0;
        any = any || seen;
        all = all && seen;
      }
    }
  }
  return all ? Coverage::full : any ? Coverage::mixed : Coverage::empty;
}

Tile random_tile(test::RandomExpr& random) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  Tile tile;
  const bool huge = random.uniform(0, 7) == 0;
  tile.query_min = huge ? kMost - random.uniform(6, 20) : random.uniform(0, 12);
  tile.query_max = tile.query_min + random.uniform(0, 5);
  tile.key_min = random.uniform(0, 12);
  tile.key_max = tile.key_min + random.uniform(0, 5);
  tile.batch = random.uniform(0, 3);
  tile.head_min = random.uniform(0, 3);
  tile.head_max = tile.head_min + random.uniform(0, 2);
  tile.seqlen_q = random.uniform(0, 20);
  tile.seqlen_k = random.uniform(0, 20);
  return tile;
}

TEST(Classify, NeverContradictsEvaluation) {
  constexpr std::uint32_t kSeed = 20240611;
  int proven = 0;
  int total = 0;
  for (std::uint32_t seed = kSeed; seed < kSeed + 6000; ++seed) {
    test::RandomExpr random(seed);
    const Expr mask = random.boolean(random.uniform(1, 5), false);
    for (int i = 0; i < 3; ++i) {
      const Tile tile = random_tile(random);
      const Coverage truth = brute_force(mask, tile);
      const Coverage claimed = classify(mask, tile);
      ++total;
      proven += claimed != Coverage::mixed ? 1 : 0;
      if (claimed != Coverage::mixed) {
        ASSERT_EQ(static_cast<int>(claimed), static_cast<int>(truth))
            << "seed " << seed << ": " << to_string(mask) << " queries " << tile.query_min << ".."
            << tile.query_max << " keys " << tile.key_min << ".." << tile.key_max << " heads "
            << tile.head_min << ".." << tile.head_max << " batch " << tile.batch << " seqlens "
            << tile.seqlen_q << " " << tile.seqlen_k;
      }
    }
  }
  EXPECT_GT(proven, total / 4);  // the property is not met by answering "mixed"
}

// One operation on ranges of the values that break interval arithmetic.
TEST(Classify, SpecialFloatsAreSafe) {
  const auto& s = expr::symbols();
  int full = 0;
  for (std::uint32_t seed = 1; seed <= 20000; ++seed) {
    test::RandomExpr random(seed);
    std::vector<float> x(4);
    std::vector<float> y(4);
    const auto draw = [&] { return random.special_float(); };
    for (float& value : x) value = draw();
    for (float& value : y) value = draw();
    const Expr a = expr::Buffer("x", tensor(x.data(), {4}))[s.query];
    const Expr b = expr::Buffer("y", tensor(y.data(), {4}))[s.key];
    const Expr values[] = {
        a + b,   a - b,  a * b,    a / b,     min(a, b), max(a, b),
        sqrt(a), log(a), exp(a),   tanh(a),   abs(a),    select(s.query < s.key, a, b),
        exp2(a), erf(a), floor(a), to_int(a), sin(a),    cos(a)};
    const Expr value = values[random.uniform(0, 17)];
    const Expr limit = draw();
    const Expr masks[] = {value < limit,  value <= limit, limit < value,
                          limit <= value, value == limit, value != limit};
    const Expr mask = masks[random.uniform(0, 5)];
    Tile tile;
    tile.query_min = random.uniform(0, 3);
    tile.query_max = random.uniform(tile.query_min, 3);
    tile.key_min = random.uniform(0, 3);
    tile.key_max = random.uniform(tile.key_min, 3);
    const Coverage claimed = classify(mask, tile);
    full += claimed == Coverage::full ? 1 : 0;
    if (claimed != Coverage::mixed) {
      ASSERT_EQ(static_cast<int>(claimed), static_cast<int>(brute_force(mask, tile)))
          << "seed " << seed << ": " << to_string(mask) << " x " << testing::PrintToString(x)
          << " y " << testing::PrintToString(y) << " queries " << tile.query_min << ".."
          << tile.query_max << " keys " << tile.key_min << ".." << tile.key_max;
    }
  }
  EXPECT_GT(full, 1000);
}

// A wave's extremes lie between the ends of a tile.
TEST(Classify, WavesAreBounded) {
  const auto& s = expr::symbols();
  const Expr angle = s.key * 0.25F;  // of keys 0 to 25 a turn
  const auto of = [&](const Expr& mask, std::int32_t first, std::int32_t last) {
    Tile tile;
    tile.key_min = first;
    tile.key_max = last;
    return classify(mask, tile);
  };
  EXPECT_EQ(of(cos(angle) > 0.1F, 0, 5), Coverage::full);      // 0 to 1.25
  EXPECT_EQ(of(cos(angle) > 0.1F, 0, 7), Coverage::mixed);     // to 1.75
  EXPECT_EQ(of(cos(angle) > 0.1F, 7, 18), Coverage::empty);    // to 4.5
  EXPECT_EQ(of(cos(angle) > 0.99F, 23, 27), Coverage::mixed);  // around a turn
  EXPECT_EQ(of(cos(angle) > 0.85F, 23, 27), Coverage::full);
  EXPECT_EQ(of(cos(angle) > -0.99F, 11, 14), Coverage::mixed);  // around half of one
  EXPECT_EQ(of(sin(angle) > 0.5F, 3, 10), Coverage::full);      // 0.75 to 2.5
  EXPECT_EQ(of(sin(-angle) < -0.5F, 3, 10), Coverage::full);
  EXPECT_EQ(of(sin(angle) < 0.99F, 3, 10), Coverage::mixed);
  EXPECT_EQ(of(sin(s.key * 1e9F) <= 1.0F, 0, 30), Coverage::full);  // far away, -1 to 1
  EXPECT_EQ(of(sin(s.key * 1e9F) < 1.0F, 1, 1), Coverage::mixed);
  // NaN of an infinity.
  EXPECT_EQ(of(sin(s.key / 0.0F) <= 1.0F, 1, 1), Coverage::mixed);
}

// Bands of keys whose edges are no integers: the answer is exact, not only safe.
TEST(Classify, FloorsAreExact) {
  const auto& s = expr::symbols();
  const Expr place = s.key / 3.7;
  int decided = 0;
  for (const Expr& mask : {to_int(place) == 2, floor(place) == 2, floor(-place) < -4,
                           ceil(place) <= 3, to_int(-place) != -1, trunc(-place) >= -2}) {
    for (int first = 0; first < 30; ++first) {
      for (int last = first; last < 30; ++last) {
        Tile tile;
        tile.key_min = first;
        tile.key_max = last;
        const Coverage truth = brute_force(mask, tile);
        ASSERT_EQ(static_cast<int>(classify(mask, tile)), static_cast<int>(truth))
            << to_string(mask) << " keys " << first << ".." << last;
        decided += truth != Coverage::mixed ? 1 : 0;
      }
    }
  }
  EXPECT_GT(decided, 1000);
}

// For shapes of masks with one comparison a diagonal the answer is exact, not only safe.
TEST(Classify, ShorthandsAreExact) {
  BlockMask blocks = BlockMask::butterfly(40, 40, 8);
  const std::vector<Expr> masks = {causal(),
                                   causal(Alignment::top_left),
                                   window(5, 0),
                                   window(3, 4),
                                   window(-1, 2),
                                   window(0, -1),
                                   prefix(7),
                                   blocks.mask(),
                                   blocks.mask(Alignment::top_left),
                                   causal() && blocks.mask()};
  std::mt19937 seeds(7);
  for (const Expr& mask : masks) {
    for (int i = 0; i < 2000; ++i) {
      test::RandomExpr random(static_cast<std::uint32_t>(seeds()));
      Tile tile;
      tile.seqlen_q = random.uniform(1, 40);
      tile.seqlen_k = random.uniform(1, 40);
      tile.query_min = random.uniform(0, tile.seqlen_q - 1);
      tile.query_max = random.uniform(tile.query_min, tile.seqlen_q - 1);
      tile.key_min = random.uniform(0, tile.seqlen_k - 1);
      tile.key_max = random.uniform(tile.key_min, tile.seqlen_k - 1);
      const Coverage truth = brute_force(mask, tile);
      const Coverage claimed = classify(mask, tile);
      // A conjunction of different things may be empty by their interplay only.
      if (depends_on(mask, expr::Op::seqlen_k) && !buffers(mask).empty() &&
          claimed == Coverage::mixed) {
        continue;
      }
      ASSERT_EQ(static_cast<int>(claimed), static_cast<int>(truth))
          << to_string(mask) << " queries " << tile.query_min << ".." << tile.query_max << " keys "
          << tile.key_min << ".." << tile.key_max << " seqlens " << tile.seqlen_q << " "
          << tile.seqlen_k;
    }
  }
}

TEST(Classify, BitsAreKnownWhereTheyDoNotChange) {
  const auto& s = expr::symbols();
  const auto range = [&](const Expr& e, std::int32_t lo, std::int32_t hi, int key_min,
                         int key_max) {
    const Tile tile{.key_min = key_min, .key_max = key_max};
    return classify(lo <= e && e <= hi, tile) == Coverage::full &&
           classify(lo < e && e < hi, tile) == Coverage::mixed;
  };
  // Of a constant no bit more is set; of aligned tiles the higher bits are one number.
  EXPECT_TRUE(range(s.key & 12, 0, 12, 3, 1000));
  EXPECT_TRUE(range(s.key & 12, 0, 12, -1000, 1000));
  EXPECT_TRUE(range(s.key & 63, 0, 31, 128, 159));
  EXPECT_TRUE(range(s.key & ~63, 128, 192, 130, 200));
  EXPECT_TRUE(range(s.key | 3, 67, 127, 64, 127));
  EXPECT_TRUE(range(s.key ^ 64, 0, 63, 64, 127));
  EXPECT_TRUE(range(-s.key & -8, -128, -64, 65, 127));
  EXPECT_TRUE(range(s.key >> 4, 4, 7, 64, 127));
  EXPECT_TRUE(range(-s.key >> 40, -1, 0, 0, 127));
  EXPECT_TRUE(range(s.key << 2, 256, 508, 64, 127));
  EXPECT_EQ(classify(s.key << 32 == 0 && s.key << -1 == 0, {.key_max = 1000}), Coverage::full);
  // Any value where it may wrap.
  EXPECT_EQ(classify(s.key << 30 >= 0, {.key_max = 2}), Coverage::mixed);
}

// A neighbourhood in Morton order: tiles of a quarter of the grid are aligned in both coordinates.
TEST(Classify, MortonNeighbourhood) {
  const auto& s = expr::symbols();
  const auto coordinate = [](const Expr& index) {
    Expr x = index & 0x55;
    x = (x | x >> 1) & 0x33;
    return (x | x >> 2) & 0x0f;
  };
  const auto apart = [&](const Expr& a, const Expr& b) {
    return abs(coordinate(a) - coordinate(b));
  };
  const Expr mask = apart(s.query, s.key) <= 2 && apart(s.query >> 1, s.key >> 1) <= 2;
  int decided = 0;
  for (int query = 0; query < 256; query += 16) {
    for (int key = 0; key < 256; key += 16) {
      const Tile tile{query, query + 15, key, key + 15, 0, 0, 0, 256, 256};
      const Coverage claimed = classify(mask, tile);
      if (claimed == Coverage::mixed) continue;
      ++decided;
      ASSERT_EQ(static_cast<int>(claimed), static_cast<int>(brute_force(mask, tile)));
    }
  }
  EXPECT_EQ(decided, 256 - 100);  // all but a block of the 4 x 4 and its neighbours
}

TEST(Classify, LoadsLookAtElements) {
  const auto& s = expr::symbols();
  std::vector<std::int32_t> ids(100000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i / 64);
  const Expr mask = documents(tensor(ids.data(), {100000}));
  Tile tile{.query_min = 0, .query_max = 63, .key_min = 64, .key_max = 127};
  EXPECT_EQ(classify(mask, tile), Coverage::empty);
  tile.query_min = tile.query_max = 64;
  EXPECT_EQ(classify(mask, tile), Coverage::full);
  tile.query_max = 128;
  EXPECT_EQ(classify(mask, tile), Coverage::mixed);
  // Past 4096 elements it does not look.
  const Expr positive = expr::Buffer("ids", tensor(ids.data(), {100000}))[s.key] >= 0;
  EXPECT_EQ(classify(positive, {.key_min = 0, .key_max = 4095}), Coverage::full);
  EXPECT_EQ(classify(positive, {.key_min = 0, .key_max = 4096}), Coverage::mixed);
  // An index outside reads zero.
  EXPECT_EQ(classify(positive, {.key_min = -5, .key_max = -1}), Coverage::full);
}

// Keys before the draft are seen whatever the words hold, so that no word of theirs is looked at;
// among the draft the words are.
TEST(Classify, TreesShowEveryKeyBeforeTheDraft) {
  constexpr std::int32_t kDrafts = 40, kKeys = 1000;
  const std::vector<std::int32_t> nothing(2 * kDrafts * 2), all(2 * kDrafts * 2, -1);
  const Expr mask = tree_mask(Tensor{.dtype = DType::i32, .rank = 3, .shape = {2, kDrafts, 2}});
  const auto coverage = [&](const std::vector<std::int32_t>& words, std::int32_t key_min,
                            std::int32_t key_max) {
    const Tile tile{.query_max = kDrafts - 1,
                    .key_min = key_min,
                    .key_max = key_max,
                    .batch = 1,
                    .seqlen_q = kDrafts,
                    .seqlen_k = kKeys};
    return classify(mask, tile, {{"tree", tensor(words.data(), {2, kDrafts, 2})}});
  };
  for (std::int32_t key = 0; key < kKeys; key += 64) {
    const std::int32_t last = std::min(key + 64, kKeys) - 1;
    EXPECT_EQ(coverage(nothing, key, last), last < kKeys - kDrafts  ? Coverage::full
                                            : key < kKeys - kDrafts ? Coverage::mixed
                                                                    : Coverage::empty);
    EXPECT_EQ(coverage(all, key, last), Coverage::full);
  }
  EXPECT_EQ(coverage(nothing, 0, kKeys - kDrafts - 1), Coverage::full);
  std::vector<std::int32_t> one_bit = nothing;
  one_bit.back() = 1 << 7;  // the last token sees draft token 39 alone
  EXPECT_EQ(coverage(one_bit, kKeys - 1, kKeys - 1), Coverage::mixed);
  EXPECT_EQ(coverage(one_bit, kKeys - kDrafts, kKeys - 9), Coverage::empty);
}

// What is proven of a range is proven of its parts, also where some of what is read is NaN: else
// the bits of a result could depend on which heads share a task.
TEST(Classify, PartsOfARangeAreNoLessKnown) {
  const auto& s = expr::symbols();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values{9, 9, kNan, kNan};
  const Expr mask = expr::Buffer("w", tensor(values.data(), {4}))[s.head] != 5.0;
  EXPECT_EQ(classify(mask, {.head_min = 0, .head_max = 1}), Coverage::full);
  EXPECT_EQ(classify(mask, {.head_min = 2, .head_max = 3}), Coverage::mixed);
  EXPECT_EQ(classify(mask, {.head_min = 0, .head_max = 3}), Coverage::mixed);
}

TEST(Classify, BindingsWin) {
  const auto& s = expr::symbols();
  const std::vector<std::int32_t> zeros(8, 0);
  const std::vector<std::int32_t> ones(8, 1);
  const expr::Buffer flags("flags", tensor(zeros.data(), {8}));
  const Expr mask = flags[s.key] == 1;
  const Tile tile{.key_min = 0, .key_max = 7};
  EXPECT_EQ(classify(mask, tile), Coverage::empty);
  EXPECT_EQ(classify(mask, tile, {{"flags", tensor(ones.data(), {8})}}), Coverage::full);
}

}  // namespace
}  // namespace attn
