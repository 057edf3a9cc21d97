// Which problems share the small kernels around the main ones: a text that is the same is compiled
// once.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "attn/problem.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/cuda.hpp"
#include "cuda/support.hpp"

namespace attn::cuda {
namespace {

constexpr Arch kHopper{90, true};

// The text of a kernel of a problem on Hopper, by the kernel's name.
std::string text_of(std::string_view kernel, const std::string& problem,
                    Phase phase = Phase::backward, const PlanOptions& options = {}) {
  for (const Source& source : sources(parse_problem(problem), phase, kHopper, options)) {
    if (source.name == kernel) return source.text;
  }
  ADD_FAILURE() << problem << " has no kernel " << kernel;
  return {};
}

// How many texts the problems have of it.
std::size_t texts_of(std::string_view kernel, const std::vector<std::string>& problems,
                     Phase phase = Phase::backward, const PlanOptions& options = {}) {
  std::set<std::string> all;
  for (const std::string& problem : problems) {
    all.insert(text_of(kernel, problem, phase, options));
  }
  return all.size();
}

constexpr std::string_view kRows = "backward_one_pass_rows", kDq = "backward_one_pass_dq",
                           kWords = "backward_sm90_words";

// What neither reads: lengths, heads, masks and scores, a sink, where K and V begin.
TEST(SharedSource, OfRowsAndDqIsThatOfOtherMasksAndScores) {
  const std::vector<std::string> problems{
      "b1_n1024_h4_d128_bf16", "b2_n300_hq4_hk2_d128_causal_bf16",
      "b1_n1024_h4_d128_causal_softcap30_sink_bf16", "b1_n512_h4_d128_window100x0_bf16"};
  EXPECT_EQ(texts_of(kRows, problems), 1);
  EXPECT_EQ(texts_of(kDq, problems), 1);
}

TEST(SharedSource, OfRowsAndDqKnowsWhatIsRead) {
  const std::string base = "b1_n1024_h4_d128_causal_bf16";
  for (const std::string_view kernel : {kRows, kDq}) {
    for (const char* other :
         {"b1_n1024_h4_d64_causal_bf16", "b1_n1024_h4_d128_causal_f16",
          "b1_n1024_h4_d128_causal_packed_bf16", "b1_n1024_h4_d128_causal_packedq_bf16"}) {
      EXPECT_EQ(texts_of(kernel, {base, other}), 2) << kernel << ' ' << other;
    }
    EXPECT_NE(text_of(kernel, base),
              text_of(kernel, base, Phase::backward, {.deterministic = true}));
  }
  // The sums are scaled by dQ alone, and rows alone read O.
  const std::string dropout = "b1_n1024_h4_d128_causal_dropout0.1_bf16";
  EXPECT_EQ(texts_of(kRows, {base, dropout}), 1);
  EXPECT_EQ(texts_of(kDq, {base, dropout}), 2);
  EXPECT_EQ(texts_of(kRows, {base, "b1_n1024_h4_d128_dv64_causal_bf16"}), 2);
}

// Only where tiles take turns does it matter whose mask differs between heads.
TEST(SharedSource, OfRowsInOrderKnowsWhereTurnsAre) {
  const std::string plain = "b1_n2048_h4_d128_causal_bf16",
                    by_head = "b1_n2048_h4_d128_mask(key<=query+head)_bf16";
  EXPECT_EQ(texts_of(kRows, {plain, by_head}), 1);
  EXPECT_EQ(texts_of(kRows, {plain, by_head}, Phase::backward, {.deterministic = true}), 2);
}

// Words of a mask are the same for all scores, dtypes and head sizes of a tile shape, unless scores
// may hide keys.
TEST(SharedSource, OfWordsIsThatOfTheMask) {
  const std::string base = "b1_n1024_h4_d128_causal_bf16";
  EXPECT_EQ(texts_of(kWords, {base, "b1_n1024_h4_d128_causal_softcap30_f16",
                              "b1_n1024_h4_d256_causal_sink_bf16",
                              "b1_n1024_h4_d128_causal_dropout0.1_bf16"}),
            1);
  for (const char* other :
       {"b1_n1024_h4_d128_window100x0_bf16", "b1_n1024_h4_d128_causal_packed_bf16",
        "b1_n1024_h4_d128_causal_bias_bf16"}) {
    EXPECT_EQ(texts_of(kWords, {base, other}), 2) << other;
  }
}

TEST(SharedSource, OfTermsOfRowsIsThatOfOtherKernels) {
  EXPECT_EQ(texts_of("backward_rows", {"b1_n100_h4_d64_f32", "b2_n70_hq4_hk2_d64_causal_sink_f32"}),
            1);
  EXPECT_EQ(texts_of("backward_rows", {"b1_n100_h4_d64_f32", "b1_n100_h4_d64_dv32_f32"}), 2);
}

// A mask that reads a buffer is classified ahead of the forward pass, whatever the score.
TEST(SharedSource, OfClassifyIsThatOfTheMask) {
  const std::string mask = "b1_n1024_h4_d128_mask(seen[query/64,key/64]!=0)_buffer(seen:u8:16x16)";
  EXPECT_EQ(texts_of("classify", {mask + "_bf16", mask + "_softcap30_bf16", mask + "_sink_bf16"},
                     Phase::forward),
            1);
  EXPECT_EQ(texts_of("classify", {mask + "_bf16", mask + "_packed_bf16"}, Phase::forward), 2);
}

TEST(ConfigText, RefusesToLeaveOutWhatAKernelReads) {
  ConfigText text(DType::bf16);
  text.number("kHeadDim", 64);
  text.flag("kPackedQ", true);
  EXPECT_EQ(text.text_of({"kHeadDim"}),
            "struct Config {\n  static constexpr int kHeadDim = 64;\n};\n");
  EXPECT_THROW(text.text_of({"kHeadDimV"}), Error);
}

}  // namespace
}  // namespace attn::cuda
