// A call with a cache gives the last rows of the call without one: every shorthand stands where
// causal does.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "attn/mask.hpp"
#include "attn/run.hpp"

namespace attn {
namespace {

constexpr std::int64_t kKeys = 12, kRows = 4, kHeads = 2, kDim = 8;

struct Shorthand {
  const char* name;
  expr::Expr mask, score;
};

class Cache : public ::testing::Test {
 protected:
  Cache() {
    std::mt19937 random(20261122);
    std::normal_distribution<float> normal;
    for (std::vector<float>* values : {&q_, &k_, &v_}) {
      values->resize(kKeys * kHeads * kDim);
      for (float& x : *values) x = normal(random);
    }
    bias_.resize(kHeads * kKeys * kKeys);
    for (float& x : bias_) x = normal(random);
    blocks_.at(0, 0) = blocks_.at(1, 0) = blocks_.at(2, 2) = blocks_.at(3, 1) = blocks_.at(3, 3) =
        1;
  }

  // O of the last `rows` queries: [rows, heads, dim].
  std::vector<float> last_rows(std::int64_t rows, const Shorthand& shorthand, Backend backend) {
    Problem p;
    p.mask = shorthand.mask;
    p.score = shorthand.score;
    std::vector<float> o(static_cast<std::size_t>(rows * kHeads * kDim), std::nanf(""));
    const Inputs in{
        .q = tensor(q_.data() + (kKeys - rows) * kHeads * kDim, {1, rows, kHeads, kDim}),
        .k = tensor(k_.data(), {1, kKeys, kHeads, kDim}),
        .v = tensor(v_.data(), {1, kKeys, kHeads, kDim})};
    PlanOptions options;
    options.backend = backend;
    forward(p, in, {.o = tensor(o.data(), {1, rows, kHeads, kDim})}, options);
    return {o.end() - kRows * kHeads * kDim, o.end()};
  }

  const std::int32_t ids_[kKeys] = {0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3};
  const std::vector<float> slopes_ = alibi_slopes(kHeads);
  std::vector<float> q_, k_, v_, bias_;
  BlockMask blocks_{4, 4, 3, 3};
};

TEST_F(Cache, GivesTheLastRows) {
  const Tensor ids = tensor(ids_, {kKeys});
  const Tensor all_rows = tensor(bias_.data(), {1, kHeads, kKeys, kKeys});
  const Shorthand shorthands[] = {
      {"causal", causal(), {}},
      {"window", window(3, 1), {}},
      {"prefix", prefix(2), {}},
      {"documents", documents(ids), {}},
      {"documents and causal", documents(ids) && causal(), {}},
      {"blocks", blocks_.mask(), {}},
      {"blocks and causal", blocks_.mask() && causal(), {}},
      {"alibi", {}, alibi(tensor(slopes_.data(), {kHeads}))},
      {"bias", {}, bias(all_rows, Alignment::bottom_right)},
  };
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    for (const Shorthand& shorthand : shorthands) {
      const std::vector<float> whole = last_rows(kKeys, shorthand, backend);
      const std::vector<float> cached = last_rows(kRows, shorthand, backend);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        ASSERT_NEAR(cached[i], whole[i], 1e-6)
            << shorthand.name << " on " << name(backend) << ", element " << i;
      }
    }
  }
}

// A bias has the rows of Q: the last ones of the whole bias, as a view.
TEST_F(Cache, TakesRowsOfABias) {
  Tensor last = tensor(bias_.data(), {1, kHeads, kKeys, kKeys});
  last.data = bias_.data() + (kKeys - kRows) * kKeys;
  last.shape[2] = kRows;
  const Shorthand whole{"", {}, bias(tensor(bias_.data(), {1, kHeads, kKeys, kKeys}))};
  const Shorthand cached{"", {}, bias(last)};
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    const std::vector<float> expected = last_rows(kKeys, whole, backend);
    const std::vector<float> o = last_rows(kRows, cached, backend);
    for (std::size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(o[i], expected[i], 1e-6) << i;
  }
}

}  // namespace
}  // namespace attn
