// A decoding step with grouped heads, a mask and a score change written as expressions: each of 8
// query heads sees the last 1024 keys and the first 4 ("attention sinks"), scores are capped at 30
// and fall with distance at a rate of its own.
#include <algorithm>
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

int main() {
  constexpr std::int64_t kBatch = 2, kKeys = 4096, kHeadsQ = 8, kHeadsK = 2, kDim = 128;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto make = [&](std::int64_t size) {
    std::vector<float> values(static_cast<std::size_t>(size));
    for (float& value : values) value = normal(random);
    return values;
  };
  std::vector<float> q = make(kBatch * kHeadsQ * kDim);
  std::vector<float> k = make(kBatch * kKeys * kHeadsK * kDim);
  std::vector<float> v = make(kBatch * kKeys * kHeadsK * kDim);
  std::vector<float> slopes = attn::alibi_slopes(kHeadsQ);
  std::vector<float> o(q.size()), expected(q.size());

  // position is the query's place among the keys: the last query stands at the last key.
  const auto& s = attn::expr::symbols();
  const auto distance = s.position - s.key;
  const attn::expr::Buffer slope("slope", attn::tensor(slopes.data(), {kHeadsQ}));
  const attn::Problem problem{
      .mask = s.key < 4 || (distance >= 0 && distance < 1024),                 // sinks, window
      .score = 30 * tanh(s.score / 30) - slope[s.head] * to_float(distance)};  // cap, ALiBi
  const attn::Inputs inputs{.q = attn::tensor(q.data(), {kBatch, 1, kHeadsQ, kDim}),
                            .k = attn::tensor(k.data(), {kBatch, kKeys, kHeadsK, kDim}),
                            .v = attn::tensor(v.data(), {kBatch, kKeys, kHeadsK, kDim})};
  const auto view = [&](auto& x) { return attn::tensor(x.data(), {kBatch, 1, kHeadsQ, kDim}); };
  const attn::Plan plan = attn::make_plan(attn::complete(problem, inputs), attn::Phase::forward);
  std::printf("%s\n", attn::to_string(plan).c_str());
  attn::forward(plan, inputs, {.o = view(o)});

  attn::forward(problem, inputs, {.o = view(expected)}, {.backend = attn::Backend::reference});
  float error = 0;
  for (std::size_t i = 0; i < o.size(); ++i) error = std::max(error, std::abs(o[i] - expected[i]));
  std::printf("largest difference from fp64: %g\n", error);
  return error < 1e-5F ? 0 : 1;
}
