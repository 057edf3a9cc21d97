// O of a type of its own (Problem::type_o): float32 beside 16-bit operands, against the reference
// and against numbers written by hand, and what is refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "attn/run.hpp"
#include "conformance/agreement.hpp"
#include "conformance/support.hpp"
#include "verify/conformance.hpp"

namespace attn {
namespace {

// One query, whose Q is 0, and two keys: O is the mean of V, 1 + 2^-8, which bf16 does not hold.
struct TwoKeys {
  std::vector<bfloat16> q = std::vector<bfloat16>(2), k = std::vector<bfloat16>(4);
  std::vector<bfloat16> v{bfloat16(1.0f), bfloat16(1.0f), bfloat16(1.0078125f),
                          bfloat16(1.0078125f)};
  std::vector<float> o = std::vector<float>(2, -1.0f);
  std::vector<bfloat16> o16 = std::vector<bfloat16>(2);
  Problem problem{.type_o = DType::f32, .mask = {}, .score = {}};

  Inputs inputs() const {
    return {.q = tensor(q.data(), {1, 1, 1, 2}),
            .k = tensor(k.data(), {1, 2, 1, 2}),
            .v = tensor(v.data(), {1, 2, 1, 2})};
  }
  Tensor of_o() { return tensor(o.data(), {1, 1, 1, 2}); }
  Tensor of_o16() { return tensor(o16.data(), {1, 1, 1, 2}); }
};

TEST(TypeO, AgreesWithTheReference) {
  constexpr const char* kCases[] = {
      "b2_sq1_sk200_hq8_hk2_d64_o(f32)_bf16",
      "b2_n70_hq4_hk2_d48_dv40_causal_sink_o(f32)_f16/padded_strided",
      "b2_sq3_sk90_sp130_hq6_hk2_d32_o(f32)_bf16/padded",
      "b3_n50_hq4_hk2_d96_packed_causal_softcap20_kv(q8_0)_o(f32)_bf16",
      "b2_sq7_sk90_hq4_hk2_d64_causal_q(e5m2)_kv(e4m3)_o(f32)_f16",
      "b2_sq3_sk90_hq6_hk2_d32_list40_o(f32)_bf16/maxlogit",
      "b1_sq3_sk400_hq8_hk2_d64_sink_o(f32)_bf16/select"};
  for (const char* text : kCases) {
    const verify::Case c = verify::parse_case(text);
    EXPECT_EQ(verify::to_string(verify::parse_case(verify::to_string(c))), verify::to_string(c));
  }
  expect_agreement(kCases, 50);
}

TEST(TypeO, OIsNotRoundedToTheOtherType) {
  constexpr float kMean = 1 + 0x1p-8f;
  TwoKeys call;
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    call.o = {-1, -1};
    forward(call.problem, call.inputs(), {.o = call.of_o()}, {.backend = backend});
    EXPECT_EQ(call.o, (std::vector<float>{kMean, kMean})) << name(backend);
    // The same call without it has another plan.
    for (const OptionalDType type : {OptionalDType{}, OptionalDType{DType::bf16}}) {
      for (bfloat16& x : call.o16) x = bfloat16(-1.0f);
      const Problem rounded{.type_o = type, .mask = {}, .score = {}};
      forward(rounded, call.inputs(), {.o = call.of_o16()}, {.backend = backend});
      for (const bfloat16 x : call.o16) EXPECT_EQ(static_cast<float>(x), 1) << name(backend);
    }
  }
}

template <class Call>
void expect_refusal(ErrorCode code, const std::string& words, const Call& run) {
  try {
    run();
    ADD_FAILURE() << "not refused: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(TypeO, OthersAreRefused) {
  TwoKeys call;
  const auto run = [&] { forward(call.problem, call.inputs(), {.o = call.of_o()}); };
  for (const DType type : {DType::f16, DType::f64, DType::u8}) {
    call.problem.type_o = type;
    expect_refusal(
        ErrorCode::invalid_argument,
        "type_o is " + std::string(name(type)) + " and dtype is bf16; accepted are bf16 and f32",
        run);
  }
  call.problem.type_o = DType::f32;
  expect_refusal(ErrorCode::invalid_argument, "o is bf16",
                 [&] { forward(call.problem, call.inputs(), {.o = call.of_o16()}); });
  expect_refusal(ErrorCode::invalid_argument, "type_o is bf16 and dtype is f32; accepted are f32",
                 [] { make_plan(parse_problem("b1_n4_h1_d8_o(bf16)_f32"), Phase::forward); });
  expect_refusal(ErrorCode::unsupported, "type_o is f32; accepted by backward is bf16",
                 [] { make_plan(parse_problem("b1_n4_h1_d8_o(f32)_bf16"), Phase::backward); });
  EXPECT_EQ(call.o, (std::vector<float>{-1, -1}));
}

}  // namespace
}  // namespace attn
