// Bits of results over several ranks: those of one rank, and the same each time.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "attn/run.hpp"
#include "verify/case.hpp"
#include "verify/compare.hpp"
#include "verify/ranks.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kSeed = 11;
PlanOptions one_algorithm() { return {.algorithm = Algorithm::flash_attention_2}; }

void expect_same(const Tensor& a, const Tensor& b, const std::string& what) {
  if (!a.given()) return;
  const std::vector<std::int64_t> where = first_difference(a, b);
  EXPECT_TRUE(where.empty()) << what << " differs at " << ::testing::PrintToString(where);
}

class Bits : public ::testing::TestWithParam<const char*> {};

// Of chunks of any size, as a rank gets whole blocks of keys of each sequence.
void expect_forward_of_one_rank(const char* descriptor) {
  const Case c = parse_case(descriptor);
  CaseData one(c, kSeed), several(c, kSeed);
  one.poison();
  forward(one.problem, one.inputs, one.outputs, one_algorithm());
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const auto& [deal, chunk] : {std::pair{dist::Deal::by_area, 64},
                                      {dist::Deal::striped, 64},
                                      {dist::Deal::striped, 37}}) {
      several.poison();
      forward_on_ranks(several, {.ranks = ranks, .chunk = chunk, .deal = deal}, one_algorithm(), {},
                       true);
      const std::string what = std::to_string(ranks) + " ranks, " + std::string(name(deal)) +
                               ", chunks of " + std::to_string(chunk);
      expect_same(one.outputs.o, several.outputs.o, what + ": o");
      expect_same(one.outputs.lse, several.outputs.lse, what + ": lse");
    }
  }
}

TEST_P(Bits, ForwardIsThatOfOneRank) { expect_forward_of_one_rank(GetParam()); }

TEST(BitsOfCaches, AreThoseOfOneRank) {
  expect_forward_of_one_rank("b2_n200_hq4_hk2_d32_window70x0_k(e4m3)_v(q8_0)_bf16");
}

TEST_P(Bits, BackwardIsTheSameEachTime) {
  const Case c = parse_case(GetParam());
  CaseData first(c, kSeed), second(c, kSeed);
  for (CaseData* data : {&first, &second}) {
    data->poison();
    forward(data->problem, data->inputs, data->outputs);
  }
  const RankOptions ranks{.ranks = 4, .chunk = 32};
  backward_on_ranks(first, ranks, {}, {.executor = make_thread_pool(1)});
  backward_on_ranks(second, ranks, {}, {.executor = make_thread_pool(3)});
  expect_same(first.gradients.dq, second.gradients.dq, "dq");
  expect_same(first.gradients.dk, second.gradients.dk, "dk");
  expect_same(first.gradients.dv, second.gradients.dv, "dv");
  expect_same(first.gradients.dsink, second.gradients.dsink, "dsink");
  for (std::size_t i = 0; i < first.gradients.buffers.size(); ++i) {
    expect_same(first.gradients.buffers[i].second, second.gradients.buffers[i].second,
                first.gradients.buffers[i].first);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Bits,
    ::testing::Values("b1_n600_hq4_hk2_d64_causal_f32", "b2_n530_h2_d32_bf16",
                      "b1_n700_h2_d64_window100x0_sink_alibi_softcap30_f32",
                      "b2_n400_hq4_hk2_d32_causal_dropout0.3_seed9_f32",
                      "b1_n512_h2_d64_documents_causal_bias_bf16",
                      "b2_n400_h2_d32_prefix130_f16/padded",
                      "b5_n200_hq4_hk2_d32_packed_window70x0_dropout0.4_seed9_f32"
                      "/cuq0,7,7,150,350,351_cuk0,7,7,150,350,351",
                      "b3_sq100_sk200_h2_d32_packedk_f32", "b1_n300_h2_d32_causal_sink_f64"));

}  // namespace
}  // namespace attn::verify
