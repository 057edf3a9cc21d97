// Each shorthand against its definition, point by point.
#include "attn/mask.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "attn/error.hpp"

namespace attn {
namespace {

using expr::Expr;
using expr::Point;

// Compares at every query and key of several lengths, two batches and three heads.
void expect_everywhere(const Expr& e, const std::function<double(const Point&)>& definition) {
  for (const auto& [seqlen_q, seqlen_k] : {std::pair{1, 1}, {1, 13}, {9, 9}, {7, 16}, {16, 7}}) {
    Point at;
    at.seqlen_q = seqlen_q;
    at.seqlen_k = seqlen_k;
    at.score = 1.75;
    for (at.batch = 0; at.batch < 2; ++at.batch) {
      for (at.head = 0; at.head < 3; ++at.head) {
        for (at.query = 0; at.query < seqlen_q; ++at.query) {
          for (at.key = 0; at.key < seqlen_k; ++at.key) {
            ASSERT_EQ(evaluate<double>(e, at), definition(at))
                << to_string(e) << " at query " << at.query << " of " << seqlen_q << ", key "
                << at.key << " of " << seqlen_k << ", batch " << at.batch << ", head " << at.head;
          }
        }
      }
    }
  }
}

// How far the key lies after the query's diagonal, the last query meeting the last key.
int beyond(const Point& at) { return (at.key - at.seqlen_k) - (at.query - at.seqlen_q); }

TEST(Mask, Causal) {
  expect_everywhere(causal(), [](const Point& at) { return beyond(at) <= 0; });
  expect_everywhere(causal(Alignment::top_left),
                    [](const Point& at) { return at.key <= at.query; });
}

// Where a query stands among the keys, by its definition.
int place(const Point& at, Alignment alignment) {
  return alignment == Alignment::top_left ? at.query : at.query + at.seqlen_k - at.seqlen_q;
}
constexpr Alignment kAlignments[] = {Alignment::bottom_right, Alignment::top_left};

TEST(Mask, TopLeft) {
  const std::int32_t ids[16] = {0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5, 5, 5, 6};
  const std::vector<float> slopes = alibi_slopes(3);
  const auto top_left = Alignment::top_left;
  expect_everywhere(window(2, 1, top_left), [](const Point& at) {
    return at.query - at.key <= 2 && at.key - at.query <= 1;
  });
  expect_everywhere(prefix(2, top_left),
                    [](const Point& at) { return at.key < 2 || at.key <= at.query; });
  expect_everywhere(documents(tensor(ids, {16}), top_left),
                    [&](const Point& at) { return ids[at.query] == ids[at.key]; });
  expect_everywhere(alibi(tensor(slopes.data(), {3}), top_left), [&](const Point& at) {
    return at.score - static_cast<double>(slopes[static_cast<std::size_t>(at.head)]) *
                          std::abs(at.query - at.key);
  });
  EXPECT_THROW(causal(static_cast<Alignment>(7)), Error);
}

TEST(Mask, Window) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const auto& [left, right] : {std::pair{0, 0},
                                    {3, 0},
                                    {0, 2},
                                    {2, 5},
                                    {-1, 1},
                                    {4, -1},
                                    {-1, -1},
                                    {kMost, 0},
                                    {2, kMost},
                                    {kMost, kMost}}) {
    expect_everywhere(window(left, right), [left = left, right = right](const Point& at) {
      return (left < 0 || -beyond(at) <= left) && (right < 0 || beyond(at) <= right);
    });
  }
  EXPECT_EQ(to_string(window(-1, -1)), "true");
}

TEST(Mask, Prefix) {
  for (const int n : {0, 1, 5, 100}) {
    expect_everywhere(prefix(n), [n](const Point& at) { return at.key < n || beyond(at) <= 0; });
  }
  EXPECT_THROW(prefix(-1), Error);
}

