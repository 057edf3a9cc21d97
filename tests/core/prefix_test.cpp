// A shared prefix is defined by concatenation, and its parts are parts of that.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attn/mask.hpp"
#include "core/problem/prefix_expressions.hpp"
#include "core/problem/prefix_parts.hpp"
#include "reference/reference.hpp"
#include "verify/case.hpp"
#include "verify/data.hpp"

namespace attn::core {
namespace {

constexpr std::uint64_t kSeed = 20261129;

// Rows of the prefix, then those of each sequence, as dense K or V.
std::vector<float> concatenated(const Problem& p, const Inputs& in, bool of_k) {
  const std::int64_t dim = of_k ? p.head_dim : p.head_dim_v;
  const std::int64_t keys = p.seqlen_prefix + p.seqlen_k;
  const Tensor& shared = of_k ? in.prefix_k : in.prefix_v;
  const Tensor& own = of_k ? in.k : in.v;
  std::vector<float> all;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t j = 0; j < keys; ++j) {
      for (std::int64_t h = 0; h < p.heads_k; ++h) {
        for (std::int64_t c = 0; c < dim; ++c) {
          const bool is_shared = j < p.seqlen_prefix;
          const Tensor& from = is_shared ? shared : own;
          const std::int64_t at =
              is_shared ? from.offset({j, h, c}) : from.offset({b, j - p.seqlen_prefix, h, c});
          all.push_back(static_cast<const float*>(from.data)[at]);
        }
      }
    }
  }
  return all;
}

class PrefixByConcatenation : public ::testing::TestWithParam<const char*> {};

TEST_P(PrefixByConcatenation, TheReferenceGivesTheSameBits) {
  verify::CaseData data(verify::parse_case(GetParam()), kSeed);
  const Problem& p = data.problem;
  reference::forward(p, data.inputs, data.outputs);

  Problem whole = p;
  whole.seqlen_prefix = 0;
  whole.seqlen_k = p.seqlen_prefix + p.seqlen_k;
  const std::vector<float> k = concatenated(p, data.inputs, true);
  const std::vector<float> v = concatenated(p, data.inputs, false);
  Inputs in = data.inputs;
  in.prefix_k = in.prefix_v = {};
  in.k = tensor(k.data(), {p.batch, whole.seqlen_k, p.heads_k, p.head_dim});
  in.v = tensor(v.data(), {p.batch, whole.seqlen_k, p.heads_k, p.head_dim_v});
  std::vector<std::int32_t> lengths;
  if (in.seqused_k.given()) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      lengths.push_back(static_cast<const std::int32_t*>(in.seqused_k.data)[b] +
                        static_cast<std::int32_t>(p.seqlen_prefix));
    }
    in.seqused_k = tensor(lengths.data(), {p.batch});
  }
  std::vector<float> o(static_cast<std::size_t>(p.batch * p.seqlen_q * p.heads_q * p.head_dim_v));
  std::vector<float> lse(static_cast<std::size_t>(p.batch * p.seqlen_q * p.heads_q));
  const Outputs expected{.o = tensor(o.data(), {p.batch, p.seqlen_q, p.heads_q, p.head_dim_v}),
                         .lse = tensor(lse.data(), {p.batch, p.heads_q, p.seqlen_q})};
  reference::forward(whole, in, expected);
  const auto* const got_o = static_cast<const float*>(data.outputs.o.data);
  const auto* const got_lse = static_cast<const float*>(data.outputs.lse.data);
  EXPECT_TRUE(std::equal(o.begin(), o.end(), got_o));
  EXPECT_TRUE(std::equal(lse.begin(), lse.end(), got_lse));
  EXPECT_TRUE(std::ranges::any_of(o, [](float x) { return x != 0; }));
}

INSTANTIATE_TEST_SUITE_P(
    Problems, PrefixByConcatenation,
    ::testing::Values("b2_sq3_sk20_sp30_hq4_hk2_d16_causal_f32",
                      "b2_sq5_sk20_sp30_hq4_hk2_d16_window12x3_sink_f32/padded",
                      "b2_sq5_sk9_sp30_h2_d16_alibi_documents_f32/padded",
                      "b3_sq4_sk9_sp11_h2_d16_dv8_tree_softcap5_f32/padded",
                      "b2_sq4_sk9_sp11_h2_d16_bias2x2x4x20_f32"));

