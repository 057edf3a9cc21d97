// The error rule must notice what it is there to notice.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attn/error.hpp"
#include "verify/case.hpp"
#include "verify/cases.hpp"
#include "verify/compare.hpp"
#include "verify/conformance.hpp"
#include "verify/data.hpp"
#include "verify/element_rule.hpp"

namespace attn::verify {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(HalfUlp, IsTheLargestRoundingError) {
  EXPECT_EQ(half_ulp(DType::f32, 1), 0x1p-24);
  EXPECT_EQ(half_ulp(DType::f32, 1.9), 0x1p-24);
  EXPECT_EQ(half_ulp(DType::f32, 2), 0x1p-23);
  EXPECT_EQ(half_ulp(DType::bf16, 1), 0x1p-8);
  EXPECT_EQ(half_ulp(DType::f16, 1), 0x1p-11);
  EXPECT_EQ(half_ulp(DType::f16, 0), 0x1p-25);
  EXPECT_EQ(half_ulp(DType::f64, 1), 0x1p-53);
}

class Compare : public ::testing::Test {
 protected:
  Comparison run() const {
    return compare("o", tensor(got_, {2, 2}), tensor(expected_, {2, 2}), tensor(standard_, {2, 2}));
  }
  float got_[4] = {1, 2, 3, 4};
  double expected_[4] = {1, 2, 3, 4};
  double standard_[4] = {1, 2, 3, 4.5};
};

TEST_F(Compare, FindsTheWorstElement) {
  got_[1] = 2.25F;
  got_[2] = 3.75F;
  const Comparison c = run();
  EXPECT_TRUE(c.passed());
  EXPECT_EQ(c.error, 0.75);
  EXPECT_EQ(c.where, (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(c.allowed, 2 * 0.5 + 0x1p-22);
  got_[2] = 4.125F;
  EXPECT_FALSE(run().passed());
}

// Of one key and dropout 0.9, kept elements are v times 32768 / 3277 = 9.9994: with 8 bits of v,
// every eighth is just below a tie of bf16 and rounded down, in every row alike. That is what a
// perfect computation gives, and no common factor. (b1_sq32_sk1_hq4_hk2_d59_dropout0.9_bf16 once
// failed by it.)
TEST(GainRule, RoundingThatElementsShareIsNoFactor) {
  constexpr std::int64_t kRows = 400, kColumns = 128;
  Elements expected{.dtype = DType::f64, .shape = {kRows, kColumns}};
  Elements got{.dtype = DType::bf16, .shape = {kRows, kColumns}};
  const auto with = [&](double factor, float toward) {
    got.values.clear();
    for (const double x : expected.values) {
      const auto y = static_cast<float>(x * factor);
      got.values.push_back(static_cast<float>(bfloat16(y + toward * y * 0x1p-9F)));
    }
  };
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
    expected.values.push_back(static_cast<double>(128 + i % kColumns) * (32768.0 / 3277));
  }
  const Elements& scale = expected;
  ElementYardstick yardstick(DType::bf16, {0x1p-24, 0x1p-24}, expected, scale, true);
  yardstick.measure(0, expected, expected, scale);
  const auto passes = [&] {
    ElementRule rule(yardstick);
    rule.add(got, expected, scale);
    Comparison comparison;
    rule.judge(comparison);
    return std::abs(comparison.gain) <= comparison.gain_allowed;
  };
  with(1, 0);
  EXPECT_TRUE(passes());
  with(1.001, 0);
  EXPECT_FALSE(passes());
  with(0.999, 0);
  EXPECT_FALSE(passes());
  with(1, -1);  // truncated, about
  EXPECT_FALSE(passes());
}

// A few equal P, rounded to bf16, may add up to a tie, which is rounded one way in every element
// alike, and another way than the exact sum. The yardstick adds the same P. (dV of
// b1_n128_hq4_hk2_d64_window20x9_sink_bf16/identity, seed 20261227, once failed by it on GPUs.)
TEST(GainRule, SumsOfEqualRoundedNumbersAreTies) {
  constexpr std::int64_t kRows = 100, kColumns = 64;
  const auto filled = [&](DType dtype, double x) {
    return Elements{dtype, {kRows, kColumns}, std::vector<double>(kRows * kColumns, x)};
  };
  const double ulp = 0x1p-7, exact = 1 + 0.7 * ulp, sum = 1 + 0.5 * ulp;  // a tie: rounds to 1
  const Elements expected = filled(DType::f64, exact), standard = filled(DType::f32, sum);
  ElementYardstick yardstick(DType::bf16, {0x1p-24, 0x1p-24}, expected, expected, true);
  yardstick.measure(0, standard, expected, expected);
  const auto passes = [&](double got) {
    ElementRule rule(yardstick);
    rule.add(filled(DType::bf16, got), expected, expected);
    Comparison comparison;
    rule.judge(comparison);
    return std::abs(comparison.gain) <= comparison.gain_allowed;
  };
  EXPECT_TRUE(passes(1));
  EXPECT_TRUE(passes(1 + ulp));  // `expected`, rounded
  EXPECT_FALSE(passes(1 - 2 * ulp));
  EXPECT_FALSE(passes(1 + 4 * ulp));
}

TEST_F(Compare, NanMustBeWhereItBelongs) {
  got_[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(run().passed());
  EXPECT_EQ(run().where, (std::vector<std::int64_t>{1, 1}));
  expected_[3] = kNan;
  EXPECT_TRUE(run().passed());
  got_[3] = 4;
  EXPECT_FALSE(run().passed());
}

TEST_F(Compare, InfinitiesMustBeTheSame) {
  expected_[0] = -kInfinity;
  standard_[0] = -kInfinity;
  EXPECT_FALSE(run().passed());
  got_[0] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(run().passed());
  got_[0] = -std::numeric_limits<float>::infinity();
  EXPECT_TRUE(run().passed());
  got_[1] = got_[0];
  EXPECT_FALSE(run().passed());
}

// 2^128 - 2^103 lies halfway between the largest float and what would follow it.
TEST_F(Compare, NumbersPastTheRangeOfTheTypeAreInfinity) {
  const double halfway = 0x1p128 - 0x1p103;
  EXPECT_EQ(element_error(DType::f32, kInfinity, halfway), 0);
  EXPECT_EQ(element_error(DType::f32, -kInfinity, -1e300), 0);
  EXPECT_EQ(element_error(DType::f32, -kInfinity, 1e300), kInfinity);
  EXPECT_EQ(element_error(DType::f32, kInfinity, std::nextafter(halfway, 0.0)), kInfinity);
  EXPECT_EQ(element_error(DType::f16, kInfinity, 65520), 0);
  EXPECT_EQ(element_error(DType::f16, kInfinity, 65519), kInfinity);
  EXPECT_EQ(element_error(DType::bf16, kInfinity, 0x1.ffp127), 0);
  EXPECT_EQ(element_error(DType::bf16, kInfinity, 0x1.fe8p127), kInfinity);
  EXPECT_EQ(element_error(DType::f64, kInfinity, 1e308), kInfinity);
  EXPECT_EQ(element_error(DType::f32, kNan, 1e300), kInfinity);
}

TEST_F(Compare, ABrokenYardstickAllowsNothing) {
  standard_[3] = kInfinity;
  standard_[2] = kNan;
  EXPECT_EQ(run().allowed, 0x1p-22);
}

TEST_F(Compare, MergeTakesTheMaxima) {
  Comparison a = run();
  got_[0] = 1.5F;
  standard_[3] = 4;
  merge(a, run());
  EXPECT_EQ(a.error, 0.5);
  EXPECT_EQ(a.standard_error, 0.5);
  EXPECT_EQ(a.where, (std::vector<std::int64_t>{0, 0}));
}

TEST(CaseData, UnusedRowsAreNan) {
  const CaseData data(parse_case("b2_n8_h2_d4_bf16/strided_usedq5,8_usedk2,8"), 3);
  const Tensor& k = data.inputs.k;
  EXPECT_FALSE(std::isnan(load_element(k, k.offset({0, 1, 1, 3}))));
  EXPECT_TRUE(std::isnan(load_element(k, k.offset({0, 2, 1, 3}))));
  EXPECT_TRUE(std::isnan(load_element(k, k.offset({0, 1, 1, 3}) + 1)));  // the gap after a row
  EXPECT_TRUE(std::isnan(load_element(data.outputs.o, 0)));
}

// Those of LSE, sink and buffers were contiguous whatever the hint: no kernel was asked for more.
TEST(CaseData, StridedResultsLieAnywhere) {
  const Case c = parse_case("b3_n8_hq4_hk2_d4_bias_sink_f32/strided_dlse");
  int backwards = 0, apart = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CaseData data(c, seed);
    ASSERT_EQ(data.gradients.buffers.size(), 1U);
    const Tensor& d_bias = data.gradients.buffers.front().second;
    for (const Tensor& t : {data.outputs.lse, data.d_lse, data.gradients.dsink, d_bias}) {
      const std::int64_t stride = t.strides[static_cast<std::size_t>(t.rank) - 1];
      apart += std::abs(stride) > 1 ? 1 : 0;
      backwards += stride < 0 ? 1 : 0;
    }
    EXPECT_EQ(data.damage(), "");
    const Tensor& dsink = data.gradients.dsink;
    for (std::int64_t h = 0; h < 4; ++h) store_element(dsink, dsink.offset({h}), 1);
    EXPECT_EQ(data.damage(), "");
    const std::int64_t stride = std::abs(dsink.strides[0]);
    if (stride == 1) continue;
    store_element(dsink, dsink.offset({3}) + 1, 1);
    EXPECT_EQ(data.damage(), "memory around output dsink");
  }
  EXPECT_GT(apart, 60);
  EXPECT_GT(backwards, 20);
}

TEST(CaseData, TheSameSeedGivesTheSameData) {
  const Case c = parse_case("b1_n16_h2_d8_f32");
  const CaseData a(c, 3);
  const CaseData b(c, 3);
  const CaseData other(c, 4);
  EXPECT_TRUE(first_difference(a.inputs.q, b.inputs.q).empty());
  EXPECT_FALSE(first_difference(a.inputs.q, other.inputs.q).empty());
}

TEST(CaseData, NoticesDamage) {
  CaseData data(parse_case("b2_n8_h2_d4_f16/strided"), 3);
  EXPECT_EQ(data.damage(), "");
  const Tensor& o = data.outputs.o;
  store_element(o, o.offset({0, 0, 0, 3}) + 1, 0);
  EXPECT_EQ(data.damage(), "memory around output o");
  data.poison();
  EXPECT_EQ(data.damage(), "");
  store_element(data.inputs.v, 0, 77);
  EXPECT_EQ(data.damage(), "input v");
}

TEST(CaseData, FarElementsLiePast31Bits) {
  const CaseData data(parse_case("b1_n70_h2_d4_f16/far"), 3);
  EXPECT_GT(data.inputs.k.offset({0, 69, 0, 0}), std::int64_t{1} << 31);
}

TEST(Case, TextGoesRoundTrip) {
  for (const std::string text :
       {"b1_n16_h1_d8_f32", "b2_n16_h2_d8_causal_bf16/strided_bcastk_padded_q5_k3",
        "b1_n8_h1_d8_mask(query/2==key/2)_f32/far",
        "b3_n8_h1_d8_packed_f32/cuq0,2,4,8_cuk0,0,8,8"}) {
    EXPECT_EQ(to_string(parse_case(text)), text);
  }
}

TEST(Case, UnknownHintIsNamed) {
  try {
    parse_case("n16_d8/stridde");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'stridde'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("strided"), std::string::npos) << error.what();
  }
}

TEST(ListedCases, AreWrittenAsTheyPrint) {
  for (const ListedCase& listed : listed_cases()) {
    const std::string text = to_string(parse_case(listed.descriptor));
    EXPECT_EQ(to_string(parse_case(text)), text);
  }
}

TEST(Report, SaysHowToRepeat) {
  Report report{.descriptor = "b1_n8_h1_d8_f32",
                .seed = 7,
                .subject = {.phase = Phase::backward,
                            .backend = Backend::cpu,
                            .algorithm = Algorithm::standard,
                            .isa = InstructionSet::avx2,
                            .executor = nullptr},
                .status = Status::failed,
                .message = "dq is wrong",
                .comparisons = {}};
  EXPECT_EQ(report.command(),
            "attn check 'b1_n8_h1_d8_f32' --seed 7 --phase backward --backend cpu --algorithm "
            "standard --isa avx2");
}

}  // namespace
}  // namespace attn::verify
