// One sequence over several ranks gives what the fp64 reference gives of the whole, by the error
// rule: forward and backward, every feature, ways of dealing, uneven chunks, ranks without rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "attn/dist.hpp"
#include "conformance/support.hpp"
#include "verify/conformance.hpp"

namespace attn::verify {
namespace {

void expect_right(const Case& c, const RankOptions& ranks, std::uint64_t seed) {
  Conformance conformance(c, seed, has_backward(c.problem));
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    if (phase == Phase::backward && !has_backward(c.problem)) continue;
    const Report report = conformance.check({.phase = phase, .ranks = ranks});
    EXPECT_EQ(report.status, Status::passed) << to_string(report);
  }
}

struct RankCase {
  const char* descriptor;
  int ranks;
  std::int64_t chunk;
  dist::Deal deal;
};

class Ranks : public ::testing::TestWithParam<RankCase> {};

TEST_P(Ranks, AgreeWithTheReference) {
  const RankCase& c = GetParam();
  expect_right(parse_case(c.descriptor), {.ranks = c.ranks, .chunk = c.chunk, .deal = c.deal}, 3);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Ranks,
    ::testing::Values(
        RankCase{"b2_n200_hq4_hk2_d64_causal_bf16", 2, 0, dist::Deal::by_area},
        RankCase{"b1_n256_h2_d64_causal_f32", 4, 32, dist::Deal::zigzag},
        RankCase{"b1_n130_h1_d40_f16", 8, 16, dist::Deal::striped},
        RankCase{"b2_n150_hq6_hk1_d32_window20x3_sink_bf16/dlse", 3, 16, dist::Deal::contiguous},
        RankCase{"b3_n90_h2_d64_causal_f32/padded_dlse", 4, 8, dist::Deal::by_area},
        RankCase{"b4_sq100_sk100_hq4_hk2_d64_packed_causal_bf16/cuq0,9,9,100,150_cuk0,9,9,100,150",
                 4, 16, dist::Deal::by_area},
        RankCase{"b4_sq120_sk150_hq4_hk2_d64_causal_packed_f32/padded", 5, 16, dist::Deal::by_area},
        RankCase{"b3_sq40_sk90_h2_d64_packedq_f32", 3, 7, dist::Deal::zigzag},
        RankCase{"b3_sq40_sk90_h2_d64_packedk_causal_f32", 3, 7, dist::Deal::striped},
        RankCase{"b2_n150_h2_d64_documents_causal_f32", 4, 0, dist::Deal::by_area},
        RankCase{"b1_n150_h2_d64_prefix60_f32", 4, 16, dist::Deal::by_area},
        RankCase{"b2_n120_hq4_hk2_d64_causal_alibi_softcap20_f32", 4, 16, dist::Deal::by_area},
        RankCase{"b2_n90_hq4_hk2_d64_causal_bias_f32", 4, 16, dist::Deal::by_area},
        RankCase{"b1_n130_hq4_hk2_d64_bias1x1x1x130_sink_f32", 3, 5, dist::Deal::striped},
        RankCase{"b2_n130_hq4_hk2_d64_causal_dropout0.5_seed7_f32", 4, 13, dist::Deal::by_area},
        RankCase{"b1_n130_hq4_hk2_d64_dropout0.1_seed7_rngstate_bf16", 3, 0, dist::Deal::striped},
        RankCase{"b2_sq70_sk70_h2_d64_packed_dropout0.3_seed5_offset9_f32", 4, 11,
                 dist::Deal::by_area},
        RankCase{"b1_n256_h2_d64_butterfly32_f32", 4, 32, dist::Deal::by_area},
        RankCase{"b1_n100_h3_d64_mask(head==1||key<=query)_f32", 3, 9, dist::Deal::by_area},
        RankCase{"b2_n100_h2_d64_mask(query<0)_sink_f32", 4, 16, dist::Deal::by_area},
        RankCase{"b1_sq17_sk500_h2_d64_causal_f32", 4, 0, dist::Deal::by_area},
        RankCase{"b2_n5_h1_d16_causal_f32", 8, 1, dist::Deal::contiguous},
        RankCase{"b2_n3_h1_d16_f32", 8, 0, dist::Deal::by_area},
        RankCase{"b2_sq5_sk0_h2_d16_sink_f32", 3, 1, dist::Deal::by_area},
        RankCase{"b1_n70_h2_d192_dv128_causal_f16", 1, 0, dist::Deal::by_area},
        RankCase{"b2_n130_hq4_hk2_d32_causal_dropout0.5_seed7_f64", 3, 13, dist::Deal::by_area},
        RankCase{"b1_n150_h2_d32_window16x0_sink_alibi_f64", 4, 16, dist::Deal::by_area},
        // K and V in types of their own, with scales of rows, of heads, and none
        RankCase{
            "b3_n90_hq4_hk2_d32_packed_causal_k(e4m3)_v(f32)_bf16/cuq0,33,33,120_cuk0,33,33,120", 3,
            16, dist::Deal::by_area},
        RankCase{"b2_n100_hq4_hk2_d64_q(e4m3)_k(i8)_v(e5m2)_causal_bf16/headscales", 4, 7,
                 dist::Deal::striped},
        RankCase{"b1_n130_h2_d64_causal_sink_o(f32)_bf16", 3, 0, dist::Deal::by_area},
        RankCase{"b1_n130_h2_d64_window40x0_k(q8_0)_v(q4_0)_sink_f16", 2, 0, dist::Deal::by_area}));

// A paged cache over ranks, of which some have no key of a sequence.
TEST(RanksOfACache, AgreeWithTheReference) {
  for (const char* descriptor :
       {"b3_sq1_sk300_hq8_hk2_d64_paged16_bf16", "b2_sq3_sk100_hq4_hk4_d59_paged7_causal_f32",
        "b3_sq20_sk90_hq4_hk2_d64_paged16_packedq_causal_f16",
        "b2_sq1_sk260_hq4_hk2_d64_paged16_window40x0_sink_alibi_softcap20_f32",
        "b2_sq5_sk64_hq2_hk1_d32_paged1_documents_sink_f32",
        "b2_sq4_sk50_hq4_hk2_d32_paged16_tree_f64", "b3_sq1_sk90_hq4_hk2_d64_paged16_kv(e4m3)_bf16",
        "b2_sq3_sk70_hq4_hk2_d64_paged16_causal_k(q8_0)_v(q4_0)_f16",
        "b3_sq2_sk40_hq2_hk1_d576_dv512_paged16_bf16",
        "b2_sq1_sk260_hq4_hk2_d64_paged16_score(score-3.4028234e38)_f32"}) {
    const Case c = parse_case(descriptor);
    Conformance conformance(c, 3, false);
    for (const int ranks : {1, 2, 3, 8}) {
      const Report report = conformance.check({.phase = Phase::forward, .ranks = {.ranks = ranks}});
      EXPECT_EQ(report.status, Status::passed) << to_string(report);
    }
  }
}

// Sizes that the problem leaves at 0 are those of the tensors, the number of heads for the largest
// scores as well.
TEST(RanksOfACache, TakeTheirSizesFromTheTensors) {
  const std::vector<float> q(2 * 3 * 8, 0.5F), k(4 * 2 * 3 * 8, 0.25F);
  std::vector<float> o(q.size()), largest(3, std::numeric_limits<float>::quiet_NaN());
  const std::vector<std::int32_t> table{0, 2, 1, 3}, used{3, 4};
  Problem problem;
  problem.layout_k = Layout::paged;
  const Tensor cache = tensor(k.data(), {4, 2, 3, 8});
  Inputs inputs{.q = tensor(q.data(), {2, 1, 3, 8}), .k = cache, .v = cache};
  inputs.page_table = tensor(table.data(), {2, 2});
  inputs.seqused_k = tensor(used.data(), {2});
  dist::forward_cached(
      problem, dist::in_process(1)[0], inputs,
      {.o = tensor(o.data(), {2, 1, 3, 8}), .max_logit = tensor(largest.data(), {3})});
  for (const float x : o) EXPECT_EQ(x, 0.25F);
  for (const float x : largest) EXPECT_FLOAT_EQ(x, 0.35355339F);  // 8 / 8 over the root of 8
}

// 2,000 of these are run by `attn check --random 2000 --ranks ...` (docs/scale-out.md).
TEST(RandomRanks, AgreeWithTheReference) {
  constexpr std::int64_t kChunks[] = {0, 1, 3, 16, 64};
  const std::uint64_t count = quick() ? 6 : 24;
  std::uint64_t done = 0;
  for (std::uint64_t seed = 5000; done < count; ++seed) {
    Case c = random_case(seed);
    const Problem& p = c.problem;
    if (p.layout_k == Layout::paged || p.key_list > 0 || p.seqlen_prefix > 0) continue;
    ++done;
    std::int64_t chunk = kChunks[seed / 8 % std::size(kChunks)];
    // A plan has up to 4096 chunks.
    if (chunk == 1 && std::max(p.seqlen_q, p.seqlen_k) > 4096) chunk = 3;
    expect_right(c,
                 {.ranks = static_cast<int>(1 + seed % 8),
                  .chunk = chunk,
                  .deal = static_cast<dist::Deal>(seed / 3 % 4)},
                 seed);
  }
}

// Heads of which some see nothing, whose largest score is on another rank each, and ranks without a
// row.
TEST(Ranks, HaveTheLargestScores) {
  for (const char* descriptor :
       {"b1_n20_h1_d16_f32/maxlogit", "b2_n130_hq4_hk2_d32_causal_softcap30_bf16/maxlogit",
        "b2_n100_h3_d64_mask(head>0)_sink_f32/maxlogit", "b2_n3_h1_d16_f32/maxlogit",
        "b2_n70_h2_d16_alibi_causal_f64/maxlogit_strided",
        "b3_n40_hq4_hk2_d32_packed_causal_f16/maxlogit_padded",
        "b2_sq3_sk90_h2_d16_paged4_causal_f32/maxlogit", "b1_sq1_sk9_h2_d16_paged4_f64/maxlogit"}) {
    for (const int ranks : {1, 3, 8}) {
      const Report report =
          check(parse_case(descriptor), {.phase = Phase::forward, .ranks = {.ranks = ranks}}, 3);
      EXPECT_EQ(report.status, Status::passed) << to_string(report);
    }
  }
}

// The harness itself can fail: one value of one rank.
TEST(RandomRanks, AWrongValueIsSeen) {
  const Report report =
      check(parse_case("b1_n130_h2_d32_causal_f32"),
            {.ranks = {.ranks = 3, .chunk = 16},
             .tamper =
                 [](CaseData& data) {
                   store_element(data.outputs.o, data.outputs.o.offset({0, 77, 1, 3}), 0.5);
                 }},
            3);
  EXPECT_EQ(report.status, Status::failed);
}

}  // namespace
}  // namespace attn::verify