TEST(Mask, Documents) {
  const std::int32_t ids[2][16] = {{0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5, 5, 5, 6},
                                   {9, 9, 9, 9, 9, 9, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2}};
  const auto of_one_document = [](const std::int32_t* of, const Point& at) {
    const int position = place(at, Alignment::bottom_right);
    return position >= 0 && of[position] == of[at.key];
  };
  expect_everywhere(documents(tensor(ids[0], {16})),
                    [&](const Point& at) { return of_one_document(ids[0], at); });
  expect_everywhere(documents(tensor(ids[0], {2, 16})),
                    [&](const Point& at) { return of_one_document(ids[at.batch], at); });
  const Expr both = documents(tensor(ids[0], {16}), tensor(ids[0], {2, 16}));
  expect_everywhere(both,
                    [&](const Point& at) { return ids[0][at.query] == ids[at.batch][at.key]; });
  EXPECT_EQ(to_string(both), "ids_q[query] == ids_k[batch, key]");
  const float wrong[4] = {};
  EXPECT_THROW(documents(tensor(wrong, {4})), Error);
  EXPECT_THROW(documents(tensor(ids[0], {2, 2, 2})), Error);
}

// Whether draft token t is token i of the draft or lies above it in the tree.
bool is_above(const std::vector<std::int32_t>& parents, std::int32_t i, std::int32_t t) {
  for (; i >= 0; i = parents[static_cast<std::size_t>(i)]) {
    if (i == t) return true;
  }
  return false;
}

// Calls visit(point) for every query and key of sequences with `drafts` queries and all lengths of
// keys around that.
template <class Visit>
void for_each_point(std::int32_t drafts, const Visit& visit) {
  for (const std::int32_t seqlen_k : {drafts - 2, drafts, drafts + 1, drafts + 70}) {
    Point at{.seqlen_q = drafts, .seqlen_k = seqlen_k};
    for (at.batch = 0; at.batch < 2; ++at.batch) {
      for (at.query = 0; at.query < drafts; ++at.query) {
        for (at.key = 0; at.key < seqlen_k; ++at.key) visit(at);
      }
    }
  }
}

TEST(Mask, TreesShowADraftTokenWhatLiesAboveIt) {
  std::mt19937 random(36);
  constexpr std::int32_t kRows = 70;  // of the buffer: three words a row
  for (const std::int32_t drafts : {2, 31, 32, 33, 70}) {
    std::vector<std::int32_t> parents[2], words;
    for (std::vector<std::int32_t>& tree : parents) {
      for (std::int32_t i = 0; i < drafts; ++i) {
        tree.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(i + 1)) - 1);
      }
      const std::vector<std::int32_t> of_tree = tree_words(tree, kRows);
      ASSERT_EQ(of_tree.size(), 3U * kRows);
      words.insert(words.end(), of_tree.begin(), of_tree.end());
    }
    const Expr of_each = tree_mask(tensor(words.data(), {2, kRows, 3}));
    const Expr of_all = tree_mask(tensor(words.data(), {1, kRows, 3}));
    for_each_point(drafts, [&](const Point& at) {
      const std::int32_t draft = at.key - (at.seqlen_k - at.seqlen_q);
      for (const auto& [mask, tree] :
           {std::pair{&of_each, &parents[at.batch]}, std::pair{&of_all, &parents[0]}}) {
        ASSERT_EQ(evaluate<float>(*mask, at) != 0, draft < 0 || is_above(*tree, at.query, draft))
            << "query " << at.query << ", key " << at.key << " of " << drafts << " drafts and "
            << at.seqlen_k << " keys, batch " << at.batch;
      }
    });
  }
}

// The bits alone decide, whatever they are: also of tokens that come later in the draft.
TEST(Mask, TreesReadTheirBits) {
  std::mt19937 random(7);
  std::vector<std::int32_t> words(2 * 40 * 2);
  for (std::int32_t& word : words) word = static_cast<std::int32_t>(random());
  const Expr mask = tree_mask(tensor(words.data(), {2, 40, 2}));
  for_each_point(40, [&](const Point& at) {
    const std::int32_t draft = at.key - (at.seqlen_k - at.seqlen_q);
    bool seen = draft < 0;
    if (!seen) {
      const auto word = static_cast<std::uint32_t>(
          words[static_cast<std::size_t>((at.batch * 40 + at.query) * 2 + draft / 32)]);
      seen = (word >> (draft % 32)) % 2 != 0;
    }
    ASSERT_EQ(evaluate<float>(mask, at) != 0, seen) << at.query << " " << at.key;
  });
}

