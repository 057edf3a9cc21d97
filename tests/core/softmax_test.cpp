#include "attn/softmax.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "core/softmax_expected.hpp"

namespace attn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr SoftmaxAlgorithm kAlgorithms[] = {SoftmaxAlgorithm::three_pass, SoftmaxAlgorithm::online};

struct Result {
  std::vector<float> y, lse;
};

Result run(const std::vector<float>& x, std::int64_t rows, std::int64_t columns,
           SoftmaxAlgorithm algorithm) {
  Result r{std::vector<float>(x.size(), kNaN),
           std::vector<float>(static_cast<std::size_t>(rows), kNaN)};
  softmax(tensor(x.data(), {rows, columns}), tensor(r.y.data(), {rows, columns}),
          tensor(r.lse.data(), {rows}), algorithm);
  return r;
}

// Against the definition in double: 4 float roundings of y (x - m, exp, sum, quotient), where x - m
// of up to 200 adds an absolute error of 200 * 2^-24 to the exponent; below 2^-126 two roundings to
// the grid of subnormals.
void check_definition(std::uint32_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const SoftmaxAlgorithm algorithm : kAlgorithms) {
    for (const std::int64_t columns : {1, 2, 3, 17, 1000}) {
      const std::int64_t rows = 7;
      std::vector<float> x(static_cast<std::size_t>(rows * columns));
      std::uniform_real_distribution<float> uniform(-100, 100);
      for (float& v : x) v = random() % 10 == 0 ? -kInfinity : uniform(random);
      for (std::int64_t i = 0; i < rows; ++i)
        x[static_cast<std::size_t>(i * columns)] = uniform(random);
      const Result r = run(x, rows, columns, algorithm);
      for (std::int64_t i = 0; i < rows; ++i) {
        double maximum = -kInfinity, sum = 0;
        const float* row = x.data() + i * columns;
        for (std::int64_t j = 0; j < columns; ++j) maximum = std::max(maximum, double{row[j]});
        for (std::int64_t j = 0; j < columns; ++j) sum += std::exp(row[j] - maximum);
        for (std::int64_t j = 0; j < columns; ++j) {
          const double expected = std::exp(row[j] - maximum) / sum;
          ASSERT_NEAR(r.y[static_cast<std::size_t>(i * columns + j)], expected,
                      expected * (4 + 200) * 0x1p-24 + 0x1p-148);
        }
        const double lse = maximum + std::log(sum);
        ASSERT_NEAR(r.lse[static_cast<std::size_t>(i)], lse, 4 * 0x1p-24 * (1 + std::abs(lse)));
      }
    }
  }
}

TEST(Softmax, AgreesWithTheDefinition) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) check_definition(seed);
}

TEST(Softmax, LargeMagnitudesDoNotOverflow) {
  for (const SoftmaxAlgorithm algorithm : kAlgorithms) {
    const Result r = run({3e38f, 3e38f, -3e38f, -3e38f, -3e38f, -3e38f}, 2, 3, algorithm);
    EXPECT_EQ(r.y[0], 0.5f);
    EXPECT_EQ(r.y[2], 0.0f);
    EXPECT_NEAR(r.y[3], 1.0f / 3, 1e-7f);
  }
}

TEST(Softmax, RowOfMinusInfinityGivesZeros) {
  for (const SoftmaxAlgorithm algorithm : kAlgorithms) {
    const Result r = run({-kInfinity, -kInfinity, 0, -kInfinity}, 2, 2, algorithm);
    EXPECT_EQ(r.y, (std::vector<float>{0, 0, 1, 0}));
    EXPECT_EQ(r.lse, (std::vector<float>{-kInfinity, 0}));
  }
}

TEST(Softmax, NaNPropagatesWithinItsRow) {
  for (const SoftmaxAlgorithm algorithm : kAlgorithms) {
    for (const std::vector<float>& bad : {std::vector<float>{kNaN, 1, 2},
                                          {1, kNaN, 2},
                                          {1, 2, kNaN},
                                          {kNaN, -kInfinity, -kInfinity},
                                          {-kInfinity, kNaN, -kInfinity}}) {
      std::vector<float> x = bad;
      x.insert(x.end(), {0, 0, -kInfinity});
      const Result r = run(x, 2, 3, algorithm);
      for (std::size_t j = 0; j < 3; ++j) {
        EXPECT_TRUE(std::isnan(r.y[j])) << j;
      }
      EXPECT_TRUE(std::isnan(r.lse[0]));
      EXPECT_EQ(r.y[3], 0.5f);
    }
  }
}

