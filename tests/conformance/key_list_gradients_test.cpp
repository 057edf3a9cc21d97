// Gradients of keys by list against their definition in double: what an entry means backward, which
// memory is not read, and that the bits do not follow from the number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attn/context.hpp"
#include "attn/mask.hpp"
#include "attn/run.hpp"
#include "conformance/support.hpp"

namespace attn {
namespace {

constexpr std::int64_t kQueries = 7, kKeys = 150, kHeadsQ = 6, kHeadsK = 2, kDim = 24, kDimV = 16;
constexpr std::int64_t kList = 70, kGroup = kHeadsQ / kHeadsK;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// One sequence in float32: kList entries for each K, V head and query.
struct Call {
  std::mt19937 random{20261130};
  std::vector<float> q = normal(kQueries * kHeadsQ * kDim), k = normal(kKeys * kHeadsK * kDim);
  std::vector<float> v = normal(kKeys * kHeadsK * kDimV), d_o = normal(kQueries * kHeadsQ * kDimV);
  std::vector<float> o, lse, dq, dk, dv;
  std::vector<std::int32_t> lists;
  Problem problem{.key_list = kList};

  std::vector<float> normal(std::int64_t count) {
    std::normal_distribution<float> distribution;
    std::vector<float> values(at(count));
    for (float& x : values) x = distribution(random);
    return values;
  }
  template <class Fill>
  void fill(const Fill& value) {
    lists.resize(at(kHeadsK * kQueries * kList));
    for (std::size_t n = 0; n < lists.size(); ++n) lists[n] = value(static_cast<std::int64_t>(n));
  }
  std::int32_t entry(std::int64_t head_k, std::int64_t i, std::int64_t j) const {
    return lists[at((head_k * kQueries + i) * kList + j)];
  }

  void run(const PlanOptions& options = {}, const Context& context = {}) {
    o.assign(d_o.size(), kNaN);
    lse.assign(at(kHeadsQ * kQueries), kNaN);
    dq.assign(q.size(), kNaN);
    dk.assign(k.size(), kNaN);
    dv.assign(v.size(), kNaN);
    Inputs in;
    in.q = tensor(q.data(), {1, kQueries, kHeadsQ, kDim});
    in.k = tensor(k.data(), {1, kKeys, kHeadsK, kDim});
    in.v = tensor(v.data(), {1, kKeys, kHeadsK, kDimV});
    in.key_list = tensor(lists.data(), {1, kHeadsK, kQueries, kList});
    const Outputs outputs{.o = tensor(o.data(), {1, kQueries, kHeadsQ, kDimV}),
                          .lse = tensor(lse.data(), {1, kHeadsQ, kQueries})};
    forward(problem, in, outputs, options, context);
    Gradients gradients;
    gradients.dq = tensor(dq.data(), {1, kQueries, kHeadsQ, kDim});
    gradients.dk = tensor(dk.data(), {1, kKeys, kHeadsK, kDim});
    gradients.dv = tensor(dv.data(), {1, kKeys, kHeadsK, kDimV});
    backward(problem, in, outputs, tensor(d_o.data(), {1, kQueries, kHeadsQ, kDimV}), gradients,
             options, context);
  }

