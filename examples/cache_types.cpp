// A cache in 8 bits beside queries in f32: keys and values are rounded as they are appended, and
// attention reads them as they lie.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "attn/attn.hpp"

namespace {

constexpr std::int64_t kKeys = 500, kHeads = 8, kHeadsK = 2, kDim = 64;

std::vector<float> normal(std::int64_t count) {
  static std::mt19937 random(1);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = distribution(random);
  return values;
}

}  // namespace

int main() {
  const std::int64_t bytes = attn::row_size(attn::CacheType::q8_0, kDim);
  std::vector<std::uint8_t> cache_k(static_cast<std::size_t>(kKeys * kHeadsK * bytes));
  std::vector<std::uint8_t> cache_v = cache_k;
  const attn::Tensor k = attn::tensor(cache_k.data(), {1, kKeys, kHeadsK, bytes});
  const attn::Tensor v = attn::tensor(cache_v.data(), {1, kKeys, kHeadsK, bytes});

  const std::vector<float> keys = normal(kKeys * kHeadsK * kDim);
  const std::vector<float> values = normal(kKeys * kHeadsK * kDim);
  const attn::Tensor new_k = attn::tensor(keys.data(), {1, kKeys, kHeadsK, kDim});
  const attn::Tensor new_v = attn::tensor(values.data(), {1, kKeys, kHeadsK, kDim});
  attn::quantize(new_k, attn::CacheType::q8_0, k);
  attn::quantize(new_v, attn::CacheType::q8_0, v);

  const std::vector<float> queries = normal(kHeads * kDim);
  std::vector<float> result(queries.size()), exact(queries.size());
  const attn::Tensor q = attn::tensor(queries.data(), {1, 1, kHeads, kDim});
  const attn::Tensor o = attn::tensor(result.data(), {1, 1, kHeads, kDim});
  attn::Problem problem{.type_k = attn::CacheType::q8_0, .type_v = attn::CacheType::q8_0};
  attn::Inputs in{.q = q, .k = k, .v = v};
  attn::forward(problem, in, {.o = o});

  attn::forward({}, {.q = q, .k = new_k, .v = new_v},
                {.o = attn::tensor(exact.data(), {1, 1, kHeads, kDim})});
  float worst = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    worst = std::max(worst, std::abs(result[i] - exact[i]));
  }
  std::printf("%lld bytes a row of %lld numbers; O differs by at most %.1e from that of f32\n",
              static_cast<long long>(bytes), static_cast<long long>(kDim), double{worst});
  return worst < 5e-3f ? 0 : 1;
}
