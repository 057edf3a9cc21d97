// attn explain: its output, its options, what it refuses.
#include <sys/stat.h>

#include "command_test_util.hpp"

namespace attn::io {
namespace {

using CommandExplain = Command;

constexpr std::uintmax_t kMaxBytes = 300'000;

TEST_F(CommandExplain, WritesOnePage) {
  const std::string problem = "b2_sq100_sk3000_hq4_hk2_d64_causal_bf16";
  const Result result = attn("explain " + problem + " -o " + quoted("page.html"));
  EXPECT_EQ(result.code, 0) << result.text();
  EXPECT_TRUE(result.out_has(problem)) << result.text();
  const std::string page = load(path("page.html"));
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  EXPECT_NE(page.find(R"("text":")" + problem), std::string::npos);
}

// Long sequences, and masks and scores with much to say, get a coarser map.
TEST_F(CommandExplain, PagesStaySmall) {
  for (const char* problem :
       {"n1000000_h2_d64_causal_bf16", "n65536_d64_window1000x1000_causal",
        "'n30000_d64_mask(key<4||position-key<999&&position-key>=0||(position-key)%100==0)'",
        "b1_n8192_d64_documents_causal_f16", "sq1_sk131072_hq32_hk8_d128_bf16",
        "n16384_h4_d64_butterfly64_softcap30_alibi_sink_dropout0.1"}) {
    const Result result = attn(fmt::format("explain {} -o {}", problem, quoted("page.html")));
    EXPECT_EQ(result.code, 0) << problem << result.text();
    EXPECT_LE(std::filesystem::file_size(path("page.html")), kMaxBytes) << problem;
  }
}

// Small tiles, looked at one by one, took a minute for 2000 terms.
TEST_F(CommandExplain, LongMasksHaveFewerTiles) {
  std::string mask = "key%64==query%64";
  for (int level = 0; level < 7; ++level) mask = "(" + mask + "||" + mask + ")";
  for (const auto& [text, has_small] :
       {std::pair{std::string("key%64==query%64"), true}, std::pair{mask, false}}) {
    const Result result = attn("explain 'n2048_d64_mask(" + text + ")' -o " + quoted("page.html"));
    EXPECT_EQ(result.code, 0) << result.text();
    const std::string page = load(path("page.html"));
    EXPECT_EQ(page.find(R"({"block_q":8,"block_k":8,)") != std::string::npos, has_small);
    EXPECT_NE(page.find(R"({"block_q":64,"block_k":64,)"), std::string::npos);
  }
}

TEST_F(CommandExplain, OptionsReachThePage) {
  const Result result = attn(
      "explain b3_n64_h4_d8_causal --batch 2 --head 3 --block-q 16 --block-k 8 --phase backward "
      "--seed 7 --algorithm standard --output " +
      quoted("page.html"));
  EXPECT_EQ(result.code, 0) << result.text();
  const std::string page = load(path("page.html"));
  for (const char* part :
       {R"("shown_batch":2)", R"("shown_head":3)", R"("map":{"block_q":16,"block_k":8)",
        R"("phase":"backward")", R"("algorithm":"standard")"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
}

// The same problem and seed give the same page, another seed other numbers.
TEST_F(CommandExplain, IsRepeatable) {
  const auto page = [&](const std::string& seed) {
    EXPECT_EQ(attn("explain n64_d8_causal --seed " + seed + " -o " + quoted("page.html")).code, 0);
    return load(path("page.html"));
  };
  const std::string first = page("3");
  EXPECT_EQ(page("3"), first);
  EXPECT_NE(page("4"), first);
}

TEST_F(CommandExplain, Refuses) {
  expect_refused("explain n8_d8", 2, {"--output"});
  expect_refused("explain -o page.html", 2, {"descriptor"});
  expect_refused("explain n8_d8_sideways -o page.html", 2, {"sideways"});
  expect_refused("explain n0_d8 -o page.html", 2, {"seqlen_q is 0"});
  expect_refused("explain d8 -o page.html", 2, {"seqlen"});
  expect_refused("explain b2_n8_d8 --batch 2 -o page.html", 2, {"batch is 2", "0 to 1"});
  expect_refused("explain n8_h2_d8 --head 2 -o page.html", 2, {"head is 2", "0 to 1"});
  expect_refused("explain n8_d8 --block-q 0 -o page.html", 2, {"--block-q", "0"});
  expect_refused("explain n8_d8 --algorithm fastest -o page.html", 2, {"fastest"});
  expect_refused("explain n8_d8 -o ''", 2, {"--output"});
  // What a page does not show is no mistake of the caller's.
  for (const std::string_view token : {"sp4", "list3", "o(f32)_bf16", "kv(i8)"}) {
    expect_refused(fmt::format("explain 'n8_d8_{}' -o page.html", token), 3,
                   {"accepted by explain"});
  }
}

// As other outputs: refused before the work, and what was there stays.
TEST_F(CommandExplain, OutputsThatCannotBeWritten) {
  const auto file = store("read-only", "before");
  ASSERT_EQ(::chmod(file.c_str(), 0444), 0);
  for (const std::string name : {"read-only", "no/such/folder/page.html"}) {
    expect_refused("explain n8_d8 -o " + quoted(name), 2, {"cannot be written"});
  }
  EXPECT_EQ(load(file), "before");
  store("page.html", "before");
  expect_refused("explain n0_d8 -o " + quoted("page.html"), 2, {"seqlen_q"});
  EXPECT_EQ(load(path("page.html")), "before");
}

}  // namespace
}  // namespace attn::io
