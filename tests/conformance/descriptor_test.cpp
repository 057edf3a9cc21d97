// parse_problem() and to_string(Problem).
#include <gtest/gtest.h>

#include <cstdint>
#include <ctime>
#include <limits>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "attn/problem.hpp"
#include "core/text/shorthands.hpp"
#include "expr/random_expr.hpp"

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

// Sizes for which every token has a shape.
const std::string kSizes = "b2_sq6_sk10_hq4_hk2_d8_";

// Reading what was written gives the same problem, and writing that the same text.
void expect_inverse(const Problem& p, const std::string& why) {
  const std::string text = to_string(p);
  Problem again;
  ASSERT_NO_THROW(again = parse_problem(text)) << why << ": " << text;
  EXPECT_TRUE(equal(p.mask, again.mask)) << why << ": " << text;
  EXPECT_TRUE(equal(p.score, again.score)) << why << ": " << text;
  EXPECT_EQ(to_string(again), text) << why;
}

// A token of each row, whose form has 2 for each of its numbers.
TEST(Descriptor, EveryShorthandIsPrintedAsItIsRead) {
  for (const core::Shorthand& row : core::shorthands()) {
    std::string token;
    bool inside = false;
    for (const char c : row.form) {
      if (c == '>') token += '2';
      inside = c == '<' || (inside && c != '>');
      if (!inside && c != '>') token += c;
    }
    EXPECT_TRUE(token.starts_with(row.name)) << row.form;
    const std::string text = kSizes + token + "_f32";
    const Problem p = parse_problem(text);
    EXPECT_EQ(to_string(p), text);
    EXPECT_TRUE((row.is_score ? p.mask : p.score).empty()) << text;
  }
}

TEST(Descriptor, TwoOfAShorthandHaveBuffersOfTheirOwn) {
  const Problem p = parse_problem(kSizes + "butterfly2_butterfly4_bias_alibi_bias4x1x6x10");
  std::vector<std::string> names;
  for (const expr::Expr& e : {p.mask, p.score}) {
    for (const auto& buffer : expr::buffers(e)) names.push_back(buffer->name());
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"block_mask", "block_mask2", "bias", "slopes", "bias2"}));
  for (const char* tokens :
       {"butterfly2_butterfly4", "butterfly2_butterfly2", "bias_bias", "bias_softcap5_biasbr_alibi",
        "documents_documents1x10", "documents6,10_documentstl_documents2x6,1x10", "alibi_alibitl",
        "tree_causal_tree1x6x1"}) {
    const std::string text = kSizes + tokens;
    EXPECT_EQ(to_string(parse_problem(text)), text + "_f32");
    expect_inverse(parse_problem(text), text);
  }
}

TEST(Descriptor, ExpressionsThatNoShorthandIs) {
  const auto& s = expr::symbols();
  const float inf = std::numeric_limits<float>::infinity();
  Problem p = parse_problem(kSizes + "f32");
  for (const expr::Expr& score :
       {min(s.score, inf), max(s.score, -inf), inf * tanh(s.score / inf), s.score,
        s.score * std::numeric_limits<float>::quiet_NaN(), s.score - 1.0, 2.0 - s.score}) {
    p.score = score;
    expect_inverse(p, to_string(score));
  }
  // One tensor that two shorthands share, which two tokens would not.
  const std::vector<std::int32_t> ids(10);
  p.score = {};
  p.mask = documents(tensor(ids.data(), {10})) &&
           documents(tensor(ids.data(), {10}), Alignment::top_left);
  expect_inverse(p, "shared ids");
}

