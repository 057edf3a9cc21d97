// Attention of one softmax over two caches: a window of recent keys, and listed keys of a second
// cache. Beside it, one call over the same keys in one place.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "attn/attn.hpp"

namespace {

constexpr std::int64_t kRecent = 200, kWindow = 128, kKeys = 4000, kListed = 64;
constexpr std::int64_t kHeads = 8, kHeadsK = 2, kDim = 64, kRow = kHeadsK * kDim;

std::vector<float> normal(std::int64_t count) {
  static std::mt19937 random(1);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = distribution(random);
  return values;
}

attn::Tensor heads(const std::vector<float>& of, std::int64_t count) {
  return attn::tensor(of.data(),
                      {1, static_cast<std::int64_t>(of.size()) / count / kDim, count, kDim});
}
attn::Tensor result(std::vector<float>& of) {
  return attn::tensor(of.data(), {1, 1, kHeads, kDim});
}

// The window's rows of `recent`, then those of `all` that the list names.
std::vector<float> gathered(const std::vector<float>& recent, const std::vector<float>& all,
                            const std::vector<std::int32_t>& list) {
  std::vector<float> rows(recent.end() - kWindow * kRow, recent.end());
  for (const std::int32_t key : list) {
    rows.insert(rows.end(), all.begin() + key * kRow, all.begin() + (key + 1) * kRow);
  }
  return rows;
}

}  // namespace

int main() {
  const std::vector<float> queries = normal(kHeads * kDim), logits = normal(kHeads);
  const std::vector<float> recent_keys = normal(kRecent * kRow);
  const std::vector<float> recent_values = normal(kRecent * kRow);
  const std::vector<float> keys = normal(kKeys * kRow), values = normal(kKeys * kRow);
  std::vector<std::int32_t> list(kListed);
  for (std::int32_t i = 0; i < kListed; ++i) list[static_cast<std::size_t>(i)] = 61 * i;

  const attn::Tensor q = heads(queries, kHeads), sink = attn::tensor(logits.data(), {kHeads});
  const attn::Tensor recent_k = heads(recent_keys, kHeadsK);
  const attn::Tensor recent_v = heads(recent_values, kHeadsK);
  const attn::Tensor k = heads(keys, kHeadsK), v = heads(values, kHeadsK);
  const attn::Tensor lists = attn::tensor(list.data(), {1, 1, 1, kListed});
  std::vector<float> of_recent(queries.size()), of_listed(queries.size()), exact(queries.size());
  std::vector<float> lse_recent(kHeads), lse_listed(kHeads);
  const attn::Tensor o = result(of_recent), o2 = result(of_listed);
  const attn::Tensor lse = attn::tensor(lse_recent.data(), {1, kHeads, 1});
  const attn::Tensor lse2 = attn::tensor(lse_listed.data(), {1, kHeads, 1});

  attn::Problem recent{.mask = attn::window(kWindow - 1, 0), .sink = true};
  attn::Problem listed{.key_list = kListed};
  attn::forward(recent, {.q = q, .k = recent_k, .v = recent_v, .sink = sink}, {.o = o, .lse = lse});
  attn::forward(listed, {.q = q, .k = k, .v = v, .key_list = lists}, {.o = o2, .lse = lse2});
  attn::merge({{.o = o, .lse = lse}, {.o = o2, .lse = lse2}}, {.o = o});

  const std::vector<float> all_k = gathered(recent_keys, keys, list);
  const std::vector<float> all_v = gathered(recent_values, values, list);
  attn::forward({.sink = true},
                {.q = q, .k = heads(all_k, kHeadsK), .v = heads(all_v, kHeadsK), .sink = sink},
                {.o = result(exact)});
  float worst = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    worst = std::max(worst, std::abs(of_recent[i] - exact[i]));
  }
  std::printf("O of %lld and %lld keys differs by at most %.1e from that of one call\n",
              static_cast<long long>(kWindow), static_cast<long long>(kListed), double{worst});
  return worst < 1e-6f ? 0 : 1;
}
