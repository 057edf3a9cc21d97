// Causal attention of 4 heads over 512 positions, compared with its definition in fp64.
#include <algorithm>
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <vector>
int main() {
  std::vector<float> q(512 * 4 * 64), k(q), v(q), o(q), reference(q);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::sin(float(i)), k[i] = v[i] = q[i] * q[i];
  const auto view = [](auto& x) { return attn::tensor(x.data(), {1, 512, 4, 64}); };  // b n h d
  const attn::Problem problem{.mask = attn::causal()};
  const attn::Inputs inputs{.q = view(q), .k = view(k), .v = view(v)};
  attn::forward(problem, inputs, {.o = view(o)});
  attn::forward(problem, inputs, {.o = view(reference)}, {.backend = attn::Backend::reference});
  float error = 0;
  for (std::size_t i = 0; i < o.size(); ++i) error = std::max(error, std::abs(o[i] - reference[i]));
  std::printf("largest difference from fp64: %g\n", error);
  return error < 1e-5F ? 0 : 1;
}
