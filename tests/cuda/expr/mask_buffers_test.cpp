// Where masks depend on what buffers hold, and what that says of blocks of keys.
#include "cuda/codegen/mask_buffers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "attn/mask.hpp"
#include "attn/problem.hpp"
#include "attn/scalar.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/cuda.hpp"
#include "cuda/kernels/forward_features.hpp"

namespace attn {
namespace {

using expr::Expr;

Tensor without_data(DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor t{.dtype = dtype, .rank = static_cast<std::int32_t>(shape.size())};
  std::copy(shape.begin(), shape.end(), t.shape.begin());
  return t;
}

TEST(MaskBuffers, MatterWhereNothingElseDecides) {
  const auto& s = expr::symbols();
  const Expr seen = expr::Buffer("seen", without_data(DType::u8, {100}))[s.key] != 0;
  const auto matter = [](const Expr& mask) {
    return cuda::buffers_matter(mask,
                                {.query_max = 7, .key_max = 49, .seqlen_q = 8, .seqlen_k = 100});
  };
  EXPECT_TRUE(matter(seen));
  EXPECT_TRUE(matter(!seen));
  EXPECT_FALSE(matter(causal()));
  EXPECT_FALSE(matter(s.key < 50 || seen));
  EXPECT_FALSE(matter(seen || s.key < 50));
  EXPECT_TRUE(matter(s.key < 49 || seen));
  EXPECT_FALSE(matter(s.key >= 50 && seen));
  EXPECT_TRUE(matter(s.key >= 49 && seen));
  EXPECT_FALSE(matter(causal() && (s.key < s.seqlen_k - 50 || seen)));
  EXPECT_FALSE(matter(select(s.key < 50, causal(), seen)));
  EXPECT_FALSE(matter(select(s.key >= 50, seen, causal())));
  EXPECT_TRUE(matter(select(s.key < 49, causal(), seen)));
  // Another batch entry may differ, and a scalar may have any value, but is no buffer.
  EXPECT_TRUE(matter(s.batch == 0 || seen));
  EXPECT_TRUE(matter(s.key < expr::scalar("n", 50) || seen));
  EXPECT_FALSE(matter(s.key < expr::scalar("n", 50)));
  EXPECT_FALSE(matter(s.position - s.key < expr::scalar("n", 8) && (s.key < 50 || seen)));
}

// A launch before the kernel looks at words only where they may empty blocks worth skipping.
TEST(MaskBuffers, AreLookedAtAheadWhereTheyHideManyKeys) {
  const auto scans = [](const std::string& text) {
    return cuda::forward_features(parse_problem(text), {}).mask_scans_buffers;
  };
  EXPECT_FALSE(scans("b2_sq8_sk1000_h2_d64_tree_bf16"));
  EXPECT_FALSE(scans("b2_sq64_sk300_h2_d64_tree_packedq_bf16"));
  EXPECT_FALSE(scans("b2_sq128_sk4000_h2_d64_tree_window1000x0_bf16"));
  EXPECT_FALSE(scans("b2_sq8_sk1000_h2_d64_causal_bf16"));
  // Chunks of prompts are causal and longer than any draft.
  EXPECT_FALSE(
      scans("b2_sq2000_sk9000_h2_d64_mask(key<seqlen_k-seqlen_q||select(seqlen_q<=8,"
            "(bits[batch,query,0]>>key&1)!=0,key<=position))_buffer(bits:i32:2x8x1)_bf16"));
  EXPECT_TRUE(scans("b2_sq64_sk100_h2_d64_tree_bf16"));
  EXPECT_TRUE(scans("b2_sq1000_sk4000_h2_d64_tree_bf16"));
  EXPECT_TRUE(scans("b2_sq8_sk1000_h2_d64_documents_bf16"));
  EXPECT_TRUE(scans("b2_sq8_sk1000_h2_d64_tree_documents_bf16"));
  EXPECT_TRUE(scans("b2_n512_h2_d64_butterfly64_bf16"));
}

TEST(MaskBuffers, ASingleKernelRunsATree) {
  for (const cuda::Arch arch : {cuda::Arch{80, false}, cuda::Arch{90, true}}) {
    const auto kernels = [&](const std::string& text) {
      std::string names;
      for (const cuda::Source& source : cuda::sources(parse_problem(text), Phase::forward, arch)) {
        names += source.name + ' ';
      }
      return names;
    };
    EXPECT_EQ(kernels("b2_sq8_sk4000_hq8_hk2_d64_tree_paged16_packedq_bf16").find("classify"),
              std::string::npos);
    EXPECT_NE(kernels("b2_sq8_sk4000_hq8_hk2_d64_documents_bf16").find("classify"),
              std::string::npos);
  }
}

TEST(MaskBuffers, NoElementIsLookedAtWhereClassifyingIsNotToScan) {
  const Expr mask = tree_mask(without_data(DType::i32, {1, 8, 1}));
  EXPECT_NE(cuda::print_expressions(mask, {}).find("range_load"), std::string::npos);
  const std::string text = cuda::print_expressions(mask, {}, {}, false, false);
  EXPECT_EQ(text.find("range_load"), std::string::npos);
  EXPECT_NE(text.find("ScanOf<ElementI32>::any()"), std::string::npos);
}

}  // namespace
}  // namespace attn
