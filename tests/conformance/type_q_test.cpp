// Q in a type of its own (Problem::type_q): what its bytes and scales mean, against numbers written
// by hand, attention over it against the reference, and what is refused.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "attn/run.hpp"
#include "conformance/agreement.hpp"
#include "conformance/support.hpp"
#include "verify/conformance.hpp"

namespace attn {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Two sequences of three queries and two heads of size 2, and one key, (1, 0): the LSE of a row is
// the first element of its q times its scale.
struct OneKey {
  static constexpr std::int64_t kBatch = 2, kQueries = 3, kHeads = 2, kRows = 12;
  std::vector<std::uint8_t> q = std::vector<std::uint8_t>(2 * kRows, 0x38);  // 1
  std::vector<float> k{1, 0, 1, 0}, o = std::vector<float>(2 * kRows), lse;
  Problem problem{.dtype = DType::f32,
                  .type_q = CacheType::e4m3,
                  .softmax_scale = 1.0,
                  .mask = {},
                  .score = {}};

  Tensor of_q() { return tensor(q.data(), {kBatch, kQueries, kHeads, 2}); }
  Tensor of_k() { return tensor(k.data(), {kBatch, 1, 1, 2}); }
  Tensor of_o() { return tensor(o.data(), {kBatch, kQueries, kHeads, 2}); }
  // [batch][head][query]
  std::vector<float> run(Backend backend, const Tensor& scale = {}) {
    lse.assign(kRows, kNaN);
    forward(problem, {.q = of_q(), .k = of_k(), .v = of_k(), .scale_q = scale},
            {.o = of_o(), .lse = tensor(lse.data(), {kBatch, kHeads, kQueries})},
            {.backend = backend});
    return lse;
  }
};

// Every algorithm and kind of call in turn, each on two instruction sets.
TEST(TypeQ, AgreesWithTheReference) {
  constexpr const char* kCases[] = {
      "b2_sq1_sk200_hq8_hk2_d64_q(e4m3)_bf16",
      "b2_sq7_sk90_hq4_hk2_d48_causal_q(e5m2)_kv(e4m3)_f16",
      "b2_sq40_sk139_hq4_hk2_d32_causal_paged16_q(e4m3)_kv(e4m3)_bf16",
      "b2_sq37_sk150_sp130_hq6_hk2_d96_q(e4m3)_kv(i8)_f16/padded_strided",
      "b2_sq3_sk90_hq6_hk2_d32_list40_q(e4m3)_f32",
      "b3_n100_hq4_hk2_d80_dv64_packed_causal_q(e4m3)_kv(e4m3)_bf16/strided",
      "b2_sq70_sk300_h2_d128_window30x0_sink_softcap20_q(e4m3)_kv(e4m3)_f16/padded",
      "b1_n130_h2_d64_dropout0.2_alibi_q(e4m3)_kv(e4m3)_bf16",
      "b1_sq3_sk400_hq8_hk2_d64_sink_q(e4m3)_kv(e4m3)_bf16/select"};
  expect_agreement(kCases, 40);
}

TEST(TypeQ, ElementsAreThoseOfTheType) {
  OneKey call;
  const std::array<std::uint8_t, 6> bytes{0x7e, 0xfe, 0x01, 0x38, 0x80, 0x08};
  for (std::size_t i = 0; i < bytes.size(); ++i) call.q[4 * i] = bytes[i];  // of head 0
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    const std::vector<float> lse = call.run(backend);
    // The largest, the least, the smallest above 0 (2^-9); 1, -0 and 2^-6.
    EXPECT_EQ((std::vector<float>{lse[0], lse[1], lse[2]}),
              (std::vector<float>{448, -448, 0x1p-9f}));
    EXPECT_EQ((std::vector<float>{lse[6], lse[7], lse[8]}), (std::vector<float>{1, 0, 0x1p-6f}));
    for (const std::size_t of_head_1 : {3, 4, 5, 9, 10, 11}) EXPECT_EQ(lse[of_head_1], 1);
  }
}

TEST(TypeQ, EachRowHasItsScale) {
  OneKey call;
  std::vector<float> scale(12);
  for (std::size_t i = 0; i < scale.size(); ++i) scale[i] = static_cast<float>(i + 2);
  const auto at = [](std::size_t b, std::size_t h, std::size_t i) { return (b * 2 + h) * 3 + i; };
  Tensor of_sequence_and_head = tensor(scale.data(), {2, 3, 2});
  of_sequence_and_head.strides = {2, 0, 1, 0};
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    const std::vector<float> one = call.run(backend, tensor(scale.data(), {1}));
    const std::vector<float> heads = call.run(backend, tensor(scale.data(), {2}));
    const std::vector<float> rows = call.run(backend, tensor(scale.data(), {2, 3, 2}));
    const std::vector<float> pairs = call.run(backend, of_sequence_and_head);
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::size_t h = 0; h < 2; ++h) {
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(one[at(b, h, i)], scale[0]);
          EXPECT_EQ(heads[at(b, h, i)], scale[h]);
          EXPECT_EQ(rows[at(b, h, i)], scale[(b * 3 + i) * 2 + h]);
          EXPECT_EQ(pairs[at(b, h, i)], scale[b * 2 + h]);
        }
      }
    }
    scale[0] = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(std::isnan(call.run(backend, tensor(scale.data(), {2, 3, 2}))[0]));
    scale[0] = 2;
  }
}