TEST(Mask, TreesAreRefusedByWhatTheyLack) {
  const std::int32_t words[4] = {};
  const float floats[4] = {};
  EXPECT_THROW(tree_mask(tensor(words, {2, 2})), Error);
  EXPECT_THROW(tree_mask(tensor(floats, {1, 2, 2})), Error);
  using Parents = std::vector<std::int32_t>;
  EXPECT_EQ(tree_words(Parents{-1, 0, 0, 1}), (Parents{1, 3, 5, 11}));
  EXPECT_EQ(tree_words(Parents{}), Parents{});
  EXPECT_EQ(tree_words(Parents{-1}, 3), (Parents{1, 0, 0}));
  for (const Parents& parents : {Parents{0}, Parents{-1, 1}, Parents{-2}, Parents{-1, 0, 7}}) {
    EXPECT_THROW(tree_words(parents), Error);
  }
  EXPECT_THROW(tree_words(Parents{-1, 0}, 1), Error);
  EXPECT_THROW(tree_words(Parents{-1}, -1), Error);
  EXPECT_THROW(tree_words(Parents{-1}, std::int64_t{1} << 40), Error);
}

TEST(Mask, Blocks) {
  BlockMask blocks(4, 3, 4, 6);
  EXPECT_EQ(blocks.density(), 0);
  blocks.at(0, 0) = 1;
  blocks.at(2, 1) = 7;
  blocks.at(3, 2) = 255;
  EXPECT_DOUBLE_EQ(blocks.density(), 0.25);
  for (const Alignment alignment : kAlignments) {
    const Expr mask = blocks.mask(alignment);
    const auto definition = [&](const Point& at) {
      const int row = place(at, alignment);
      return row >= 0 && blocks.at(row / 4, at.key / 6) != 0;
    };
    expect_everywhere(mask, definition);
    blocks.at(0, 1) ^= 1;  // shared, not copied
    expect_everywhere(mask, definition);
  }
  // One row of blocks, which any index reads: still none for a query before the first key.
  BlockMask row(1, 1, 16, 16);
  row.at(0, 0) = 1;
  expect_everywhere(row.mask(), [](const Point& at) { return place(at, kAlignments[0]) >= 0; });
  EXPECT_THROW(blocks.at(4, 0), Error);
  EXPECT_THROW(blocks.at(0, -1), Error);
  EXPECT_THROW(BlockMask(-1, 1, 1, 1), Error);
  EXPECT_THROW(BlockMask(1, 1, 0, 1), Error);
  EXPECT_THROW(BlockMask(std::int64_t{1} << 40, 1, 1, 1), Error);
}

TEST(Mask, BlocksOutliveTheirObject) {
  const Expr mask = BlockMask::butterfly(64, 64, 8).mask();
  Point at{.query = 9, .key = 12, .seqlen_q = 64, .seqlen_k = 64};
  EXPECT_EQ(evaluate<float>(mask, at), 1.0F);
  at.key = 25;  // blocks 1 and 3: one bit
  EXPECT_EQ(evaluate<float>(mask, at), 1.0F);
  at.key = 17;  // blocks 1 and 2: two bits
  EXPECT_EQ(evaluate<float>(mask, at), 0.0F);
}

