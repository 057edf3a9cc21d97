// attn matmul: its table, its files, what it refuses.
#include <nlohmann/json.hpp>

#include "command_test_util.hpp"

namespace attn::io {
namespace {

using CommandMatmul = Command;

TEST_F(CommandMatmul, ChecksAndTimesEveryRung) {
  const Result result =
      attn("matmul --rung all --dtype f16 --output f32 --bias --activation gelu " +
           std::string("--orders crc --seconds 0 17,49,23 2,8,48,16 --json ") + quoted("out.json") +
           " --plot " + quoted("out.svg"));
  ASSERT_EQ(result.code, 0) << result.text();
  const auto json = nlohmann::json::parse(load(path("out.json")));
  EXPECT_EQ(json["complete"], true);
  int timed = 0;
  for (const auto& row : json["results"]) {
    if (row["rung"] == "amx") {  // takes bf16
      EXPECT_TRUE(row.contains("refused")) << row;
      continue;
    }
    ++timed;
    EXPECT_EQ(row["correct"], true) << row;
    EXPECT_LE(row["share_of_allowed_error"].get<double>(), 1) << row;
    EXPECT_GT(row["gflops"].get<double>(), 0) << row;
    EXPECT_GE(row["calls"].get<int>(), 3) << row;
  }
  EXPECT_EQ(timed, 8);
  EXPECT_EQ(json["results"][0]["problem"], "b1_m17_n49_k23_f16_cf32_acol_ccol_bias_gelu");
  EXPECT_EQ(json["results"][0]["checked"], 17 * 49);
  EXPECT_EQ(json["results"][0]["flops"], 2.0 * 17 * 49 * 23);
  EXPECT_NE(load(path("out.svg")).find(">packed<"), std::string::npos);
}

TEST_F(CommandMatmul, TakesAListOfRungs) {
  const Result result = attn("matmul --rung packed,naive --seconds 0 9,9,9 --json " +
                             quoted("out.json") + " --plot " + quoted("out.svg"));
  ASSERT_EQ(result.code, 0) << result.text();
  // A single problem: bars, the rate beside each, and no line of one point.
  const std::string svg = load(path("out.svg"));
  EXPECT_NE(svg.find("of b1_m9_n9_k9_f32, checked"), std::string::npos) << svg;
  EXPECT_NE(svg.find("% of the peak</text>"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("<polyline"), std::string::npos) << svg;
  // However slow, a rate is not shown as zero.
  EXPECT_FALSE(result.out_has(" 0.000 ")) << result.text();
  const auto rows = nlohmann::json::parse(load(path("out.json")))["results"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["rung"], "packed");
  EXPECT_EQ(rows[1]["rung"], "naive");
}

TEST_F(CommandMatmul, TakesAMask) {
  const Result result =
      attn("matmul --mask c16 --density 0.25 --seconds 0 60,50,40 --json " + quoted("out.json"));
  ASSERT_EQ(result.code, 0) << result.text();
  const auto rows = nlohmann::json::parse(load(path("out.json")))["results"];
  EXPECT_EQ(rows[0]["problem"], "b1_m60_n50_k40_f32_cblock16");
  EXPECT_EQ(rows[0]["checked"], 2 * 16 * 16 + 16 * 2 + 12 * 16);  // a block in each row of them
  EXPECT_EQ(rows[0]["density"], 0.25);
}

TEST_F(CommandMatmul, TakesWeightsInBlocks) {
  const Result result =
      attn("matmul --format-b q4_1 --rung all --seconds 0 3,50,64 --json " + quoted("out.json"));
  ASSERT_EQ(result.code, 0) << result.text();
  const auto rows = nlohmann::json::parse(load(path("out.json")))["results"];
  EXPECT_EQ(rows[2]["problem"], "b1_m3_n50_k64_f32_bq4_1_bcol");
  EXPECT_EQ(rows[2]["rung"], "few_rows");
  EXPECT_EQ(rows[2]["checked"], 150);
  EXPECT_NE(rows[0]["refused"].get<std::string>().find("format_b is q4_1"), std::string::npos);
}

// A check of no elements passes whatever was computed: five columns of blocks at a tenth are one
// diagonal, and the share that was drawn is said.
TEST_F(CommandMatmul, AMaskHasABlockHoweverSmallTheDensity) {
  const Result result =
      attn("matmul --mask c16 --density 0.01 --seconds 0 60,80,9 --json " + quoted("out.json"));
  ASSERT_EQ(result.code, 0) << result.text();
  EXPECT_TRUE(result.out_has(", 0.2 of the blocks")) << result.text();
  const auto rows = nlohmann::json::parse(load(path("out.json")))["results"];
  EXPECT_EQ(rows[0]["checked"], 60 * 16);  // a block in each row of blocks
  EXPECT_EQ(rows[0]["density"], 0.2);
}

TEST_F(CommandMatmul, RefusesByName) {
  expect_refused("matmul 4,4", 2, {"the shape is 4,4", "M,N,K"});
  expect_refused("matmul 4,4,x", 2, {"the shape is 4,4,x"});
  expect_refused("matmul 4,4,4 --orders rr", 2, {"--orders is rr"});
  expect_refused("matmul 4,4,64 --format-b q5_0", 2, {"--format-b is q5_0", "q4_1"});
  expect_refused("matmul 4,4,4 --density 0.25", 2, {"--density", "--mask"});
  expect_refused("matmul 4,4,4 --rung fastest", 2,
                 {"rung is fastest", "naive, blocked, few_rows, packed"});
  expect_refused("matmul 4,4,4 --rung amx", 3, {"rung amx takes bf16"});
  expect_refused("matmul 4,4,4 --mask a16", 2, {"--mask is a16", "as in b256"});
  expect_refused("matmul 4,4,4 --mask b0", 2, {"--mask is b0"});
  expect_refused("matmul 4,4,4 --dtype i32", 2, {"dtype is i32"});
  expect_refused("matmul 4,4,4 --activation swish", 2, {"'swish'", "gelu_tanh"});
}

TEST_F(CommandMatmul, MemoryThatCannotBeHadIsToldWithItsSizeAndPurpose) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the allocator of the sanitizer ends the program";
#endif
  expect_refused("matmul 9000000,9000000,1", 3, {"C [1, 9000000, 9000000] of f32 needs 324"});
  expect_refused("matmul 4,2000000000,2000000000,0", 3,
                 {"C [4, 2000000000, 2000000000] of f32 needs 2^63 - 1 or more bytes"});
}

}  // namespace
}  // namespace attn::io
