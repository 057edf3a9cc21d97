#include "harness/case.hpp"

#include <gtest/gtest.h>

#include "attn/error.hpp"
#include "harness/data.hpp"

namespace attn::harness {
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

TEST(AtFullLength, GivenLengthsAndDenseCasesStay) {
  const Case given = parse_case("b2_sk90_sq4_h1_d16_paged8/usedk7,90");
  EXPECT_EQ(to_string(at_full_length(given)), to_string(given));
  const Case dense = parse_case("b2_n8_h1_d16");
  EXPECT_EQ(to_string(at_full_length(dense)), to_string(dense));
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
           {"b2_n8_h1_d8_packed/cuq0,4,2", "cu_seqlens_q has 2 after 4"}}) {
    try {
      const CaseData data(parse_case(text), 1);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace attn::harness
