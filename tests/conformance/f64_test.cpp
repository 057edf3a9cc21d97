// The cpu backend in f64 against the reference, which computes problems in f64 in long double: each
// feature on each instruction set, how small a mistake is seen, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "attn/error.hpp"
#include "attn/run.hpp"
#include "conformance/support.hpp"
#include "reference/reference.hpp"
#include "verify/cases.hpp"
#include "verify/compare.hpp"
#include "verify/conformance.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kSeed = 20261128;

class F64 : public ::testing::TestWithParam<const char*> {};

TEST_P(F64, AgreesWithTheReference) {
  const Case c = parse_case(GetParam());
  const bool with_backward = has_backward(c.problem);
  Conformance conformance(c, kSeed, with_backward);
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    if (!with_backward && phase == Phase::backward) continue;
    for (const InstructionSet isa : available_instruction_sets()) {
      const Report report =
          conformance.check({.phase = phase, .backend = Backend::cpu, .isa = isa});
      EXPECT_EQ(report.status, Status::passed) << to_string(report);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Conformance, F64,
    ::testing::Values(
        "b1_n130_h2_d64_f64", "b2_sq40_sk100_hq4_hk2_d40_dv24_causal_sink_f64", "b1_n1_h1_d1_f64",
        "b1_sq1_sk300_hq8_hk2_d128_f64", "b1_sq64_sk0_h1_d16_f64",
        "b3_sq3_sk30_sp200_hq4_hk2_d24_causal_sink_f64",
        "b1_sq90_sk33_h1_d17_dv9_causal_f64/strided", "b1_n200_h1_d32_window64x0_f64/negative",
        "b3_sq70_sk90_hq4_hk2_d64_causal_packed_f64", "b1_sq3_sk150_h2_d64_paged16_f64",
        "b2_n70_hq4_hk1_d24_documents_f64/padded_dlse", "b2_sq2_sk333_hq4_hk2_d75_dv19_causal_f64",
        "b3_sq1_sk200_hq4_hk2_d130_paged16_softcap5_sink_f64/usedk200,0,77",
        "b2_sq4_sk300_h2_d64_window40x0_dropout0.2_seed3_f64",
        "b2_sq2_sk500_hq4_hk1_d40_list100_f64/strided",
        "b2_sq3_sk90_hq40_hk1_d48_dv32_list70_f64/vink",
        "b2_sq5_sk200_hq6_hk3_d24_causal_softcap20_list130_sink_f64/strided_padded",
        "b2_n90_h4_d32_softcap10_alibi_bias_sink_dropout0.2_seed3_f64/padded",
        "b1_sq80_sk100_h2_d48_score(select(key%3==0,score-0.01*score*score,score+a[head]*exp("
        "-abs(score))))_buffer(a:f32:2)_f64",
        "b1_sq40_sk100_h2_d16_score(score+a[to_int(0.37*to_float(query+key))%7]-b[key,head])_"
        "buffer(a:bf16:7)_buffer(b:f16:100x2)_f64",
        "b2_n70_h2_d16_dropout0.5_seed9_scale-0.3_f64/bcastk"),
    [](const ::testing::TestParamInfo<const char*>& info) { return test_name(info.param); });

// Every element off by some units in the last place of double: what float anywhere on the way does
// is a million times more.
TEST(F64Slack, AFactorOfAFewRoundingsIsSeen) {
  if (quick()) GTEST_SKIP() << "ATTN_TEST_QUICK is set: of the error rule alone";
  Conformance conformance(parse_case("b1_n130_h2_d64_causal_f64"), kSeed, true);
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    for (const double factor : {1.0, 1 + 0x1p-46, 1 - 0x1p-46}) {
      const auto tamper = [&](CaseData& data) {
        const Tensor& changed = phase == Phase::forward ? data.outputs.o : data.gradients.dq;
        for (std::int64_t i = 0; i < changed.size(); ++i) {
          store_element(changed, i, factor * load_element(changed, i));
        }
      };
      const Report report =
          conformance.check({.phase = phase, .backend = Backend::cpu, .tamper = tamper});
      EXPECT_EQ(report.status, factor == 1 ? Status::passed : Status::failed) << to_string(report);
    }
  }
}