TEST(PrefixParts, KeysThatAllQueriesSee) {
  struct Row {
    const char* descriptor;
    std::int64_t shared;
  };
  // With lengths that are not known a query stands seqlen_q keys before the end of the prefix or
  // behind that. What is left begins at a multiple of 64, or at a page.
  constexpr Row kRows[] = {
      {"b4_sq1_sk64_sp1000_h2_d64", 1000},
      {"b4_sq1_sk64_sp1000_h2_d64_causal", 1000},
      {"b4_sq2_sk64_sp1000_h2_d64_causal", 960},
      {"b4_sq8_sk64_sp1024_h2_d64_tree", 960},
      {"b4_sq1_sk64_sp1024_h2_d64_tree", 960},
      {"b4_sq1_sk64_sp1000_h2_d64_paged96_pagedprefix_sink", 1000},
      {"b4_sq4_sk64_sp1000_h2_d64_paged112_pagedprefix_causal", 896},
      {"b4_sq1_sk64_sp1000_h2_d64_softcap20_causal", 1000},
      {"b4_sq1_sk64_sp1000_h2_d64_alibi_causal", 0},
      {"b4_sq1_sk64_sp1000_h2_d64_window2000x0", 1000},
      {"b4_sq1_sk64_sp1000_h2_d64_window100x0", 0},
      {"b4_sq1_sk64_sp1000_h2_d64_prefix600_window10x0", 0},
      {"b4_sq900_sk64_sp1000_h2_d64_prefix600", 576},
      {"b4_sq1_sk64_sp1000_h2_d64_causaltl", 0},
      {"b4_sq1_sk64_sp1000_h2_d64_documents", 0},
      {"b4_sq1_sk64_sp1000_h2_d64_mask(head<1||key<500)", 448},
      {"b4_sq1_sk64_sp1000_h2_d64_score(score+w[key])_buffer(w:f32:1064)", 1000},
      {"b4_sq1_sk64_sp1000_h2_d64_score(score+w[batch])_buffer(w:f32:4)", 0},
      {"b4_sq1_sk64_sp20_h2_d64", 20},
  };
  for (const Row& row : kRows) {
    const PrefixParts parts = prefix_parts(parse_problem(row.descriptor), OwnLengths::seqused);
    EXPECT_EQ(parts.shared_keys, row.shared) << row.descriptor;
    EXPECT_EQ(parts.shared.has_value(), row.shared > 0) << row.descriptor;
  }
}

// Every score of the parts is one of the whole.
TEST(PrefixParts, ExpressionsSeeTheSameKeys) {
  constexpr std::int32_t kPrefix = 7, kFirst = 3;
  constexpr std::string_view kMasks[] = {
      "key<=position",        "position-key<4&&key<=position+1", "key<=query",
      "key<9||key==position", "(key-(seqlen_k-seqlen_q))%3==1",  "abs(position-key)<=seqlen_k/2",
      "2*key<seqlen_k+query", "key+1<=position-seqlen_q",        "seqlen_k-key>2",
      "batch+head+key!=6"};
  for (const std::string_view text : kMasks) {
    const expr::Expr mask = expr::parse(text);
    const expr::Expr own = over_own_keys(mask, kPrefix);
    for (const std::int32_t length : {0, 1, 5}) {
      const expr::Expr rest = over_prefix_keys(mask, kFirst, expr::Expr(length));
      for (std::int32_t query = 0; query < 4; ++query) {
        for (std::int32_t key = 0; key < kPrefix + length; ++key) {
          const expr::Point at{.query = query,
                               .key = key,
                               .batch = 1,
                               .head = 2,
                               .seqlen_q = 4,
                               .seqlen_k = kPrefix + length};
          const double expected = expr::evaluate<float>(mask, at, {});
          expr::Point part = at;
          if (key >= kPrefix) {
            part.key -= kPrefix;
            part.seqlen_k -= kPrefix;
            EXPECT_EQ(expr::evaluate<float>(own, part, {}), expected) << text << ", key " << key;
          } else if (key >= kFirst) {
            part.key -= kFirst;
            part.seqlen_k = kPrefix - kFirst;
            EXPECT_EQ(expr::evaluate<float>(rest, part, {}), expected) << text << ", key " << key;
          }
        }
      }
    }
  }
}

// The usual masks are those that kernels know, with nothing added to a key.
TEST(PrefixParts, OwnKeysHaveTheUsualMasks) {
  for (const expr::Expr& mask : {causal(), window(10, 2), window(-1, 3)}) {
    EXPECT_EQ(to_string(over_own_keys(mask, 100)), to_string(mask));
  }
}

// 200 keys of a prefix and 10 own ones of equal scores: a part weighs as many keys as it has, also
// where an additive mask puts all scores near -1e9, where float32 counts in steps of 64.
TEST(Prefix, LargeScoresWeighPartsByTheirKeys) {
  for (const float offset : {0.0F, 1e5F, -1e9F}) {
    verify::CaseData data(verify::parse_case("b2_sq1_sk10_sp200_h2_d16_f32"), kSeed);
    Problem p = data.problem;
    p.score = expr::symbols().score + offset;
    const auto fill = [](const Tensor& t, double value) {
      for (std::int64_t i = 0; i < t.size(); ++i) verify::store_element(t, i, value);
    };
    fill(data.inputs.q, 0);
    fill(data.inputs.prefix_v, 0);
    fill(data.inputs.v, 1);
    forward(p, data.inputs, data.outputs, {.backend = Backend::cpu});
    for (std::int64_t i = 0; i < data.outputs.o.size(); ++i) {
      EXPECT_NEAR(verify::load_element(data.outputs.o, i), 10.0 / 210, 1e-7) << offset;
    }
  }
}

}  // namespace
}  // namespace attn::core