TEST(Softmax, InPlaceStridedAndEmpty) {
  std::vector<float> x = {1, 2, 99, 3, 4, 99};
  Tensor t = tensor(x.data(), {2, 2});
  t.strides = {3, 1};
  softmax(t, t);
  EXPECT_NEAR(x[0] + x[1], 1, 1e-6);
  EXPECT_NEAR(x[3], 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_EQ(x[2], 99);
  EXPECT_EQ(x[5], 99);
  std::vector<float> lse = {0, 0};
  softmax(tensor(x.data(), {2, 0}), tensor(x.data(), {2, 0}), tensor(lse.data(), {2}));
  EXPECT_EQ(lse, (std::vector<float>{-kInfinity, -kInfinity}));
}

struct TopResult {
  std::vector<float> values, lse;
  std::vector<std::int32_t> columns;
};
TopResult run_top(const std::vector<float>& x, std::int64_t rows, std::int64_t columns,
                  std::int64_t k, SoftmaxAlgorithm algorithm) {
  const auto size = static_cast<std::size_t>(rows * k);
  TopResult r{std::vector<float>(size, kNaN),
              std::vector<float>(static_cast<std::size_t>(rows), kNaN),
              std::vector<std::int32_t>(size, -7)};
  softmax_top(tensor(x.data(), {rows, columns}), tensor(r.values.data(), {rows, k}),
              tensor(r.columns.data(), {rows, k}), tensor(r.lse.data(), {rows}), algorithm);
  return r;
}

TEST(SoftmaxTop, AgreesWithTheDefinition) {
  for (const SoftmaxAlgorithm algorithm : kAlgorithms) {
    for (const std::int64_t columns : {0, 1, 4, 5, 33, 1000}) {
      for (const std::int64_t k : {1, 5, 32}) {
        const std::int64_t rows = 9;
        const std::vector<float> x = softmax_rows(rows * columns, 11);
        const TopResult r = run_top(x, rows, columns, k, algorithm);
        for (std::int64_t i = 0; i < rows; ++i) {
          const SoftmaxExpected expected(x.data() + i * columns, columns);
          if (expected.order.empty()) {
            EXPECT_EQ(r.lse[static_cast<std::size_t>(i)], -kInfinity);
          } else {
            EXPECT_NEAR(r.lse[static_cast<std::size_t>(i)], expected.lse, 1e-5);
          }
          for (std::int64_t j = 0; j < k; ++j) {
            const auto at = static_cast<std::size_t>(i * k + j),
                       place = static_cast<std::size_t>(j);
            if (place >= expected.order.size()) {
              ASSERT_EQ(r.columns[at], -1);
              ASSERT_EQ(r.values[at], 0);
              continue;
            }
            const auto column = static_cast<std::size_t>(expected.order[place]);
            ASSERT_EQ(r.columns[at], expected.order[place]) << i << ' ' << j;
            const double y = expected.y[column];
            ASSERT_NEAR(r.values[at], y,
                        expected.allowed(x[static_cast<std::size_t>(i * columns) + column], y, 0));
          }
        }
      }
    }
  }
}

TEST(SoftmaxTop, NaNMakesValuesOfItsRowNaN) {
  for (const SoftmaxAlgorithm algorithm : kAlgorithms) {
    const TopResult r = run_top({1, kNaN, 2, 1, 3, 3}, 2, 3, 2, algorithm);
    EXPECT_TRUE(std::isnan(r.values[0]) && std::isnan(r.values[1]) && std::isnan(r.lse[0]));
    EXPECT_EQ(r.columns[2], 1);
    EXPECT_EQ(r.columns[3], 2);
  }
}

TEST(SoftmaxTop, Refusals) {
  std::vector<float> x(12), values(12, kNaN);
  std::vector<std::int32_t> columns(12, -7);
  const Tensor good_x = tensor(x.data(), {3, 4}), good_values = tensor(values.data(), {3, 2}),
               good_columns = tensor(columns.data(), {3, 2});
  std::vector<float> wide(99);
  std::vector<std::int32_t> wide_columns(99);
  EXPECT_THROW(softmax_top(good_x, tensor(values.data(), {3, 0}), tensor(columns.data(), {3, 0})),
               Error);
  EXPECT_THROW(
      softmax_top(good_x, tensor(wide.data(), {3, 33}), tensor(wide_columns.data(), {3, 33})),
      Error);
  EXPECT_THROW(softmax_top(good_x, good_values, tensor(columns.data(), {3, 3})), Error);
  EXPECT_THROW(softmax_top(good_x, good_values, tensor(values.data() + 6, {3, 2})), Error);
  EXPECT_THROW(softmax_top(good_x, tensor(x.data(), {3, 2}), good_columns), Error);
  EXPECT_THROW(softmax_top(good_x, good_values, good_columns, tensor(values.data(), {3})), Error);
  const auto unknown = static_cast<SoftmaxAlgorithm>(7);
  EXPECT_THROW(softmax_top(good_x, good_values, good_columns, {}, unknown), Error);
  for (const float v : values) EXPECT_TRUE(std::isnan(v));
  for (const std::int32_t c : columns) EXPECT_EQ(c, -7);
}

TEST(Softmax, Refusals) {
  std::vector<float> x(12), y(12, kNaN), lse(4, kNaN);
  const Tensor good_x = tensor(x.data(), {3, 4}), good_y = tensor(y.data(), {3, 4});
  Tensor transposed = good_y;
  transposed.strides = {1, 3};
  Tensor wrong_dtype = good_x;
  wrong_dtype.dtype = DType::bf16;
  EXPECT_THROW(softmax(wrong_dtype, good_y), Error);
  EXPECT_THROW(softmax(good_x, Tensor{}), Error);
  EXPECT_THROW(softmax(good_x, tensor(y.data(), {4, 3})), Error);
  EXPECT_THROW(softmax(good_x, transposed), Error);
  EXPECT_THROW(softmax(good_x, good_y, tensor(lse.data(), {4})), Error);
  EXPECT_THROW(softmax(good_x, good_y, tensor(y.data(), {3})), Error);
  EXPECT_THROW(softmax(good_x, tensor(x.data() + 1, {2, 4})), Error);
  EXPECT_THROW(softmax(good_x, good_y, {}, static_cast<SoftmaxAlgorithm>(7)), Error);
  for (const Device device : {Device{DeviceType::cpu, 1}, Device{static_cast<DeviceType>(9), 0}}) {
    Tensor elsewhere_x = good_x, elsewhere_y = good_y;
    elsewhere_x.device = elsewhere_y.device = device;
    EXPECT_THROW(softmax(elsewhere_x, elsewhere_y), Error) << to_string(device);
  }
  for (const float v : y) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace attn
