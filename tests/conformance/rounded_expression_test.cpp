// What the roundings of its operations may move an expression by.
#include "verify/rounded_expression.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "attn/expr.hpp"
#include "expr/random_expr.hpp"

namespace attn::verify {
namespace {

using expr::Expr;

expr::Point at_score(double score) {
  return {
      .score = score, .query = 3, .key = 1, .batch = 0, .head = 0, .seqlen_q = 8, .seqlen_k = 8};
}

RoundedExpression::Result of(const char* text, double score) {
  return RoundedExpression(expr::parse(text)).at(at_score(score), {});
}

TEST(RoundedExpression, EveryOperationBeforeTheLastCounts) {
  EXPECT_EQ(of("score", 7).square, 0);
  EXPECT_EQ(of("score + 2.5", 7).square, 0);  // the last operation
  // x = 10 enters twice, with 1 - 0.02 * x together; then 0.01 * x and 0.01 * x * x.
  const auto quadratic = of("(score + 2.0) - 0.01 * (score + 2.0) * (score + 2.0)", 8);
  EXPECT_NEAR(quadratic.value, 9, 1e-6);
  EXPECT_NEAR(quadratic.slope, 0.8, 1e-6);
  EXPECT_NEAR(quadratic.square, 64 + 1 + 1, 1e-4);
  // What cancels leaves its rounding.
  EXPECT_NEAR(of("(score + 1000.0) - 1000.0", 1).square, 1001.0 * 1001.0, 1e-6);
  // An operand that is not chosen moves nothing; what is as exact as an integer is not rounded.
  EXPECT_EQ(of("select(query >= key, score, exp(score))", 3).square, 0);
  EXPECT_EQ(of("score + to_float(query - key)", 3).square, 0);
  EXPECT_EQ(of("sqrt(abs(score) - abs(score))", 0.5).square, 0);  // a difference of 0, exactly
}

// What is in a floor is float32, where 0.7 * 10 is 7, and its result has no rounding.
TEST(RoundedExpression, FloorsAreExact) {
  const auto result = of("score + 3.0 * floor(0.7 * (query * query + 1))", 2);
  EXPECT_EQ(result.value, 23);
  EXPECT_EQ(result.slope, 1);
  EXPECT_EQ(result.square, 21 * 21);  // of the product
}

// Every operation, conditions and loads: the sweeps give what the symbolic forms do,
// whose constant factors are rounded to float.
TEST(RoundedExpression, SlopeIsTheDerivative) {
  int compared = 0;
  for (std::uint32_t seed = 1; seed <= 500; ++seed) {
    test::RandomExpr random(seed, true);
    const Expr e = random.float32(random.uniform(1, 5), true);
    RoundedExpression rounded(e);
    for (int i = 0; i < 4; ++i) {
      const expr::Point at = at_score(random.real(-3, 3));
      const auto result = rounded.at(at, {});
      const double value = expr::evaluate<double>(e, at);
      const double slope = expr::evaluate<double>(derivative(e), at);
      if (!std::isfinite(value) || !std::isfinite(slope)) continue;
      ++compared;
      EXPECT_EQ(result.value, value) << to_string(e);
      EXPECT_NEAR(result.slope, slope, 1e-6 * (1 + std::abs(slope))) << to_string(e);
      EXPECT_TRUE(std::isfinite(result.square)) << to_string(e);
    }
  }
  EXPECT_GT(compared, 1900);
}

}  // namespace
}  // namespace attn::verify
