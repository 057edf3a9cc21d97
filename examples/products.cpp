// Products of a layer: x + (x W^T) W', with W of bf16 as weights are stored, compared with the same
// in double.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <vector>

#include "attn/attn.hpp"

namespace {

constexpr std::size_t kRows = 3, kInner = 20, kWide = 40;

std::vector<float> uniform(std::size_t count, float size) {
  static std::mt19937 random(1);
  std::uniform_real_distribution<float> distribution(-size, size);
  std::vector<float> values(count);
  for (float& x : values) x = distribution(random);
  return values;
}

}  // namespace

int main() {
  const std::vector<float> x = uniform(kRows * kInner, 1), w = uniform(kWide * kInner, 1);
  const std::vector<float> w_back = uniform(kWide * kInner, 0.05f);
  std::vector<attn::bfloat16> stored(w.begin(), w.end());
  std::vector<float> y(kRows * kWide), sum = x;
  const attn::Tensor activations = attn::tensor(x.data(), {kRows, kInner});
  const attn::Tensor weights = attn::tensor(stored.data(), {kWide, kInner});
  const attn::Tensor projected = attn::tensor(y.data(), {kRows, kWide});
  const attn::Tensor back = attn::tensor(w_back.data(), {kWide, kInner});
  const attn::Tensor residual = attn::tensor(sum.data(), {kRows, kInner});
  attn::matmul({.a = activations, .b = attn::transposed(weights)}, projected);
  attn::MatmulProblem problem = attn::describe({.a = projected, .b = back}, residual);
  problem.accumulate = true;  // residual += projected * back
  attn::matmul(attn::make_plan(problem), {.a = projected, .b = back}, residual);

  double worst = 0;
  for (std::size_t i = 0; i < kRows; ++i) {
    std::vector<double> expected(x.begin() + i * kInner, x.begin() + (i + 1) * kInner);
    for (std::size_t j = 0; j < kWide; ++j) {
      double product = 0;
      for (std::size_t l = 0; l < kInner; ++l) {
        product += double{x[i * kInner + l]} * double{static_cast<float>(stored[j * kInner + l])};
      }
      for (std::size_t l = 0; l < kInner; ++l)
        expected[l] += product * double{w_back[j * kInner + l]};
    }
    for (std::size_t l = 0; l < kInner; ++l) {
      const double difference = std::abs(double{sum[i * kInner + l]} - expected[l]);
      if (!(difference <= worst)) worst = difference;
    }
  }
  std::printf("x + (x W^T) W' differs by at most %.1e from that in double\n", worst);
  return worst < 2e-6 ? 0 : 1;
}
