// Expressions as device code: the text, compiled for the host, agrees with evaluate and never
// contradicts it in classify.
#include "cuda/codegen/expression_text.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numbers>
#include <span>

#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "cases.hpp"
#include "compiled.hpp"
#include "cuda/codegen/expression_pack.hpp"

namespace attn {
namespace {

using expr::Coverage;
using expr::Expr;
using expr::Point;
using expr::Tile;

// Of one expression: everything a test needs.
struct Case {
  test::DeviceExpressions expressions;
  test::Compiled compiled;
  std::vector<std::byte> bytes;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> made;
    auto list = test::device_expressions();
    for (std::size_t i = 0; i < list.size(); ++i) {
      auto bytes = cuda::expression_pack(list[i].mask, list[i].score, 1, 2)
                       .packed(test::as_device_tensors(list[i]));
      made.push_back({std::move(list[i]), test::kCompiledExpressions[i], std::move(bytes)});
    }
    return made;
  }();
  return all;
}

Tile random_tile(test::RandomExpr& random) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  Tile tile;
  const bool huge = random.uniform(0, 7) == 0;
  tile.query_min = huge ? kMost - random.uniform(6, 20) : random.uniform(0, 20);
  tile.query_max = tile.query_min + (random.uniform(0, 2) == 0 ? 0 : random.uniform(0, 5));
  tile.key_min = random.uniform(0, 20);
  tile.key_max = tile.key_min + (random.uniform(0, 2) == 0 ? 0 : random.uniform(0, 5));
  tile.batch = random.uniform(0, 3);
  tile.head_min = random.uniform(0, 3);
  tile.head_max = tile.head_min + random.uniform(0, 2);
  tile.seqlen_q = random.uniform(0, 24);
  tile.seqlen_k = random.uniform(0, 24);
  return tile;
}

Point random_point(test::RandomExpr& random) {
  const Tile tile = random_tile(random);
  return {random.real(-9, 9), tile.query_max, tile.key_max, tile.batch,
          tile.head_max,      tile.seqlen_q,  tile.seqlen_k};
}

std::string describe(const Case& c, const Point& at) {
  return c.expressions.name + ": mask " + to_string(c.expressions.mask) + ", score " +
         to_string(c.expressions.score) + " at score " + std::to_string(at.score) + " query " +
         std::to_string(at.query) + " key " + std::to_string(at.key) + " batch " +
         std::to_string(at.batch) + " head " + std::to_string(at.head) + " seqlens " +
         std::to_string(at.seqlen_q) + " " + std::to_string(at.seqlen_k);
}

TEST(ExpressionText, SizesAreThoseOfTheStruct) {
  ASSERT_EQ(cases().size(), test::kNumCompiledExpressions);
  for (const Case& c : cases()) EXPECT_EQ(c.bytes.size(), c.compiled.size) << c.expressions.name;
}

TEST(ExpressionText, MasksAgreeWithEvaluation) {
  test::RandomExpr random(20261121);
  int visible = 0;
  int total = 0;
  for (const Case& c : cases()) {
    if (c.expressions.mask.empty()) continue;
    for (int i = 0; i < 200; ++i) {
      const Point at = random_point(random);
      const bool expected = evaluate<float>(c.expressions.mask, at) != 0;
      ++total;
      visible += expected ? 1 : 0;
      ASSERT_EQ(c.compiled.mask(c.bytes.data(), at), expected) << describe(c, at);
    }
  }
  EXPECT_GT(visible, total / 5);
  EXPECT_LT(visible, total * 4 / 5);
}

TEST(ExpressionText, ScoresAgreeWithEvaluation) {
  test::RandomExpr random(7);
  for (const Case& c : cases()) {
    if (c.expressions.score.empty()) continue;
    for (int i = 0; i < 200; ++i) {
      const Point at = random_point(random);
      const double expected = evaluate<double>(c.expressions.score, at);
      const double standard = evaluate<float>(c.expressions.score, at);
      const double got = c.compiled.score(c.bytes.data(), at);
      if (!std::isfinite(expected)) continue;
      // What float32 loses anyway, and a few units in the last place.
      const double allowed =
          4 * std::abs(standard - expected) + 4e-6 * std::max(1.0, std::abs(expected));
      ASSERT_NEAR(got, expected, allowed) << describe(c, at);
    }
  }
}

