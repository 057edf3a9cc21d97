// The sample's reference against softmax written out, from the numbers that the page gets.
#include "explain/sample.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "explain_test_util.hpp"

namespace attn::explain {
namespace {

double number(const Json& x) {
  if (!x.is_string()) return x;
  return x == "inf" ? INFINITY : x == "-inf" ? -INFINITY : NAN;
}

TEST(Sample, ReferenceIsAttentionOfItsNumbers) {
  for (const char* descriptor :
       {"n12_d4", "n4096_h16_d128_causal_bf16", "hq8_hk2_sq1_sk9000_d64_dv2", "n3_d1_sink",
        "n100_h4_d64_softcap30_alibi_sink_dropout0.3_seed5", "n50_d8_mask(key<0)_sink",
        "n50_d8_mask(key<0)", "sq30_sk10_d8_causal_scale0.25"}) {
    SCOPED_TRACE(descriptor);
    Request r = request(descriptor);
    r.head = r.problem.heads_q - 1;
    const Json s = problem_json(r, 64)["sample"];
    const std::size_t n = s["queries"].size(), keys = s["keys"].size();
    const std::size_t d = s["d"], d_v = s["d_v"];
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<double> weight(keys), o(d_v);
      double sum = s["sink"].is_null() ? 0 : std::exp(s["sink"].get<double>());
      for (std::size_t j = 0; j < keys; ++j) {
        double score = 0;
        for (std::size_t c = 0; c < d; ++c) {
          score += s["q"][i * d + c].get<double>() * s["k"][j * d + c].get<double>();
        }
        score *= s["scale"].get<double>();
        if (!s["score"].is_null()) score = number(s["scores"][i * keys + j]);
        if (s["visible"].get<std::string>()[i * keys + j] == '0') continue;
        weight[j] = std::exp(score);
        sum += weight[j];
      }
      for (std::size_t j = 0; j < keys && sum > 0; ++j) {
        const double z = s["dropout"].is_null() ? 1.0 : s["dropout"][i * keys + j].get<double>();
        for (std::size_t c = 0; c < d_v; ++c) {
          o[c] += z * weight[j] / sum * s["v"][j * d_v + c].get<double>();
        }
      }
      const double lse = number(s["reference"]["lse"][i]);
      EXPECT_TRUE(sum == 0 ? lse == -INFINITY : std::abs(lse - std::log(sum)) < 1e-12)
          << "row " << i << ": " << lse << " against " << std::log(sum);
      for (std::size_t c = 0; c < d_v; ++c) {
        EXPECT_NEAR(number(s["reference"]["o"][i * d_v + c]), o[c], 1e-12) << "row " << i;
      }
    }
  }
}

// Positions, not indices: of 4096 places the sample has the first, the last and some between.
TEST(Sample, SeesTheTruePositions) {
  const Json s = problem_json(request("n4096_d64_mask(key%2==0&&query>2000)"), 64)["sample"];
  EXPECT_EQ(s["queries"].front(), 0);
  EXPECT_EQ(s["queries"].back(), 4095);
  const std::size_t keys = s["keys"].size();
  for (std::size_t i = 0; i < s["queries"].size(); ++i) {
    for (std::size_t j = 0; j < keys; ++j) {
      const bool seen = s["keys"][j].get<int>() % 2 == 0 && s["queries"][i].get<int>() > 2000;
      EXPECT_EQ(s["visible"].get<std::string>()[i * keys + j], seen ? '1' : '0');
    }
  }
}

}  // namespace
}  // namespace attn::explain
