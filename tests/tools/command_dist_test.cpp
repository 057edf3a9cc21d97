// attn dist, and attn check over ranks.
#include "command_test_util.hpp"

namespace attn::io {
namespace {

using CommandDist = Command;

// The lines that docs/scale-out.md shows.
TEST_F(CommandDist, ShowsThePlan) {
  const Result result = attn("dist b1_n256_hq4_hk2_d16_causal --ranks 2 --chunk 64");
  EXPECT_EQ(result.code, 0) << result.text();
  for (const char* line :
       {"b1_n256_hq4_hk2_d16_causal_f32\non 2 ranks, largest area 0.0 % above the mean\n",
        "rank 0: rows 64-191; 50.0 % of the area; receives 0.016 MB forward, 0.049 backward\n",
        "rank 1: rows 0-63 192-255; 50.0 % of the area; receives 0.033 MB forward, 0.049 "
        "backward\n"}) {
    EXPECT_TRUE(result.out_has(line)) << line << result.text();
  }
}

TEST_F(CommandDist, PredictsWhereAsked) {
  const std::string problem = "dist b1_n65536_hq64_hk8_d128_window4096x0_sink_bf16 --ranks 8";
  EXPECT_FALSE(attn(problem).out_has("predicted"));
  const Result result = attn(problem + " --simulate");
  EXPECT_EQ(result.code, 0) << result.text();
  EXPECT_TRUE(result.out_has("predicted for h100-nvlink")) << result.text();
  EXPECT_TRUE(result.out_has("\nforward ")) << result.text();
  EXPECT_TRUE(result.out_has("\nbackward ")) << result.text();
}

// Documents and lengths are those of `attn check` with the seed.
TEST_F(CommandDist, DealsByDocumentsAndLengths) {
  const Result documents = attn("dist b1_n4096_h2_d16_documents_causal --ranks 4");
  EXPECT_EQ(documents.code, 0) << documents.text();
  EXPECT_FALSE(documents.out_has("cannot read")) << documents.text();
  EXPECT_EQ(attn("dist b3_sq400_sk300_h2_d16_packed_causal --ranks 3").code, 0);
}

TEST_F(CommandDist, Refuses) {
  expect_refused("dist b1_n16_h1_d8 --ranks 0", 2, {"--ranks"});
  expect_refused("dist b1_n16_h1_d8 --deal evenly", 2, {"--deal"});
  expect_refused("dist b1_n16_sp5_h1_d8", 3, {"seqlen_prefix is 5"});
}

TEST_F(CommandDist, CheckTakesRanks) {
  const Result one = attn("check b1_n64_h2_d16_causal_f32 --ranks 3 --chunk 8 --deal striped");
  EXPECT_EQ(one.code, 0) << one.text();
  EXPECT_TRUE(one.out_has("2/2 agree")) << one.text();
  EXPECT_TRUE(one.out_has("on 3 ranks, chunk 8 striped")) << one.text();
  const Result random = attn("check --random 4 --seed 7 --ranks 4");
  EXPECT_EQ(random.code, 0) << random.text();
}

}  // namespace
}  // namespace attn::io
