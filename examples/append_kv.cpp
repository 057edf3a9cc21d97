// A cache of one layer in q8_0, in pages: a prompt and then tokens one by one are appended with
// RMS norm and rotary positions, while the same rows are computed by hand in double beside it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "attn/attn.hpp"

namespace {

constexpr std::int64_t kPrompt = 40, kTokens = 60, kHeads = 8, kHeadsK = 2, kDim = 64;
constexpr std::int64_t kPage = 8, kPages = 16, kWidth = 8;
constexpr double kEps = 1e-5;

std::vector<float> normal(std::int64_t count) {
  static std::mt19937 random(1);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = distribution(random);
  return values;
}

// RMS norm and rotation of each row of [kTokens, heads, kDim].
std::vector<float> by_hand(const std::vector<float>& x, std::int64_t heads,
                           const std::vector<float>& inv_freq) {
  std::vector<float> y(x.size());
  for (std::int64_t row = 0; row < kTokens * heads; ++row) {
    const float* const from = x.data() + row * kDim;
    const std::int64_t position = row / heads;
    double squares = 0;
    for (std::int64_t i = 0; i < kDim; ++i) squares += double{from[i]} * from[i];
    const double norm = 1 / std::sqrt(squares / kDim + kEps);
    for (std::int64_t i = 0; i < kDim / 2; ++i) {
      const double angle =
          static_cast<double>(position) * double{inv_freq[static_cast<std::size_t>(i)]};
      const double a = from[i] * norm, b = from[kDim / 2 + i] * norm;
      float* const to = y.data() + row * kDim;
      to[i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
      to[kDim / 2 + i] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
    }
  }
  return y;
}

}  // namespace

int main() {
  const std::vector<float> q = normal(kTokens * kHeads * kDim);
  const std::vector<float> k = normal(kTokens * kHeadsK * kDim);
  const std::vector<float> v = normal(kTokens * kHeadsK * kDim);
  std::vector<float> inv_freq(kDim / 2), rotated_q(q.size()), o(q.size());
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = std::pow(10000.0f, -static_cast<float>(2 * i) / kDim);
  }
  const std::int64_t bytes = attn::row_size(attn::CacheType::q8_0, kDim);
  std::vector<std::uint8_t> pages_k(static_cast<std::size_t>(kPages * kPage * kHeadsK * bytes));
  std::vector<std::uint8_t> pages_v = pages_k;
  const std::vector<std::int32_t> table{3, 9, 1, 14, 5, 0, 12, 7};

  attn::Problem problem{.mask = attn::causal()};
  problem.layout_k = attn::Layout::paged;
  problem.type_k = problem.type_v = attn::CacheType::q8_0;
  const attn::AppendProblem append{.type_k = attn::CacheType::q8_0,
                                   .type_v = attn::CacheType::q8_0,
                                   .norm = true,
                                   .norm_eps = kEps};
  for (std::int32_t cached = 0; cached < kTokens;) {
    const std::int64_t count = cached == 0 ? kPrompt : 1;
    const auto rows = [&](auto& x, std::int64_t heads) {
      return attn::tensor(x.data() + cached * heads * kDim, {1, count, heads, kDim});
    };
    const auto cache = [&](std::vector<std::uint8_t>& x) {
      return attn::tensor(x.data(), {kPages, kPage, kHeadsK, bytes});
    };
    const attn::Tensor page_table = attn::tensor(table.data(), {1, kWidth});
    attn::append_kv(append,
                    {.q = rows(q, kHeads),
                     .k = rows(k, kHeadsK),
                     .v = rows(v, kHeadsK),
                     .cache_seqlens = attn::tensor(&cached, {1}),
                     .page_table = page_table,
                     .inv_freq = attn::tensor(inv_freq.data(), {kDim / 2})},
                    {.q = rows(rotated_q, kHeads), .k = cache(pages_k), .v = cache(pages_v)});
    const auto total = static_cast<std::int32_t>(cached + count);
    attn::Inputs in{.q = rows(rotated_q, kHeads), .k = cache(pages_k), .v = cache(pages_v)};
    in.seqused_k = attn::tensor(&total, {1});
    in.page_table = page_table;
    attn::forward(problem, in, {.o = rows(o, kHeads)});
    cached = total;
  }

  const std::vector<float> exact_q = by_hand(q, kHeads, inv_freq);
  const std::vector<float> exact_k = by_hand(k, kHeadsK, inv_freq);
  std::vector<float> exact(o.size());
  attn::forward(attn::Problem{.mask = attn::causal()},
                {.q = attn::tensor(exact_q.data(), {1, kTokens, kHeads, kDim}),
                 .k = attn::tensor(exact_k.data(), {1, kTokens, kHeadsK, kDim}),
                 .v = attn::tensor(v.data(), {1, kTokens, kHeadsK, kDim})},
                {.o = attn::tensor(exact.data(), {1, kTokens, kHeads, kDim})});
  float worst_q = 0, worst = 0;
  for (std::size_t i = 0; i < o.size(); ++i) {
    worst_q = std::max(worst_q, std::abs(rotated_q[i] - exact_q[i]));
    worst = std::max(worst, std::abs(o[i] - exact[i]));
  }
  std::printf("Q differs from double by at most %.1e, O over a cache of q8_0 by %.1e\n",
              double{worst_q}, double{worst});
  return worst_q < 3e-6f && worst < 5e-2f ? 0 : 1;
}
