// Softmax of a row by its definition, in double, for the tests of every backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace attn {

struct SoftmaxExpected {
  explicit SoftmaxExpected(const float* x, std::int64_t columns)
      : y(static_cast<std::size_t>(columns)) {
    for (std::size_t j = 0; j < y.size(); ++j) maximum = std::max(maximum, double{x[j]});
    for (std::size_t j = 0; j < y.size(); ++j) sum += y[j] = of(x[j]);
    for (double& value : y) value = sum == 0 ? 0 : value / sum;
    lse = sum == 0 ? -std::numeric_limits<double>::infinity() : maximum + std::log(sum);
    for (std::size_t j = 0; j < y.size(); ++j) {
      if (x[j] > -std::numeric_limits<float>::infinity()) {
        order.push_back(static_cast<std::int32_t>(j));
      }
    }
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      const float x_a = x[static_cast<std::size_t>(a)], x_b = x[static_cast<std::size_t>(b)];
      return x_a != x_b ? x_a > x_b : a < b;
    });
  }
  double of(float x) const { return std::exp(x - (sum_is_empty() ? 0 : maximum)); }
  bool sum_is_empty() const { return maximum == -std::numeric_limits<double>::infinity(); }

  // What y may differ by: roundings of x - max, exp, sum (in f32 of up to `sums` additions) and
  // quotient; below 2^-126 two roundings to the grid of subnormals.
  double allowed(float x, double expected, double sums) const {
    constexpr double kTooFar = 1000;  // e^-1000 is 0; and 0 times infinity would be NaN
    const double distance = std::min(std::abs(x - maximum), kTooFar);
    return expected * (8 + sums + distance) * 0x1p-24 + 0x1p-148;
  }

  double maximum = -std::numeric_limits<double>::infinity(), sum = 0, lse = 0;
  std::vector<double> y;
  std::vector<std::int32_t> order;  // columns above -inf, largest first, equal ones in their order
};

// Numbers of -100 to 100, a tenth of them -inf, every ninth as large as one before it.
inline std::vector<float> softmax_rows(std::int64_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-100, 100);
  std::vector<float> x(static_cast<std::size_t>(size));
  for (std::size_t j = 0; j < x.size(); ++j) {
    x[j] = random() % 10 == 0  ? -std::numeric_limits<float>::infinity()
           : random() % 9 == 0 ? x[random() % (j + 1)]
                               : uniform(random);
  }
  return x;
}

}  // namespace attn
