// The bounds of the key that are taken out of a mask say the same as the mask.
#include "cuda/codegen/mask_bounds.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attn/mask.hpp"
#include "cuda/codegen/expression_text.hpp"

namespace attn {
namespace {

using expr::Expr;
using expr::Point;

Expr whole(const cuda::MaskBounds& b) {
  const Expr& key = expr::symbols().key;
  Expr mask = true;
  if (!b.first.empty()) mask = mask && key >= b.first;
  if (!b.last.empty()) mask = mask && key <= b.last;
  if (!b.rest.empty()) mask = mask && b.rest;
  return mask;
}

void expect_same(const Expr& mask, const Expr& other) {
  for (const auto& [seqlen_q, seqlen_k] : {std::pair{9, 9}, {5, 12}, {1 << 20, 1 << 20}}) {
    for (const int query : {0, 3, seqlen_q / 2, seqlen_q - 1}) {
      for (const int near : {0, query, seqlen_k / 2, seqlen_k - 1}) {
        for (int key = near - 6; key < near + 7; ++key) {
          if (key < 0 || key >= seqlen_k) continue;
          const Point at{.query = query, .key = key, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k};
          ASSERT_EQ(expr::evaluate<float>(mask, at), expr::evaluate<float>(other, at))
              << to_string(mask) << " and " << to_string(other) << " at " << query << ", " << key;
        }
      }
    }
  }
}

TEST(MaskBounds, SumsWithTheKeyAreBoundsInShortSequences) {
  const auto& s = expr::symbols();
  const std::vector<Expr> with_key{s.key,           s.position - s.key, s.key - s.position,
                                   s.key + s.query, s.query + s.key,    s.seqlen_q - s.key};
  const std::vector<Expr> others{Expr(0), Expr(4), Expr(-3), s.query, s.seqlen_k - s.query};
  const std::vector<std::function<Expr(const Expr&, const Expr&)>> comparisons{
      [](const Expr& a, const Expr& b) { return a < b; },
      [](const Expr& a, const Expr& b) { return a <= b; },
      [](const Expr& a, const Expr& b) { return a == b; },
      [](const Expr& a, const Expr& b) { return a > b; },
      [](const Expr& a, const Expr& b) { return a >= b; }};
  for (const Expr& a : with_key) {
    for (const Expr& b : others) {
      for (const auto& compare : comparisons) {
        for (const Expr& mask : {compare(a, b), compare(b, a)}) {
          const cuda::MaskBounds bounds = cuda::mask_bounds(mask, true);
          EXPECT_TRUE(bounds.rest.empty()) << to_string(mask);
          expect_same(mask, whole(bounds));
        }
      }
    }
  }
}

// As attn::dist rewrites query and key of a rank's part.
TEST(MaskBounds, KeysInSeveralRunsAreBounds) {
  const auto& s = expr::symbols();
  const Expr two = select(s.key < 3, s.key, s.key + 2);
  const Expr three = select(s.key < 4, select(s.key < 1, s.key + 1, s.key + 3), s.key + 300);
  const Expr row = select(s.query < 2, s.query + 1, s.query + 4);
  for (const Expr& key : {two, three, select(s.key < 5, s.key + 7, s.key + 7)}) {
    for (const Expr& query : {s.query, row, Expr(3), Expr(4)}) {
      for (const Expr& mask : {key <= query, query <= key, key < query, query < key, key == query,
                               query - key <= 2 && key - query <= 0, key - query < -1}) {
        const cuda::MaskBounds bounds = cuda::mask_bounds(mask, true);
        EXPECT_TRUE(bounds.rest.empty()) << to_string(mask);
        expect_same(mask, whole(bounds));
      }
    }
  }
  // One that does not rise with the key, and one that is no such select.
  for (const Expr& key : {select(s.key < 3, s.key + 2, s.key), select(s.key <= 3, s.key, s.key + 2),
                          select(s.query < 3, s.key, s.key + 2)}) {
    const cuda::MaskBounds bounds = cuda::mask_bounds(key <= s.query, true);
    EXPECT_FALSE(bounds.rest.empty()) << to_string(key);
    expect_same(key <= s.query, whole(bounds));
  }
}

// As ALiBi's distance is on such a rank: the step is added after the conversion.
TEST(ExpressionText, StepsAreAddedToWhatARowShares) {
  const auto& s = expr::symbols();
  const Expr distance = abs(select(s.query < 7, s.query, s.query + 9) - s.key);
  const std::string text = cuda::print_expressions({}, s.score - to_float(distance));
  EXPECT_NE(text.find("attn_abs(attn_position_to_float(attn_position_sub(v"), text.npos) << text;
  EXPECT_NE(text.find(", key_first), -1 * step))"), text.npos) << text;
}

TEST(MaskBounds, WhatCouldWrapStaysAsItIs) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto& s = expr::symbols();
  for (const Expr& mask : {window(kMost, 3), s.key - s.query < s.head, 2 * s.key - s.query < 3,
                           s.key + s.key < 7, s.query * s.seqlen_k - s.key < 9}) {
    const cuda::MaskBounds bounds = cuda::mask_bounds(mask, true);
    EXPECT_FALSE(bounds.rest.empty()) << to_string(mask);
    expect_same(mask, whole(bounds));
  }
  EXPECT_FALSE(cuda::mask_bounds(window(7, 3)).rest.empty());
  EXPECT_TRUE(cuda::mask_bounds(window(7, 3), true).rest.empty());
}

}  // namespace
}  // namespace attn