// Q of all sequences might be taken as one there, its scales not.
TEST(TypeQ, AScaleOfASequenceCountsBehindAPrefix) {
  constexpr std::int64_t kPrefix = 200;
  OneKey call;
  std::vector<float> keys(kPrefix * 2), scale{2, 3, 4, 5}, lse(OneKey::kRows);
  for (std::size_t i = 0; i < kPrefix; ++i) keys[2 * i] = 1;
  call.problem.seqlen_prefix = kPrefix;
  Tensor of_sequence_and_head = tensor(scale.data(), {2, 3, 2});
  of_sequence_and_head.strides = {2, 0, 1, 0};
  Inputs inputs{.q = call.of_q(), .k = call.of_k(), .v = call.of_k()};
  inputs.scale_q = of_sequence_and_head;
  inputs.prefix_k = inputs.prefix_v = tensor(keys.data(), {kPrefix, 1, 2});
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    forward(call.problem, inputs, {.o = call.of_o(), .lse = tensor(lse.data(), {2, 2, 3})},
            {.backend = backend});
    for (std::size_t i = 0; i < lse.size(); ++i) {
      EXPECT_NEAR(lse[i], scale[i / 3] + std::log(kPrefix + 1.0f), 1e-5) << name(backend) << i;
    }
  }
}

void expect_refusal(const OneKey& call, const Inputs& inputs, const Problem& problem,
                    ErrorCode code, const std::string& words) {
  std::vector<float> o(24, 3.0f);
  try {
    forward(problem, inputs, {.o = tensor(o.data(), {2, 3, 2, 2})});
    ADD_FAILURE() << "not refused: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
  for (const float x : o) ASSERT_EQ(x, 3.0f);
  ASSERT_EQ(call.q.size(), 24u);
}

TEST(TypeQ, IsRefusedByName) {
  OneKey call;
  std::vector<float> numbers(64, 1.0f);
  const Tensor floats = tensor(numbers.data(), {2, 3, 2, 2});
  const auto inputs = [&](const Tensor& q, const Tensor& scale = {}) {
    return Inputs{.q = q, .k = call.of_k(), .v = call.of_k(), .scale_q = scale};
  };
  const auto with = [&](auto change) {
    Problem p = call.problem;
    change(p);
    return p;
  };
  constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;
  const Tensor q = call.of_q();
  expect_refusal(call, inputs(q), with([](Problem& p) { p.dtype = {}; }), kInvalid,
                 "dtype is not given and type_q is e4m3");
  expect_refusal(call, inputs(q), with([](Problem& p) { p.type_q = CacheType::i8; }), kInvalid,
                 "type_q is i8; accepted are as_q, e4m3 and e5m2");
  expect_refusal(call, inputs(q), with([](Problem& p) { p.type_q = CacheType::bf16; }), kInvalid,
                 "type_q is bf16; accepted are as_q, e4m3 and e5m2");
  expect_refusal(call, inputs(q), with([](Problem& p) { p.type_q = static_cast<CacheType>(77); }),
                 kInvalid, "type_q is 77");
  expect_refusal(call, inputs(floats), call.problem, kInvalid, "q is f32[2, 3, 2, 2]");
  expect_refusal(call, inputs(q), {}, kInvalid, "dtype is u8");
  expect_refusal(call, inputs(floats, tensor(numbers.data(), {1})), {}, kInvalid,
                 "scale_q is f32[1] strides (1) on cpu and type_q is as_q");
  expect_refusal(call, inputs(q, tensor(numbers.data(), {3})), call.problem, kInvalid,
                 "scale_q is f32[3]");
  expect_refusal(call, inputs(q, tensor(numbers.data(), {2, 2, 3})), call.problem, kInvalid,
                 "scale_q is f32[2, 2, 3]");
  expect_refusal(call, inputs(q, tensor(call.q.data(), {1})), call.problem, kInvalid,
                 "scale_q is u8[1]");
  EXPECT_THROW(make_plan(parse_problem("b1_n4_h1_d64_q(e4m3)_f64"), Phase::forward), Error);
  EXPECT_THROW(parse_problem("b1_n4_h1_d64_q(e3m4)"), Error);
  for (const char* text : {"b1_n4_h1_d64_q(e4m3)_bf16", "b1_n4_h1_d64_q(e4m3)_kv(e4m3)_f16"}) {
    try {
      make_plan(parse_problem(text), Phase::backward);
      ADD_FAILURE() << "backward was planned";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_NE(std::string(error.what()).find("type_q is e4m3"), std::string::npos);
    }
  }
}

TEST(TypeQ, MayNotLieUnderO) {
  OneKey call;
  const Tensor o = tensor(call.o.data(), {2, 3, 2, 2});
  const Tensor scale = tensor(call.o.data() + 5, {1});
  try {
    forward(call.problem, {.q = call.of_q(), .k = call.of_k(), .v = call.of_k(), .scale_q = scale},
            {.o = o}, {.backend = Backend::reference});
    ADD_FAILURE() << "an overlap was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("scale_q"), std::string::npos) << error.what();
  }
}

TEST(TypeQ, IsWrittenAndReadInDescriptors) {
  for (const char* text :
       {"b1_n8_h2_d64_q(e4m3)_bf16", "b1_n8_h2_d64_packed_q(e4m3)_kv(e4m3)_f16"}) {
    const Problem problem = parse_problem(text);
    EXPECT_EQ(to_string(problem), text);
    EXPECT_EQ(problem.type_q, CacheType::e4m3);
  }
}

}  // namespace
}  // namespace attn