// Any conjunction of masks and composition of scores, shorthands and random trees.
TEST(Descriptor, RandomProblemsComeBack) {
  const std::string masks[] = {"causal",        "causaltl",   "window3x-1",   "windowtl2x2",
                               "prefix4",       "prefixtl0",  "documents",    "documentstl10",
                               "documents6,10", "butterfly2", "butterflytl4", "mask(key%3!=1)",
                               "tree",          "tree1x6x1"};
  const std::string scores[] = {"softcap3",       "alibi",        "alibitl",         "bias",
                                "biasbr4x1x1x10", "bias6x10bf16", "score(score-0.5)"};
  for (std::uint32_t seed = 1; seed <= 1500; ++seed) {
    test::RandomExpr random(seed);
    std::string text = kSizes + (seed % 2 == 0 ? "bf16" : "f16");
    for (int i = random.uniform(0, 3); i > 0; --i) text += "_" + masks[random.uniform(0, 13)];
    for (int i = random.uniform(0, 3); i > 0; --i) text += "_" + scores[random.uniform(0, 6)];
    Problem p = parse_problem(text);
    if (random.uniform(0, 1) == 0) {
      const expr::Expr mask = random.boolean(random.uniform(1, 4), false);
      p.mask = p.mask.empty() ? mask : random.uniform(0, 1) == 0 ? p.mask && mask : mask && p.mask;
    }
    if (random.uniform(0, 1) == 0) {
      const expr::Expr score = random.float32(random.uniform(1, 4), true);
      p.score = p.score.empty()             ? score
                : random.uniform(0, 1) == 0 ? compose(score, p.score)
                                            : compose(p.score, score);
    }
    if (random.uniform(0, 3) == 0) p.softmax_scale = random.real(-2, 2);
    expect_inverse(p, "seed " + std::to_string(seed));
  }
}

// Refused by arithmetic, before any memory is asked for.
TEST(Descriptor, BlockMasksHaveABound) {
  for (const char* text :
       {"n859622_butterfly2", "n2147483647_butterfly1", "n9000000000_butterfly2"}) {
    try {
      parse_problem(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("1073741824 blocks"), std::string::npos)
          << error.what();
    }
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(BlockMask::butterfly(kMost, kMost, 2), Error);
  EXPECT_THROW(BlockMask(kMost, kMost, 1, 1), Error);
}

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
  EXPECT_EQ(shape("tree"), (Shape{2, 4, 1}));
  EXPECT_EQ(shape("tree2x0x0"), (Shape{2, 0, 0}));
  EXPECT_EQ(shape("butterfly4"), (Shape{3, 3}));
  EXPECT_EQ(shape("butterflytl4"), (Shape{1, 3}));
  EXPECT_EQ(shape("bias"), (Shape{1, 6, 4, 12}));
  EXPECT_EQ(shape("biasbr"), (Shape{1, 6, 12, 12}));
  EXPECT_EQ(shape("alibitl"), (Shape{6}));
}

TEST(Descriptor, ReadsEveryField) {
  const Problem p = parse_problem(
      "b2_sq3_sk5_hq8_hk4_d64_dv32_causal_packedq_paged16_sink_dropout0.25_seed7_offset9_rngstate_"
      "scale0.5_"
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
  EXPECT_TRUE(p.dropout.rng_state);
  EXPECT_TRUE(parse_problem(to_string(p)).dropout.rng_state);
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
           {"n64_tree", "'tree'"},
           {"b2_n64_tree64x2", "'tree64x2'"},
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

// Each name was looked for among all before it: a text of 2 MB took a minute.
TEST(Descriptor, TimeIsInProportionToTheText) {
  std::string text = "b1_n8_h1_d8";
  for (int i = 0; i < 100'000; ++i) {
    const std::string name = "w" + std::to_string(i);
    text += i % 2 == 0 ? "_buffer(" + name + ":f32:8)" : "_scalar(" + name + "=1)";
  }
  const std::clock_t start = std::clock();  // of the processor: others may use it too
  EXPECT_EQ(parse_problem(text).head_dim, 8);
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
  EXPECT_THROW(parse_problem(text + "_scalar(w8=1)"), Error);
}

}  // namespace
}  // namespace attn