std::string message_of(const PlanOptions& options, Phase phase) {
  try {
    make_plan(parse_case("b1_n8_h1_d8_f64").problem, phase, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    return error.what();
  }
  return "";
}

TEST(F64Plan, IsOfTheCpuAndSaysWhy) {
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    const Plan plan = make_plan(parse_case("b1_n1024_h2_d64_f64").problem, phase);
    EXPECT_EQ(plan.backend, Backend::cpu);
    EXPECT_EQ(plan.algorithm, Algorithm::flash_attention_2);
    EXPECT_EQ(plan.compute, DType::f64);
    EXPECT_NE(to_string(plan).find("flash_attention_2"), std::string::npos) << to_string(plan);
  }
  EXPECT_EQ(message_of({.algorithm = Algorithm::standard}, Phase::backward),
            "algorithm standard has no f64 backward pass on the cpu backend; accepted are "
            "automatic, flash_attention_2");
}

TEST(F64Plan, IsRefusedWhereItWasChanged) {
  CaseData data(parse_case("b1_n8_h1_d8_f64"), kSeed);
  Plan plan = make_plan(data.problem, Phase::forward);
  plan.compute = DType::f32;
  data.poison();
  EXPECT_THROW(forward(plan, data.inputs, data.outputs), Error);
  EXPECT_EQ(data.damage(), "");
}

// 1e20 less, five keys have one score, of which each has a fifth of the row; a sink as far has a
// part too. LSE is -1e20, whether of one key or of five.
TEST(F64, GradientsOfFarRowsAreThoseOfTheirMean) {
  for (const bool sink : {false, true}) {
    CaseData data(parse_case(std::string("b1_sq2_sk5_h1_d4_score(score-1e20)") +
                             (sink ? "_sink_f64" : "_f64")),
                  kSeed);
    if (sink) store_element(data.inputs.sink, 0, -1e20F);
    data.poison();
    forward(data.problem, data.inputs, data.outputs, {.backend = Backend::cpu});
    backward(data.problem, data.inputs, data.outputs, data.d_outputs(), data.gradients,
             {.backend = Backend::cpu});
    const double p = sink ? 1.0 / 6 : 1.0 / 5;
    for (std::int64_t key = 0; key < 5; ++key) {
      for (std::int64_t c = 0; c < 4; ++c) {
        const double of_both = load_element(data.d_o, c) + load_element(data.d_o, 4 + c);
        EXPECT_NEAR(load_element(data.gradients.dv, 4 * key + c), p * of_both, 1e-15) << sink;
      }
    }
    if (!sink) continue;
    double delta = 0;  // of both rows
    for (std::int64_t i = 0; i < 8; ++i) {
      delta += load_element(data.d_o, i) * load_element(data.outputs.o, i);
    }
    EXPECT_NEAR(load_element(data.gradients.dsink, 0), -p * delta, 1e-6);
  }
}

// The first query of a causal call with more queries than keys sees none.
TEST(F64, SinkAloneIsLseWhateverItIs) {
  CaseData data(parse_case("b1_sq9_sk4_h1_d4_causal_sink_f64"), kSeed);
  for (const double sink : {1.5, -HUGE_VAL, HUGE_VAL, std::nan("")}) {
    store_element(data.inputs.sink, 0, sink);
    data.poison();
    forward(data.problem, data.inputs, data.outputs, {.backend = Backend::cpu});
    for (std::int64_t c = 0; c < 4; ++c) EXPECT_EQ(load_element(data.outputs.o, c), 0) << sink;
    const double lse = load_element(data.outputs.lse, 0);
    EXPECT_TRUE(lse == sink || (std::isnan(lse) && std::isnan(sink))) << lse << " for " << sink;
  }
}

}  // namespace
}  // namespace attn::verify