TEST(ExpressionText, ExponentsAgreeWithEvaluation) {
  test::RandomExpr random(8);
  int compared = 0;
  for (const Case& c : cases()) {
    if (c.expressions.score.empty()) continue;
    int good = 0;
    for (int i = 0; i < 200; ++i) {
      Point at = random_point(random);
      at.score *= i % 2 == 0 ? 1 : 4;
      const double expected = evaluate<double>(c.expressions.score, at);
      const double standard = evaluate<float>(c.expressions.score, at);
      const float addend = static_cast<float>(random.uniform(-40, 40));
      const test::Exponent got = c.compiled.exponent(c.bytes.data(), at, addend);
      if (!got.exists || !got.good || !std::isfinite(expected)) continue;
      // Polynomials of tanh err by 2.8e-5 (small_tanh_test.cpp).
      const double allowed = 4 * std::abs(standard - expected) + 2.9e-5 * std::abs(at.score) +
                             4e-6 * std::max({1.0, std::abs(expected), std::abs(1.0 * addend)});
      ASSERT_NEAR((got.value - addend) / std::numbers::log2e, expected, allowed) << describe(c, at);
      ++good;
    }
    compared += good;
    const std::string& name = c.expressions.name;
    // Half of the scores lie within 9, half within 36; up to 15 are small, 10 with 20 tanh.
    if (name == "softcap") {
      EXPECT_NEAR(good, 142, 20);
    } else if (name == "downward") {
      EXPECT_NEAR(good, 128, 20);
    } else if (name == "alibi") {
      EXPECT_EQ(good, 200);
    } else if (name == "bias" || name == "softcap_bias") {
      EXPECT_EQ(good, 0) << name;
    }
  }
  EXPECT_GT(compared, 10'000);
}

TEST(ExpressionText, NoExpressionChangesNothing) {
  const Case& none = cases().front();
  const Point at{.score = 1.5, .query = 3, .key = 9};
  EXPECT_TRUE(none.compiled.mask(none.bytes.data(), at));
  EXPECT_EQ(none.compiled.score(none.bytes.data(), at), 1.5F);
  EXPECT_EQ(none.compiled.classify(none.bytes.data(), {}), static_cast<int>(Coverage::full));
  EXPECT_EQ(none.bytes.size(), 8U);
}

Coverage brute_force(const Case& c, const Tile& tile) {
  bool any = false;
  bool all = true;
  for (std::int64_t q = tile.query_min; q <= tile.query_max; ++q) {
    for (std::int64_t k = tile.key_min; k <= tile.key_max; ++k) {
      for (std::int32_t h = tile.head_min; h <= tile.head_max; ++h) {
        const Point at{0,
                       static_cast<std::int32_t>(q),
                       static_cast<std::int32_t>(k),
                       tile.batch,
                       h,
                       tile.seqlen_q,
                       tile.seqlen_k};
        const bool seen = evaluate<float>(c.expressions.mask, at) != 0;
        any = any || seen;
        all = all && seen;
      }
    }
  }
  return all ? Coverage::full : any ? Coverage::mixed : Coverage::empty;
}

TEST(ExpressionText, ClassifyNeverContradictsEvaluation) {
  test::RandomExpr random(11);
  int proven = 0;
  int as_the_cpu = 0;
  int total = 0;
  for (const Case& c : cases()) {
    if (c.expressions.mask.empty()) continue;
    for (int i = 0; i < 40; ++i) {
      const Tile tile = random_tile(random);
      const auto claimed = static_cast<Coverage>(c.compiled.classify(c.bytes.data(), tile));
      ++total;
      as_the_cpu += claimed == classify(c.expressions.mask, tile) ? 1 : 0;
      if (claimed == Coverage::mixed) continue;
      ++proven;
      const Point corner{
          0, tile.query_min, tile.key_min, tile.batch, tile.head_min, tile.seqlen_q, tile.seqlen_k};
      ASSERT_EQ(static_cast<int>(claimed), static_cast<int>(brute_force(c, tile)))
          << describe(c, corner) << " to query " << tile.query_max << " key " << tile.key_max
          << " head " << tile.head_max;
    }
  }
  EXPECT_GT(proven, total / 4);
  EXPECT_EQ(as_the_cpu, total);  // the boxes of these tiles have at most 256 elements
}

TEST(ExpressionText, ClassifyLooksAt256Elements) {
  for (const Case& c : cases()) {
    if (c.expressions.name != "documents") continue;
    const auto classify = [&](const Tile& tile) {
      return static_cast<Coverage>(c.compiled.classify(c.bytes.data(), tile));
    };
    Tile tile{.query_min = 300, .query_max = 304, .key_min = 44, .key_max = 299};
    tile.seqlen_q = tile.seqlen_k = 600;
    EXPECT_EQ(classify(tile), Coverage::empty);  // ids of 256 keys
    tile.key_min = 43;
    EXPECT_EQ(classify(tile), Coverage::mixed);
    tile = {.query_min = 302, .query_max = 304, .key_min = 300, .key_max = 302};
    EXPECT_EQ(classify(tile), Coverage::full);
    return;
  }
  FAIL() << "no documents case";
}

TEST(ExpressionText, PlainOperationsStayPlain) {
  const auto& s = expr::symbols();
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const std::string text = cuda::print_expressions(s.query >= s.key, s.score / 30);
  EXPECT_TRUE(has(text,
                  "int mask_last(int query, int, int, int, int) const {\n"
                  "    using namespace exact;\n"
                  "    return query;\n"))
      << text;
  EXPECT_TRUE(has(text, "kHasMask = true") && has(text, "kHasScore = true"));
  // Bounds of keys, and what is left.
  const auto bounds = [&](const Expr& mask) {
    const std::string t = cuda::print_expressions(mask, {});
    return std::array{has(t, "kMaskFirst = true"), has(t, "kMaskLast = true"),
                      has(t, "kMaskRest = true")};
  };
  EXPECT_EQ(bounds(s.query >= s.key), (std::array{false, true, false}));
  EXPECT_EQ(bounds(s.key > s.query - 7 && s.key < s.seqlen_k), (std::array{true, true, false}));
  EXPECT_EQ(bounds(s.key == s.query && s.head < 3), (std::array{true, true, true}));
  EXPECT_EQ(bounds(s.key <= s.query || s.key < 8), (std::array{false, false, true}));
  EXPECT_EQ(bounds(s.key <= s.key % 8), (std::array{false, false, true}));
  EXPECT_EQ(bounds({}), (std::array{false, false, false}));
  // Positions become floats without a conversion, other integers do not.
  const auto converts_positions = [&](const Expr& e) {
    return has(cuda::print_expressions({}, to_float(e)), "attn_position_to_float");
  };
  EXPECT_TRUE(converts_positions(abs(s.query + s.seqlen_k - s.seqlen_q - s.key)));
  EXPECT_TRUE(converts_positions(select(s.query < 3, -s.key, s.key % 7)));
  EXPECT_FALSE(converts_positions(s.query * s.key));
  EXPECT_FALSE(converts_positions(s.query - s.head));
  EXPECT_FALSE(converts_positions(5 * (s.query - s.key)));
  // Sums of positions cannot wrap in short sequences, others can.
  const std::string sums = cuda::print_expressions(
      s.query - s.key < 7 && s.query - s.head < 7 && s.query * s.key + 1 < 9, {});
  EXPECT_TRUE(has(sums, "attn_position_sub(query, key)")) << sums;
  EXPECT_TRUE(has(sums, "attn_sub(query, head)")) << sums;
  EXPECT_TRUE(has(sums, "attn_add(attn_mul(query, key), 1)")) << sums;
  // A value that is used twice is computed once.
  const Expr slow = tanh(s.score);
  EXPECT_TRUE(has(cuda::print_expressions({}, slow * slow + slow), " = attn_tanh(attn_mul(dot, "));
  // A contiguous last dimension is known to be one.
  const std::vector<std::int32_t> ids(8);
  const Expr mask = documents(tensor(ids.data(), {8}));
  EXPECT_TRUE(has(cuda::print_expressions(mask, {}), "load_shared_element<ElementI32, true>"));
  Tensor every_other = tensor(ids.data(), {4});
  every_other.strides[0] = 2;
  const expr::Bindings bindings{{buffers(mask)[0]->name(), every_other}};
  const cuda::ExpressionPack pack = cuda::expression_pack(mask, {}, 1, 2);
  EXPECT_TRUE(has(cuda::print_expressions(mask, {}, pack.printed(bindings)),
                  "load_shared_element<ElementI32, false>"));
  EXPECT_EQ(cuda::print_expressions(mask, {}, pack.printed({})), cuda::print_expressions(mask, {}));
  EXPECT_FALSE(pack.prints(pack.printed({}), bindings));
  EXPECT_TRUE(pack.prints(pack.printed({}), {}));
}

// What score() returns of a score, and the constants taken out of it.
struct Printed {
  std::string result;
  std::vector<float> multiples;  // with a softmax_scale of 1
  bool has_factor;
};
Printed printed(const Expr& score, const std::string& factor) {
  const std::string text = cuda::print_expressions({}, score);
  const auto at = text.find("return ", text.find(" float score("));
  const auto bytes = cuda::expression_pack({}, score, 1, 2).packed({});
  Printed p{text.substr(at + 7, text.find(";\n", at) - at - 7), {}, false};
  for (std::size_t i = 0; text.find("multiple_" + std::to_string(i) + ";") != text.npos; ++i) {
    p.multiples.push_back(0);
    std::memcpy(&p.multiples.back(), bytes.data() + i * sizeof(float), sizeof(float));
  }
  p.has_factor = text.find("kScoreFactor = " + factor + ";") != text.npos;
  return p;
}

TEST(ExpressionText, ConstantsLeaveTheScore) {
  const auto& s = expr::symbols();
  const auto expect = [](const Expr& score, const std::string& result,
                         const std::vector<float>& multiples, const std::string& factor) {
    const Printed p = printed(score, factor);
    EXPECT_EQ(p.result, result) << to_string(score);
    ASSERT_GE(p.multiples.size(), multiples.size()) << to_string(score);
    EXPECT_TRUE(std::ranges::equal(multiples, std::span(p.multiples).first(multiples.size())))
        << to_string(score);
    EXPECT_TRUE(p.has_factor) << to_string(score);
  };
  expect(softcap(30), "attn_tanh(attn_mul(dot, multiple_0))", {1 / 30.0F}, "0x1.ep+4f");
  expect(s.score / 2, "attn_mul(dot, multiple_0)", {1}, "0x1p-1f");
  expect(-(3 * s.score), "attn_mul(dot, multiple_0)", {-3}, "0x1p+0f");
  expect(tanh(-s.score / 4) * 8 / 2, "attn_tanh(attn_mul(dot, multiple_0))", {-0.25F}, "0x1p+2f");
  // A negative factor stays: the largest score is looked for before the factor.
  expect(-2 * exp(s.score), "attn_mul(-0x1p+1f, attn_exp(attn_mul(dot, multiple_0)))", {1},
         "0x1p+0f");
  // Two multiples, each one product.
  expect(exp(2 * s.score) + s.score / 2,
         "attn_add(attn_exp(attn_mul(dot, multiple_1)), attn_mul(dot, multiple_0))", {0.5F, 2},
         "0x1p+0f");
  // 0 and infinity are no factors, and a product of many constants may leave float32.
  expect(tanh(0.0F * s.score), "attn_tanh(attn_mul(0x0p+0f, attn_mul(dot, multiple_0)))", {1},
         "0x1p+0f");
  expect(exp(0x1p50F * (0x1p50F * s.score)),
         "attn_exp(attn_mul(0x1p+50f, attn_mul(dot, multiple_0)))", {0x1p50F}, "0x1p+0f");
  expect(to_float(s.query), "attn_position_to_float(query)", {}, "0x1p+0f");
}

// Operands of floor and to_int are rounded one operation at a time in scores, as in masks.
TEST(ExpressionText, OperandsOfFloorAreExact) {
  const auto& s = expr::symbols();
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const Expr x = s.head * 0.7F;
  EXPECT_TRUE(
      has(cuda::print_expressions({}, to_float(to_int(log(x / 3)))),
          "attn_to_int(exact::attn_log(exact::attn_div(exact::attn_mul(attn_to_float(head), "
          "0x1.666666p-1f), 0x1.8p+1f)))"));
  const std::string both = cuda::print_expressions({}, s.score + x / 3 * floor(x));
  EXPECT_TRUE(has(both, " = exact::attn_mul(attn_to_float(head), 0x1.666666p-1f);")) << both;
  EXPECT_TRUE(has(both, "attn_mul(attn_mul(v")) << both;  // x / 3 is a product
  EXPECT_FALSE(has(cuda::print_expressions(floor(x / 3) < 2, s.score + x / 3), "exact::"));
}

// The lines of exponent() and of share_row() that give values.
TEST(ExpressionText, ExponentsAreSumsOfProducts) {
  const auto& s = expr::symbols();
  const float data[4] = {};
  const expr::Buffer x("x", tensor(data, {4}));
  const auto lines = [](const Expr& score, const std::string& left) {
    const std::string text = cuda::print_expressions({}, score);
    std::vector<std::string> found;
    for (std::size_t at = text.find(left); at != text.npos; at = text.find(left, at + 1)) {
      found.push_back(text.substr(at, text.find(';', at) - at));
    }
    return found;
  };
  using Lines = std::vector<std::string>;
  const auto exponent = [&](const Expr& score) { return lines(score, "sum = "); };
  const auto shared = [&](const Expr& score) { return lines(score, "shared.value[0] = "); };
  EXPECT_EQ(exponent(softcap(30)),
            Lines{"sum = attn_fma(dot, small_tanh_ratio(dot, small_tanh, room), sum)"});
  EXPECT_EQ(exponent(softcap(3)),
            Lines{"sum = attn_fma(0x1.14ff58p+2f, attn_tanh(attn_mul(dot, multiple_0)), sum)"});
  EXPECT_EQ(exponent(s.score / 2), Lines{"sum = attn_fma(dot, multiple_1, sum)"});
  const Expr alibi = s.score - x[s.head] * to_float(abs(s.query - s.key));
  EXPECT_EQ(shared(alibi),
            Lines{"shared.value[0] = attn_mul(attn_share_x(head), -0x1.715476p+0f)"});
  EXPECT_EQ(exponent(alibi),
            (Lines{"sum = attn_fma(shared.value[0], attn_abs(attn_position_to_float("
                   "attn_position_sub(query, key_first), -1 * step)), sum)",
                   "sum = attn_fma(dot, multiple_1, sum)"}));
  EXPECT_EQ(exponent(s.score * x[s.head] + to_float(s.query)),
            (Lines{"sum = attn_fma(shared.value[0], attn_mul(dot, multiple_0), sum)",
                   "sum = attn_add(shared.value[1], sum)"}));
  // A difference without the score stays one: it may be exact where its terms are not.
  const Expr difference = to_float(s.query * s.key) - to_float(s.key);
  EXPECT_EQ(exponent(s.score + difference).size(), 2U);
  // There are no more than two terms, one of them without the score.
  const Expr capped = tanh(s.score / 30);
  for (const Expr& score :
       {(s.score / 64 + 512) * 64 - 32768, 30 * capped + 2 * capped, 30 * capped + exp(capped),
        exp(s.score) - to_float(s.key), s.score + capped}) {
    EXPECT_EQ(exponent(score), Lines{}) << to_string(score);
  }
  Expr doubled = tanh(s.score);
  for (int i = 0; i < 14; ++i) doubled = doubled + doubled;
  EXPECT_EQ(exponent(doubled), Lines{});
  EXPECT_EQ(exponent(exp(s.score)).size(), 1U);
  // Of scores that load elements each there is none.
  EXPECT_EQ(exponent(s.score + x[s.query - s.key]), Lines{});
}

TEST(ExpressionText, SmallArgumentsOfTanh) {
  const auto& s = expr::symbols();
  const auto text = [](const Expr& score) { return cuda::print_expressions({}, score); };
  const auto has = [&](const Expr& score, const std::string& part) {
    return text(score).find(part) != std::string::npos;
  };
  const auto is_small = [&](const Expr& score) {
    EXPECT_NE(has(score, "kHasSmallTanh = true"), has(score, "kHasSmallTanh = false"));
    return has(score, "kHasSmallTanh = true");
  };
  EXPECT_TRUE(is_small(softcap(16)));
  EXPECT_FALSE(is_small(softcap(15)));
  EXPECT_TRUE(is_small(-20 * tanh(s.score / 20) - to_float(s.key)));
  EXPECT_FALSE(is_small(s.score * tanh(s.score / 20)));
  EXPECT_FALSE(is_small(s.score));
  EXPECT_FALSE(is_small({}));
  EXPECT_FALSE(is_small(tanh((s.score + to_float(s.key)) / 30)));
  EXPECT_FALSE(is_small(tanh(to_float(s.key))));
  // A term that is a tanh needs two instructions, and all constants in the struct.
  EXPECT_TRUE(has(softcap(30), "  SmallTanh small_tanh;")) << text(softcap(30));
  EXPECT_EQ(cuda::expression_pack({}, softcap(30), 1, 2).size(), 24U);
  EXPECT_TRUE(has(softcap(30) + to_float(s.key), "attn_fma(dot, small_tanh_ratio(dot, "));
  // All others put it into the expression.
  const std::string unpacked =
      "  static constexpr SmallTanh small_tanh = SmallTanhOf<ATTN_PRECISE_MATH>::kValue;\n";
  for (const Expr& score : {tanh(s.score / -30), to_float(s.key) - tanh(s.score / 30)}) {
    EXPECT_TRUE(has(score, "attn_small_tanh(attn_mul(dot, multiple_0), room)")) << text(score);
    EXPECT_TRUE(has(score, unpacked)) << text(score);
  }
}

TEST(ExpressionText, SaysWhatScoresLoad) {
  const auto& s = expr::symbols();
  const float data[4] = {};
  const expr::Buffer x("x", tensor(data, {4}));
  const auto loads = [](const Expr& score) {
    return cuda::print_expressions({}, score).find("kScoreLoads = true") != std::string::npos;
  };
  EXPECT_TRUE(loads(s.score + x[s.query - s.key]));
  EXPECT_FALSE(loads(s.score + x[s.query] * x[s.key]));
}

TEST(ExpressionText, KeysAreSteps) {
  const auto& s = expr::symbols();
  const auto expect = [](const Expr& score, const std::string& result) {
    EXPECT_EQ(printed(score, "0x1p+0f").result, result) << to_string(score);
  };
  expect(to_float(s.key), "attn_position_to_float(key_first, 1 * step)");
  expect(to_float(abs(s.query - s.key)),
         "attn_abs(attn_position_to_float(attn_position_sub(query, key_first), -1 * step))");
  expect(
      to_float(s.query - s.key - s.key),
      "attn_position_to_float(attn_position_sub(attn_position_sub(query, key_first), key_first), "
      "-2 * step)");
  // Without the key there is nothing to add, and other operations take the whole key.
  expect(to_float(s.query - 3), "attn_position_to_float(attn_position_sub(query, 3))");
  expect(to_float(s.key % 4), "attn_position_to_float((key & 3))");
  expect(to_float(s.key - s.head), "attn_to_float(attn_sub(key, head))");
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "(accepted)";
}

TEST(ExpressionText, Refusals) {
  const auto& s = expr::symbols();
  const float data[4] = {};
  const Expr on_cpu = expr::Buffer("x", tensor(data, {4}))[s.key];
  EXPECT_NE(refusal([&] { cuda::print_expressions(s.query, {}); }).find("accepted is a boolean"),
            std::string::npos);
  EXPECT_NE(refusal([&] { cuda::print_expressions({}, s.query); }).find("accepted is a float32"),
            std::string::npos);
  EXPECT_NE(refusal([&] { cuda::print_expressions(s.score < 1, {}); }).find("depends on score"),
            std::string::npos);
  EXPECT_NE(
      refusal([&] { cuda::expression_pack({}, on_cpu, 1, 2).packed({}); }).find("a CUDA device"),
      std::string::npos);
  const Expr other = expr::Buffer("x", tensor(data, {2}))[s.key];
  EXPECT_NE(refusal([&] { cuda::print_expressions(on_cpu < 1, other); }).find("'x'"),
            std::string::npos);
  Expr many = s.score;
  for (int i = 0; i < 33; ++i) {
    many = many + expr::Buffer("x" + std::to_string(i), tensor(data, {4}))[s.key];
  }
  EXPECT_NE(refusal([&] { cuda::print_expressions({}, many); }).find("33 buffers"),
            std::string::npos);
}

}  // namespace
}  // namespace attn
