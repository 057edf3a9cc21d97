// Gradients, checked by finite differences: loss = sum(O * w), so d(loss)/dO = w.
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using Values = std::vector<float>;

int main() {
  const attn::Problem problem{.mask = attn::causal()};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto make = [&] {
    Values values(128 * 2 * 32);
    for (float& value : values) value = normal(random);
    return values;
  };
  const auto view = [](Values& x) { return attn::tensor(x.data(), {1, 128, 2, 32}); };
  Values q = make(), k = make(), v = make(), w = make(), o(q), lse(2 * 128);
  const attn::Inputs inputs{.q = view(q), .k = view(k), .v = view(v)};
  const attn::Outputs outputs{.o = view(o), .lse = attn::tensor(lse.data(), {1, 2, 128})};

  Values dq(q), dk(q), dv(q);
  attn::forward(problem, inputs, outputs);
  attn::backward(problem, inputs, outputs, view(w),
                 {.dq = view(dq), .dk = view(dk), .dv = view(dv)});

  const auto loss = [&] {
    attn::forward(problem, inputs, outputs);
    double sum = 0;
    for (std::size_t i = 0; i < o.size(); ++i) sum += double{o[i]} * double{w[i]};
    return sum;
  };
  // Along a random direction r: (loss(x + h r) - loss(x - h r)) / 2h = gradient . r + O(h^2).
  // h = 1e-2 balances that with the rounding of the loss in fp32.
  const auto check = [&](const char* name, Values& x, const Values& gradient) {
    const Values direction = make(), before = x;
    const auto move = [&](double h) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(before[i] + h * direction[i]);
      return loss();
    };
    const double difference = (move(1e-2) - move(-1e-2)) / 2e-2;
    x = before;
    double slope = 0;
    for (std::size_t i = 0; i < x.size(); ++i) slope += double{gradient[i]} * direction[i];
    std::printf("%s: gradient %.4f, finite difference %.4f\n", name, slope, difference);
    return std::abs(slope - difference) < 1e-2 * (1 + std::abs(slope));
  };
  bool correct = check("dQ", q, dq);
  correct = check("dK", k, dk) && correct;
  correct = check("dV", v, dv) && correct;
  return correct ? 0 : 1;
}
