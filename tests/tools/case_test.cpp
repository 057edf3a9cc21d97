#include "harness/case.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace attn::harness
