// Derivatives against central finite differences in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <limits>
#include <vector>

#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "core/expr/build.hpp"
#include "random_expr.hpp"

namespace attn {
namespace {

using expr::Expr;
using expr::Point;

constexpr double kStep = 1e-5;
// Two steps, so that a kink near the point shows as a difference between them.
struct Slope {
  double value;
  bool smooth;
};
template <class Function>
Slope slope(Function f) {
  const auto central = [&](double h) { return (f(h) - f(-h)) / (2 * h); };
  const double fine = central(kStep);
  const double coarse = central(8 * kStep);
  const double one_sided = (f(kStep) - f(0)) / kStep;
  const double size = 1 + std::abs(fine);
  return {fine, std::abs(fine - coarse) < 1e-5 * size && std::abs(one_sided - fine) < 1e-3 * size};
}

Point random_point(test::RandomExpr& random) {
  Point at;
  at.score = random.real(-3, 3);
  at.query = random.uniform(0, 9);
  at.key = random.uniform(0, 9);
  at.batch = random.uniform(0, 1);
  at.head = random.uniform(0, 3);
  at.seqlen_q = at.seqlen_k = 10;
  return at;
}

TEST(Derivative, MatchesFiniteDifferences) {
  int compared = 0;
  for (std::uint32_t seed = 1; seed <= 3000; ++seed) {
    test::RandomExpr random(seed, true);
    const Expr e = random.float32(random.uniform(1, 5), true);
    const Expr d = derivative(e);
    for (int i = 0; i < 4; ++i) {
      const Point at = random_point(random);
      const Slope measured = slope([&](double step) {
        Point moved = at;
        moved.score += step;
        return evaluate<double>(e, moved);
      });
      if (!measured.smooth) continue;
      ++compared;
      ASSERT_NEAR(evaluate<double>(d, at), measured.value, 1e-5 * (1 + std::abs(measured.value)))
          << "seed " << seed << " at score " << at.score << ": d " << to_string(e) << " = "
          << to_string(d);
    }
  }
  EXPECT_GT(compared, 9000);
}

TEST(Derivative, OfLoadsMatchesFiniteDifferences) {
  const auto& s = expr::symbols();
  int compared = 0;
  for (std::uint32_t seed = 1; seed <= 3000; ++seed) {
    test::RandomExpr random(seed, true);
    // Two loads with index expressions that often meet in one element, and one of each alone.
    std::vector<float> elements(10);
    for (float& element : elements) element = static_cast<float>(random.real(-2, 2));
    const expr::Buffer w("w", tensor(elements.data(), {10}));
    const Expr e = random.float32(3, true) * w[s.query] + tanh(w[s.key] * s.score) * w[s.query] -
                   select(s.query < s.key, exp(w[min(s.query, s.key)]), random.float32(2, true));
    const Point at = random_point(random);
    // d e / d element summed over the loads that read it.
    std::vector<double> gradient(10, 0.0);
    for (const auto& [load, d] : load_derivatives(e, "w")) {
      const auto index = evaluate<double>(load.node().args[0], at);
      gradient[static_cast<std::size_t>(index)] += evaluate<double>(d, at);
    }
    for (std::size_t i = 0; i < elements.size(); ++i) {
      // Elements are float32: a step of a power of two keeps the moved element exact enough.
      const float step = 1.0f / 128;
      const float kept = elements[i];
      const auto moved = [&](float by) {
        elements[i] = kept + by;
        const auto value = evaluate<double>(e, at);
        const double by_exact = static_cast<double>(elements[i]) - static_cast<double>(kept);
        elements[i] = kept;
        return std::pair{value, by_exact};
      };
      const auto [above, up] = moved(step);
      const auto [below, down] = moved(-step);
      const double measured = (above - below) / (up - down);
      ++compared;
      // The error of central differences: step^2 / 6 times a third derivative of moderate size.
      ASSERT_NEAR(gradient[i], measured, 1e-3 * (1 + std::abs(gradient[i])))
          << "seed " << seed << " element " << i << ": " << to_string(e);
    }
  }
  EXPECT_EQ(compared, 30000);
}

TEST(Derivative, IsSimple) {
  const auto& s = expr::symbols();
  const float data[4] = {};
  const expr::Buffer w("w", tensor(data, {4}));
  EXPECT_EQ(to_string(derivative(s.score)), "1.0");
  EXPECT_EQ(to_string(derivative(s.score + w[s.key])), "1.0");
  EXPECT_EQ(to_string(derivative(w[s.key] * 3)), "0.0");
  EXPECT_EQ(to_string(derivative(alibi(tensor(data, {4})))), "1.0");
  EXPECT_EQ(to_string(derivative(tanh(s.score), expr::TanhSlope::squares)),
            "1.0 - tanh(score) * tanh(score)");
  EXPECT_EQ(to_string(derivative(softcap(8), expr::TanhSlope::squares)),
            "1.0 - tanh(score / 8.0) * tanh(score / 8.0)");
  EXPECT_EQ(to_string(derivative(tanh(s.score))),
            "4.0 * exp(-2.0 * abs(score)) / ((1.0 + exp(-2.0 * abs(score))) * (1.0 + exp(-2.0 * "
            "abs(score))))");
  EXPECT_EQ(to_string(derivative(s.score * s.score)), "score + score");
  EXPECT_EQ(to_string(derivative(exp2(s.score))), "0.6931472 * exp2(score)");
  EXPECT_EQ(to_string(derivative(sin(2 * s.score))), "cos(2.0 * score) * 2.0");
  EXPECT_EQ(to_string(derivative(cos(s.score))), "-sin(score)");
  EXPECT_EQ(to_string(derivative(erf(s.score))), "1.1283792 * exp(-(score * score))");
  EXPECT_EQ(to_string(derivative(select(s.key < 3, s.score, 0))), "select(key < 3, 1.0, 0.0)");
  EXPECT_EQ(to_string(derivative(select(w[s.key] > 0, s.score + 1, s.score))), "1.0");
}

TEST(Derivative, OfFloorIsZero) {
  const auto& s = expr::symbols();
  const float data[4] = {};
  const expr::Buffer w("w", tensor(data, {4}));
  const expr::Buffer v("v", tensor(data, {4}));
  EXPECT_EQ(to_string(derivative(floor(w[s.key]))), "0.0");
  EXPECT_EQ(to_string(derivative(s.score + floor(w[s.key]))), "1.0");
  EXPECT_EQ(to_string(derivative(s.score * to_int(w[s.key]))), "to_float(to_int(w[key]))");
  EXPECT_TRUE(load_derivatives(floor(w[s.key]), "w").empty());
  EXPECT_TRUE(load_derivatives(to_float(to_int(w[s.key])) * s.score, "w").empty());
  // The remainder of floats.
  const Expr a = w[s.key], b = v[s.query];
  const Expr remainder = s.score + (a - floor(a / b) * b);
  const auto by_a = load_derivatives(remainder, "w");
  const auto by_b = load_derivatives(remainder, "v");
  ASSERT_EQ(by_a.size(), 1U);
  ASSERT_EQ(by_b.size(), 1U);
  EXPECT_EQ(to_string(by_a[0].derivative), "1.0");
  EXPECT_EQ(to_string(by_b[0].derivative), "-floor(w[key] / v[query])");
}

// 1 - tanh^2 has no digit left at 9, where the derivative is 6e-8.
TEST(Derivative, OfTanhKeepsItsDigitsWhereItSaturates) {
  const auto& s = expr::symbols();
  const float data[1] = {1};
  const expr::Buffer w("w", tensor(data, {1}));
  const Expr by_score = derivative(tanh(s.score));
  const Expr by_load = load_derivatives(tanh(w[s.key] * s.score), "w").front().derivative;
  for (const double x : {0.0, 0.3, 2.0, 5.0, 9.0, 20.0, 43.0}) {
    const double expected = 1 / (std::cosh(x) * std::cosh(x));
    for (const double sign : {1.0, -1.0}) {
      const Point at{.score = sign * x};
      EXPECT_NEAR(evaluate<float>(by_score, at), expected, 1e-5 * expected) << x;
      EXPECT_NEAR(evaluate<double>(by_score, at), expected, 1e-14 * expected) << x;
      EXPECT_NEAR(evaluate<float>(by_load, at), sign * x * expected, 1e-5 * x * expected) << x;
    }
  }
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(evaluate<float>(by_score, {.score = infinity}), 0);
  EXPECT_EQ(evaluate<float>(by_score, {.score = -infinity}), 0);
  EXPECT_TRUE(std::isnan(evaluate<float>(by_score, {.score = std::nan("")})));
}

TEST(Derivative, OfLoadsNamesEachElementOnce) {
  const auto& s = expr::symbols();
  const float data[4] = {};
  const std::int32_t numbers[4] = {};
  const expr::Buffer w("w", tensor(data, {4}));
  const expr::Buffer n("n", tensor(numbers, {4}));
  const auto twice = load_derivatives(w[s.key] * w[s.key] + w[s.query], "w");
  ASSERT_EQ(twice.size(), 2U);
  EXPECT_EQ(to_string(twice[0].load), "w[key]");
  EXPECT_EQ(to_string(twice[0].derivative), "w[key] + w[key]");
  EXPECT_EQ(to_string(twice[1].load), "w[query]");
  EXPECT_EQ(to_string(twice[1].derivative), "1.0");
  EXPECT_TRUE(load_derivatives(s.score, "w").empty());
  EXPECT_TRUE(load_derivatives(s.score * n[s.key], "n").empty());  // int32: no gradient
  EXPECT_TRUE(load_derivatives(select(w[s.key] < 0, s.score, 1), "w").empty());
}

// A walk of the tree for each load took a minute here.
TEST(Derivative, OfManyLoadsTakesNoTimeOfItsOwn) {
  const auto& s = expr::symbols();
  const expr::Buffer w("w", Tensor{.rank = 1, .shape = {4096}});
  std::vector<Expr> terms;
  for (int i = 1; i <= 4096; ++i) terms.push_back(w[s.key + i]);
  while (terms.size() > 1) {
    for (std::size_t i = 0; i < terms.size() / 2; ++i) terms[i] = terms[2 * i] + terms[2 * i + 1];
    terms.resize(terms.size() / 2);
  }
  const std::clock_t start = std::clock();  // of the processor: others may use it too
  const auto derivatives = load_derivatives(s.score + terms[0], "w");
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
  ASSERT_EQ(derivatives.size(), 4096U);
  EXPECT_EQ(to_string(derivatives[4095].load), "w[key + 4096]");
  EXPECT_EQ(to_string(derivatives[4095].derivative), "1.0");
}

TEST(Derivative, RefusesOtherTypes) {
  const auto& s = expr::symbols();
  EXPECT_THROW(derivative(s.query), Error);
  EXPECT_THROW(derivative(s.query < s.key), Error);
  EXPECT_THROW(derivative(Expr()), Error);
  EXPECT_THROW(load_derivatives(s.query, "w"), Error);
}

}  // namespace
}  // namespace attn