  // sees(i, key): the mask.
  template <class Sees>
  void expect_definition(const Sees& sees, const std::string& what) const {
    std::vector<double> want_q(q.size()), want_k(k.size()), want_v(v.size());
    const double scale = 1 / std::sqrt(double{kDim});
    for (std::int64_t h = 0; h < kHeadsQ; ++h) {
      for (std::int64_t i = 0; i < kQueries; ++i) {
        const std::int64_t head_k = h / kGroup, row = i * kHeadsQ + h;
        std::vector<std::int64_t> keys;  // rows of K and V, as often as the list has them
        for (std::int64_t j = 0; j < kList; ++j) {
          const std::int64_t key = entry(head_k, i, j);
          if (key >= 0 && key < kKeys && sees(i, key)) keys.push_back(key * kHeadsK + head_k);
        }
        const auto dot = [](const std::vector<float>& x, std::int64_t of_x,
                            const std::vector<float>& y, std::int64_t of_y, std::int64_t columns) {
          double sum = 0;
          for (std::int64_t c = 0; c < columns; ++c) {
            sum += double{x[at(of_x * columns + c)]} * y[at(of_y * columns + c)];
          }
          return sum;
        };
        std::vector<double> p, dp;
        double sum = 0, d = 0;
        for (const std::int64_t key : keys) {
          p.push_back(std::exp(scale * dot(q, row, k, key, kDim)));
          dp.push_back(dot(d_o, row, v, key, kDimV));
          sum += p.back();
        }
        for (std::size_t j = 0; j < p.size(); ++j) d += (p[j] /= sum) * dp[j];
        for (std::size_t j = 0; j < p.size(); ++j) {
          const double ds = scale * p[j] * (dp[j] - d);
          for (std::int64_t c = 0; c < kDim; ++c) {
            want_q[at(row * kDim + c)] += ds * k[at(keys[j] * kDim + c)];
            want_k[at(keys[j] * kDim + c)] += ds * q[at(row * kDim + c)];
          }
          for (std::int64_t c = 0; c < kDimV; ++c) {
            want_v[at(keys[j] * kDimV + c)] += p[j] * d_o[at(row * kDimV + c)];
          }
        }
      }
    }
    const auto expect_near = [&](const std::vector<float>& got, const std::vector<double>& want,
                                 const char* name) {
      for (std::size_t n = 0; n < want.size(); ++n) {
        ASSERT_NEAR(got[n], want[n], 3e-5) << what << ", " << name << ", element " << n;
      }
    };
    expect_near(dq, want_q, "dq");
    expect_near(dk, want_k, "dk");
    expect_near(dv, want_v, "dv");
  }
};

bool always(std::int64_t, std::int64_t) { return true; }

std::vector<PlanOptions> backends() {
  return {{.backend = Backend::reference}, {.backend = Backend::cpu}};
}

TEST(KeyListGradients, AreThoseOfTheKeysThatAreNamed) {
  Call call;
  call.fill([&](std::int64_t) { return static_cast<std::int32_t>(call.random() % 160) - 5; });
  for (const PlanOptions& options : backends()) {
    call.run(options);
    call.expect_definition(always, std::string(name(options.backend)));
  }
}

TEST(KeyListGradients, AddUpForAKeyThatStandsTwice) {
  Call call;
  call.fill([](std::int64_t n) { return static_cast<std::int32_t>(n % 3 == 0 ? 7 : n % 11); });
  for (const PlanOptions& options : backends()) {
    call.run(options);
    call.expect_definition(always, std::string(name(options.backend)));
  }
}

TEST(KeyListGradients, GiveTheMaskTheOwnIndex) {
  const auto& s = expr::symbols();
  Call call;
  call.fill([&](std::int64_t n) { return static_cast<std::int32_t>(n * 37 % kKeys); });
  call.problem.mask = s.key % 3 != 1 || s.key == s.query;
  for (const PlanOptions& options : backends()) {
    call.run(options);
    call.expect_definition(
        [](std::int64_t i, std::int64_t key) { return key % 3 != 1 || key == i; },
        std::string(name(options.backend)));
  }
}

// A query without a key has no gradient, and neither has a key that no list names, be it NaN.
TEST(KeyListGradients, AreZeroWhereNothingIsNamed) {
  Call call;
  call.fill([](std::int64_t n) {
    const std::int64_t query = n / kList % kQueries;
    return static_cast<std::int32_t>(query == 2 ? -1 : n % 100);
  });
  std::fill(call.k.begin() + 100 * kHeadsK * kDim, call.k.end(), kNaN);
  std::fill(call.v.begin() + 100 * kHeadsK * kDimV, call.v.end(), kNaN);
  for (const PlanOptions& options : backends()) {
    call.run(options);
    for (std::int64_t c = 0; c < kHeadsQ * kDim; ++c) {
      ASSERT_EQ(call.dq[at(2 * kHeadsQ * kDim + c)], 0);
    }
    for (std::int64_t c = 100 * kHeadsK * kDim; c < kKeys * kHeadsK * kDim; ++c) {
      ASSERT_EQ(call.dk[at(c)], 0);
    }
    call.expect_definition(always, std::string(name(options.backend)));
  }
}

TEST(KeyListGradients, HaveTheSameBitsWithAnyNumberOfThreads) {
  Call call;
  call.fill([&](std::int64_t) { return static_cast<std::int32_t>(call.random() % kKeys); });
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    Context context;
    context.executor = make_thread_pool(threads);
    call.run({.backend = Backend::cpu, .threads = threads}, context);
    std::vector<float> all = call.dq;
    all.insert(all.end(), call.dk.begin(), call.dk.end());
    all.insert(all.end(), call.dv.begin(), call.dv.end());
    if (first.empty()) first = all;
    EXPECT_EQ(first, all) << threads << " threads";
  }
}

}  // namespace
}  // namespace attn