TEST(Mask, Butterfly) {
  for (const auto& [seqlen_q, seqlen_k] :
       {std::pair{64, 64}, {60, 33}, {8, 129}, {100, 8}, {0, 5}}) {
    const BlockMask blocks = BlockMask::butterfly(seqlen_q, seqlen_k, 8);
    EXPECT_EQ(blocks.blocks_q(), (seqlen_q + 7) / 8);
    EXPECT_EQ(blocks.blocks_k(), (seqlen_k + 7) / 8);
    for (std::int64_t i = 0; i < blocks.blocks_q(); ++i) {
      for (std::int64_t j = 0; j < blocks.blocks_k(); ++j) {
        EXPECT_EQ(blocks.at(i, j) != 0,
                  __builtin_popcountll(static_cast<unsigned long long>(i ^ j)) <= 1)
            << i << " " << j;
      }
    }
  }
  EXPECT_THROW(BlockMask::butterfly(8, 8, 0), Error);
  EXPECT_THROW(BlockMask::butterfly(-8, 8, 4), Error);
}

TEST(Score, Softcap) {
  expect_everywhere(softcap(5), [](const Point& at) { return 5 * std::tanh(at.score / 5); });
  EXPECT_THROW(softcap(0), Error);
  EXPECT_THROW(softcap(-1), Error);
  EXPECT_THROW(softcap(std::numeric_limits<float>::quiet_NaN()), Error);
  EXPECT_THROW(softcap(std::numeric_limits<float>::infinity()), Error);
}

TEST(Score, Alibi) {
  const std::vector<float> slopes = alibi_slopes(8);
  ASSERT_EQ(slopes.size(), 8U);
  for (int h = 0; h < 8; ++h)
    EXPECT_EQ(slopes[static_cast<std::size_t>(h)], std::ldexp(1.0F, -h - 1));
  EXPECT_FLOAT_EQ(alibi_slopes(12)[2], 0.25F);  // 2^(-8 * 3 / 12)
  expect_everywhere(alibi(tensor(slopes.data(), {8})), [&](const Point& at) {
    return at.score -
           static_cast<double>(slopes[static_cast<std::size_t>(at.head)]) * std::abs(beyond(at));
  });
  EXPECT_THROW(alibi_slopes(0), Error);
  EXPECT_THROW(alibi_slopes(std::int64_t{1} << 31), Error);
  EXPECT_THROW(alibi(tensor(slopes.data(), {2, 4})), Error);
}

TEST(Score, Bias) {
  std::vector<float> values(2 * 3 * 16 * 16);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto value = [&](int b, int h, int q, int k) {
    const int element = ((b * 3 + h) * 16 + q) * 16 + k;
    return static_cast<double>(values[static_cast<std::size_t>(element)]);
  };
  expect_everywhere(bias(tensor(values.data(), {2, 3, 16, 16})), [&](const Point& at) {
    return at.score + value(at.batch, at.head, at.query, at.key);
  });
  const Expr by_position = bias(tensor(values.data(), {16, 16}), Alignment::bottom_right);
  expect_everywhere(by_position, [&](const Point& at) {
    const int row = place(at, Alignment::bottom_right);
    return at.score + (row < 0 ? 0 : value(0, 0, row, at.key));
  });
  expect_everywhere(bias(tensor(values.data(), {16, 16})),
                    [&](const Point& at) { return at.score + value(0, 0, at.query, at.key); });
  expect_everywhere(bias(tensor(values.data(), {1, 1, 1, 16})),
                    [&](const Point& at) { return at.score + value(0, 0, 0, at.key); });
  EXPECT_THROW(bias(tensor(values.data(), {16})), Error);
  const std::int32_t wrong[4] = {};
  EXPECT_THROW(bias(tensor(wrong, {2, 2})), Error);
}

TEST(Score, Compose) {
  const auto& s = expr::symbols();
  const Expr composed = compose(softcap(5), s.score * 2);
  expect_everywhere(composed, [](const Point& at) { return 5 * std::tanh(at.score * 2 / 5); });
  EXPECT_TRUE(same(compose(Expr(), softcap(5)), softcap(5)));
  EXPECT_TRUE(same(compose(softcap(5), Expr()), softcap(5)));
}

}  // namespace
}  // namespace attn
