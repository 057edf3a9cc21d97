#include "verify/case.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "attn/error.hpp"
#include "attn/plan.hpp"
#include "core/problem/costs.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

using Lengths = std::vector<std::int32_t>;

Lengths values(const Tensor& t) {
  const auto* x = static_cast<const std::int32_t*>(t.data);
  return {x, x + t.size()};
}

TEST(AtFullLength, LengthsThatWouldBeRandomAreTheLargest) {
  const CaseData paged(at_full_length(parse_case("b3_sq4_sk90_hq4_hk2_d16_paged7")), 1);
  EXPECT_EQ(values(paged.inputs.seqused_k), (Lengths{90, 90, 90}));
  EXPECT_FALSE(paged.inputs.seqused_q.given());
  const CaseData packed(at_full_length(parse_case("b2_sq5_sk9_h1_d16_packed")), 1);
  EXPECT_EQ(values(packed.inputs.cu_seqlens_q), (Lengths{0, 5, 10}));
  EXPECT_EQ(values(packed.inputs.cu_seqlens_k), (Lengths{0, 9, 18}));
  const CaseData padded(at_full_length(parse_case("b2_sq5_sk9_h1_d16/padded")), 1);
  EXPECT_EQ(values(padded.inputs.seqused_q), (Lengths{5, 5}));
  EXPECT_EQ(values(padded.inputs.seqused_k), (Lengths{9, 9}));
  const CaseData both(at_full_length(parse_case("b2_n9_h1_d16_packed/cuq0,3,5_padded")), 1);
  EXPECT_EQ(values(both.inputs.seqused_q), (Lengths{3, 2}));
  EXPECT_EQ(values(both.inputs.seqused_k), (Lengths{9, 9}));
}

// "qnan" is a number that std::from_chars reads.
TEST(CaseHints, FactorsAreFinite) {
  for (const char* text : {"b1_n8_h1_d8/qnan", "b1_n8_h1_d8/kinf", "b1_n8_h1_d8/q-inf"}) {
    EXPECT_THROW(parse_case(text), Error) << text;
  }
  EXPECT_EQ(parse_case("b1_n8_h1_d8/q2.5").hints.q_factor, 2.5);
}

TEST(AtFullLength, GivenLengthsAndDenseCasesStay) {
  const Case given = parse_case("b2_sk90_sq4_h1_d16_paged8/usedk7,90");
  EXPECT_EQ(to_string(at_full_length(given)), to_string(given));
  const Case dense = parse_case("b2_n8_h1_d16");
  EXPECT_EQ(to_string(at_full_length(dense)), to_string(dense));
}

// GFLOP/s of attn bench once were those of full lengths.
TEST(CaseLengths, AreThoseThatFlopsAndBytesAreCountedOf) {
  const auto counts = [](const char* text) {
    const CaseData data(at_full_length(parse_case(text)), 1);
    const Problem p = complete(data.problem, data.inputs);
    return std::pair(core::flops(p, Phase::forward, data.inputs),
                     core::bytes(p, Phase::forward, data.inputs));
  };
  // Sequences of 3 and 2 rows, whose causal triangles have 6 and 3 elements, of 4 * 16 flops each.
  EXPECT_EQ(counts("b2_n9_h1_d16_causal_packed_f32/cuq0,3,5_cuk0,3,5"),
            std::pair((6 + 3) * 64.0, 5 * (4.0 * 16 * 4 + 4)));
  EXPECT_EQ(counts("b2_sq1_sk9_hq4_hk2_d16_f16/usedk7,2"),
            std::pair(4 * 9 * 64.0, 8 * (2.0 * 16 * 2 + 4) + 2 * 9 * 2.0 * 16 * 2));
  const Plan whole = make_plan(attn::parse_problem("b2_n9_h2_d16_causal"), Phase::forward);
  EXPECT_EQ(counts("b2_n9_h2_d16_causal_packed"), std::pair(whole.flops(), whole.bytes));
}

// Once they were taken for 1.
TEST(CaseSizes, OfZeroAreRefused) {
  for (const auto& [text, token] :
       std::initializer_list<std::pair<const char*, const char*>>{{"b0_n8_h1_d8", "'b0'"},
                                                                  {"b1_n8_h0_d8", "'h0'"},
                                                                  {"b1_n8_hq0_hk0_d8", "'hq0'"},
                                                                  {"n8_d8_b0", "'b0'"},
                                                                  {"n8_hk0_d8/padded", "'hk0'"}}) {
    try {
      parse_case(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(token), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(parse_case("n8_d8").problem.batch, 1);
  EXPECT_EQ(parse_case("n8_h10_d8_dropout0.1_seed3_b10").problem.batch, 10);
}

// Once they went out of bounds.
TEST(CaseLengths, AreThoseOfSequences) {
  for (const auto& [text, named] : std::initializer_list<std::pair<const char*, const char*>>{
           {"b1_n8_h1_d8/usedq-1", "seqused_q has -1"},
           {"b1_n8_h1_d8/usedk9", "seqused_k has 9"},
           {"b1_n8_h1_d8_packed/cuk0,-1", "cu_seqlens_k has -1"},
           {"b1_n8_h1_d8_packed/cuk1,8", "cu_seqlens_k begins with 1"},
           {"b2_n8_h1_d8_packed/cuq0,4,2", "cu_seqlens_q has 2 after 4"},
           {"b2_n8_h1_d8_packed/cuk0,4,13", "cu_seqlens_k has a sequence of 9 rows"},
           {"b2_n8_h1_d8/cuq0,4,8", "hint 'cuq0,4,8' is of a case that is not packed"},
           {"b2_n8_h1_d8_paged4/cuk0,4,8", "hint 'cuk0,4,8' is of a case that is not packed"}}) {
    try {
      const CaseData data(parse_case(text), 1);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace attn::verify
