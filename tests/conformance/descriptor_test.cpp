// parse_problem() and to_string(Problem).
#include <gtest/gtest.h>

#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "attn/problem.hpp"

namespace attn {
namespace {

bool equal(const expr::Expr& a, const expr::Expr& b) {
  return a.empty() || b.empty() ? a.empty() == b.empty() : expr::same(a, b);
}

class RoundTrip : public ::testing::TestWithParam<const char*> {};

TEST_P(RoundTrip, TextProblemText) {
  const Problem problem = parse_problem(GetParam());
  EXPECT_EQ(to_string(problem), GetParam());
  const Problem again = parse_problem(to_string(problem));
  EXPECT_TRUE(equal(problem.mask, again.mask));
  EXPECT_TRUE(equal(problem.score, again.score));
}

INSTANTIATE_TEST_SUITE_P(
    Descriptor, RoundTrip,
    ::testing::Values(
        "b2_sq1024_sk4096_hq8_hk2_d128_causal_bf16", "b1_n64_h1_d64_f32",
        "b1_sq64_sk0_h1_d64_dv32_f16", "n64_d64_f64", "f32", "b1_n64_h1_d64_causaltl_f32",
        "b1_n64_h1_d64_window3x5_f32", "b1_n64_h1_d64_window3x-1_f32",
        "b1_n64_h1_d64_window-1x0_f32", "b1_n64_h1_d64_prefix7_f32", "b2_n64_h1_d64_documents_f32",
        "b2_n64_h1_d64_documents64_f32", "b2_sq64_sk32_h1_d64_documents2x64,2x32_f32",
        "b1_sq64_sk100_h1_d64_butterfly16_f32", "b1_n8_h1_d64_butterfly1_f32",
        "b2_n64_h1_d64_causal_documents_butterfly8_f32",
        "b2_n64_h1_d64_causal_mask(key%2==0)_prefix3_f32", "b1_n64_h1_d64_softcap30_f32",
        "b1_n64_h1_d64_softcap0.1_f32", "b1_n64_h4_d64_alibi_f32",
        "b1_n64_h4_d64_softcap30_alibi_f32", "b1_n64_h4_d64_alibi_softcap30_f32",
        "b1_n64_h4_d64_bias_f32", "b1_n64_h4_d64_biasbf16_f32", "b1_n64_h4_d64_bias64x64bf16_f32",
        "b2_n64_h4_d64_bias2x1x1x64f16_softcap5_f32", "b1_n64_h1_d64_packed_f32",
        "b1_n64_h1_d64_packedq_paged16_f32", "b1_n64_h1_d64_packedk_f32",
        "b1_n64_h1_d64_sink_dropout0.1_seed18446744073709551615_offset3_scale-0.125_bf16",
        "b1_n64_h1_d64_scale1e-05_f32", "b1_sq4_sk12_h1_d64_windowtl3x5_prefixtl7_causaltl_f32",
        "b2_sq4_sk12_h1_d64_documents_documentstl_f32", "b2_sq4_sk12_h1_d64_documentstl12_f32",
        "b1_sq64_sk100_h1_d64_butterflytl16_f32", "b1_sq64_sk100_h4_d64_alibitl_f32",
        "b1_sq64_sk100_h4_d64_bias_f32", "b1_sq64_sk100_h4_d64_biasbr_f32",
        "b1_sq64_sk100_h4_d64_biasbr100x100bf16_f32", "b1_sq64_sk100_h4_d64_biasbrf16_f32",
        "b1_sq4_sk12_h1_d64_mask(ids[position]<2)_buffer(ids:i32:12)_f32"));

// With a cache the shapes are those of the keys, and of the queries where aligned top left.
TEST(Descriptor, ShapesFollowTheAlignment) {
  const std::string sizes = "b2_sq4_sk12_hq6_hk2_d64_";
  const auto shape = [&](const std::string& token) {
    const Problem p = parse_problem(sizes + token);
    const Tensor& t = expr::buffers(p.mask.empty() ? p.score : p.mask).at(0)->tensor();
    return std::vector<std::int64_t>(t.shape.begin(), t.shape.begin() + t.rank);
  };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shape("documents"), (Shape{2, 12}));
  EXPECT_EQ(shape("documentstl"), (Shape{2, 12}));
  EXPECT_EQ(shape("butterfly4"), (Shape{3, 3}));
  EXPECT_EQ(shape("butterflytl4"), (Shape{1, 3}));
  EXPECT_EQ(shape("bias"), (Shape{1, 6, 4, 12}));
  EXPECT_EQ(shape("biasbr"), (Shape{1, 6, 12, 12}));
  EXPECT_EQ(shape("alibitl"), (Shape{6}));
}

TEST(Descriptor, ReadsEveryField) {
  const Problem p = parse_problem(
      "b2_sq3_sk5_hq8_hk4_d64_dv32_causal_packedq_paged16_sink_dropout0.25_seed7_offset9_scale0.5_"
      "f16");
  EXPECT_EQ(p.batch, 2);
  EXPECT_EQ(p.seqlen_q, 3);
  EXPECT_EQ(p.seqlen_k, 5);
  EXPECT_EQ(p.heads_q, 8);
  EXPECT_EQ(p.heads_k, 4);
  EXPECT_EQ(p.head_dim, 64);
  EXPECT_EQ(p.head_dim_v, 32);
  EXPECT_EQ(p.dtype, DType::f16);
  EXPECT_EQ(p.layout_q, Layout::packed);
  EXPECT_EQ(p.layout_k, Layout::paged);
  EXPECT_EQ(p.page_size, 16);
  EXPECT_TRUE(p.sink);
  EXPECT_EQ(p.dropout.probability, 0.25);
  EXPECT_EQ(p.dropout.seed, 7u);
  EXPECT_EQ(p.dropout.offset, 9u);
  EXPECT_EQ(p.softmax_scale, 0.5);
  EXPECT_TRUE(equal(p.mask, causal()));
  EXPECT_TRUE(p.score.empty());
}

TEST(Descriptor, OrderIsFree) {
  EXPECT_EQ(to_string(parse_problem("bf16_causal_alibi_d64_h4_n8_b2")),
            "b2_n8_h4_d64_causal_alibi_bf16");
}

TEST(Descriptor, GenericExpressionsKeepTheirBuffers) {
  const char* text =
      "b1_n64_h4_d64_mask(seen[key]!=0)_score(score+w[head])_buffer(seen:u8:64)_"
      "buffer(w:f32:4)_f32";
  const Problem p = parse_problem(text);
  const Problem again = parse_problem(to_string(p));
  EXPECT_TRUE(equal(p.mask, again.mask));
  EXPECT_TRUE(equal(p.score, again.score));
  EXPECT_EQ(to_string(again), to_string(p));
  EXPECT_EQ(expr::buffers(again.score).at(0)->tensor().shape[0], 4);
}

// A tree that only looks like a shorthand is printed as what it is.
TEST(Descriptor, AlmostShorthands) {
  const auto& s = expr::symbols();
  Problem p = parse_problem("b1_n64_h1_d64_f32");
  p.mask = s.key < s.query + (s.seqlen_k - s.seqlen_q);
  EXPECT_EQ(to_string(p).find("causal"), std::string::npos);
  EXPECT_TRUE(equal(parse_problem(to_string(p)).mask, p.mask));
  p.mask = {};
  p.score = 30 * tanh(s.score / 29);
  EXPECT_EQ(to_string(p).find("softcap"), std::string::npos);
  EXPECT_TRUE(equal(parse_problem(to_string(p)).score, p.score));
  p.score = max(s.score, -3.0);
  EXPECT_EQ(to_string(p).find("softcap"), std::string::npos);
  p.score = {};
  BlockMask blocks = BlockMask::butterfly(64, 64, 8);
  blocks.at(0, 7) = 1;
  p.mask = blocks.mask();
  EXPECT_EQ(to_string(p).find("butterfly"), std::string::npos) << to_string(p);
  EXPECT_TRUE(equal(parse_problem(to_string(p)).mask, p.mask));
}

// Each refusal names the token.
TEST(Descriptor, Refusals) {
  for (const auto& [text, token] : std::initializer_list<std::pair<const char*, const char*>>{
           {"b2_nn64", "'nn64'"},
           {"b2_b3", "'b3'"},
           {"n64_sq32", "'sq32'"},
           {"n-1", "'n-1'"},
           {"n9999999999999999999", "'n9999999999999999999'"},
           {"d", "'d'"},
           {"", "''"},
           {"b2__n3", "''"},
           {"n64_dropout1", "'dropout1'"},
           {"n64_dropoutnan", "'dropoutnan'"},
           {"n64_scaleinf", "'scaleinf'"},
           {"n64_paged0", "'paged0'"},
           {"n64_window3", "'window3'"},
           {"n64_causal3", "'causal3'"},
           {"n64_mask(query>=key", "'mask(query>=key'"},
           {"n64_mask(query)", "'mask(query)'"},
           {"n64_score(query>=key)", "'score(query>=key)'"},
           {"n64_alibi", "'alibi'"},
           {"n64_bias", "'bias'"},
           {"n64_h2_bias2x3x4", "'bias2x3x4'"},
           {"n64_h2_bias99999999999x99999999999", "'bias99999999999x99999999999'"},
           {"n64_buffer(w:f32)", "'buffer(w:f32)'"},
           {"n64_documentstl64,64", "'documentstl64,64'"},
           {"n64_windowbr3x3", "'windowbr3x3'"},
           {"f32_bf16", "'bf16'"}}) {
    try {
      parse_problem(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << text;
      EXPECT_NE(std::string(error.what()).find(token), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("accepted"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(parse_problem("mask(nobody)"), Error);
  EXPECT_THROW(parse_problem(std::string(100'000, 'x')), Error);
}

}  // namespace
}  // namespace attn
