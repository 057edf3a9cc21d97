// How small a mistake the comparison still sees (docs/numerics.md has the table).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "conformance/support.hpp"
#include "reference/reference.hpp"
#include "verify/conformance.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kSeed = 5;

// to <- f(index within the tensor, exact value), rounded to its type.
using Change = std::function<double(std::int64_t element, double exact)>;
void store_changed(const Tensor& to, const Tensor& exact, const Change& change) {
  for (std::int64_t i = 0; i < to.size(); ++i) {
    store_element(to, i, change(i, load_element(exact, i)));
  }
}

Tensor named(const std::string& name, const Outputs& outputs, const Gradients& gradients) {
  return name == "o"       ? outputs.o
         : name == "lse"   ? outputs.lse
         : name == "dq"    ? gradients.dq
         : name == "dk"    ? gradients.dk
         : name == "dv"    ? gradients.dv
         : name == "dsink" ? gradients.dsink
                           : gradients.buffers.front().second;
}

// Whether a result that is exact but for `change` in one tensor, and then rounded, passes.
bool passes(Conformance& conformance, const std::string& tensor, const Change& change) {
  const bool forward = tensor == "o" || tensor == "lse";
  const auto tamper = [&](CaseData& data) {
    const Outputs outputs = data.f64_outputs();
    const Gradients gradients = data.f64_gradients();
    reference::forward(data.problem, data.inputs, outputs);
    if (!forward) reference::backward(data.problem, data.inputs, outputs, data.d_o, gradients);
    store_changed(named(tensor, data.outputs, data.gradients), named(tensor, outputs, gradients),
                  change);
  };
  return conformance
             .check({.phase = forward ? Phase::forward : Phase::backward,
                     .backend = Backend::cpu,
                     .tamper = tamper})
             .status == Status::passed;
}

// A relative error of all elements that is caught; a quarter of it is not, so that the limit says
// what the comparison can do.
struct Limit {
  const char* problem;
  const char* tensor;
  double caught;
};

class Slack : public ::testing::TestWithParam<Limit> {};

TEST_P(Slack, AFactorIsSeen) {
  const Limit limit = GetParam();
  const double caught = limit.caught;
  Conformance conformance(parse_case(limit.problem), kSeed, true);
  const auto with_factor = [&](double factor) {
    return passes(conformance, limit.tensor, [&](auto, double exact) { return exact * factor; });
  };
  EXPECT_TRUE(with_factor(1));
  EXPECT_TRUE(with_factor(1 + caught / 4));  // before a failure makes for more draws
  EXPECT_FALSE(with_factor(1 + caught));
  EXPECT_FALSE(with_factor(1 - caught));
}

INSTANTIATE_TEST_SUITE_P(
    Conformance, Slack,
    ::testing::Values(
        Limit{"b1_n256_h2_d64_f32", "o", 6e-07}, Limit{"b1_n256_h2_d64_f32", "lse", 6e-07},
        Limit{"b1_n256_h2_d64_f32", "dq", 2e-06}, Limit{"b1_n256_h2_d64_f32", "dk", 2e-06},
        Limit{"b1_n256_h2_d64_f32", "dv", 2e-06}, Limit{"b1_n256_h2_d64_causal_f32", "o", 8e-07},
        Limit{"b1_n256_h2_d64_causal_f32", "lse", 6e-07},
        Limit{"b1_n256_h2_d64_causal_f32", "dq", 2e-06},
        Limit{"b1_n256_h2_d64_causal_f32", "dk", 2e-06},
        Limit{"b1_n256_h2_d64_causal_f32", "dv", 2e-06}, Limit{"b1_n256_h2_d64_bf16", "o", 0.001},
        Limit{"b1_n256_h2_d64_bf16", "lse", 6e-07}, Limit{"b1_n256_h2_d64_bf16", "dq", 0.0013},
        Limit{"b1_n256_h2_d64_bf16", "dk", 0.0013}, Limit{"b1_n256_h2_d64_bf16", "dv", 0.001},
        Limit{"b1_n256_h2_d64_causal_bf16", "o", 0.002},
        Limit{"b1_n256_h2_d64_causal_bf16", "lse", 6e-07},
        Limit{"b1_n256_h2_d64_causal_bf16", "dq", 0.002},
        Limit{"b1_n256_h2_d64_causal_bf16", "dk", 0.003},
        Limit{"b1_n256_h2_d64_causal_bf16", "dv", 0.0025},
        Limit{"b1_n256_h2_d64_f16", "o", 0.00012}, Limit{"b1_n256_h2_d64_f16", "lse", 6e-07},
        Limit{"b1_n256_h2_d64_f16", "dq", 0.00016}, Limit{"b1_n256_h2_d64_f16", "dk", 0.00016},
        Limit{"b1_n256_h2_d64_f16", "dv", 0.00012}, Limit{"b1_n256_h2_d64_causal_f16", "o", 0.0003},
        Limit{"b1_n256_h2_d64_causal_f16", "lse", 6e-07},
        Limit{"b1_n256_h2_d64_causal_f16", "dq", 0.0003},
        Limit{"b1_n256_h2_d64_causal_f16", "dk", 0.0004},
        Limit{"b1_n256_h2_d64_causal_f16", "dv", 0.0004},
        Limit{"b1_n24_h2_d16_sink_f32", "dsink", 3e-6},
        Limit{"b1_n24_h2_d16_sink_bf16", "dsink", 0.008},
        Limit{"b1_n24_h2_d16_sink_f16", "dsink", 0.001},
        Limit{"b1_n24_h2_d16_alibi_f32", "dslopes", 3e-6},
        Limit{"b1_n24_h2_d16_alibi_bf16", "dslopes", 0.01},
        Limit{"b1_n24_h2_d16_alibi_f16", "dslopes", 0.0012},
        Limit{"b1_n24_h2_d16_bias_f32", "dbias", 2e-6},
        Limit{"b1_n24_h2_d16_bias_bf16", "dbias", 0.003},
        Limit{"b1_n24_h2_d16_bias_f16", "dbias", 0.0004}),
    [](const ::testing::TestParamInfo<Limit>& info) {
      return test_name(std::string(info.param.problem) + "_" + info.param.tensor);
    });

class OneRow : public ::testing::TestWithParam<const char*> {};

// The last row of a thousand, in which a key of average weight is left out.
TEST_P(OneRow, ThatLacksOneKeyOfAThousandIsSeen) {
  constexpr std::int64_t kRows = 1000;
  constexpr std::int64_t kColumns = 64;
  const Case c = with_dtype(parse_case("b1_n1000_h1_d64_causal"), parse_dtype(GetParam()));
  Conformance conformance(c, kSeed, false);
  const CaseData data(c, kSeed);
  EXPECT_FALSE(passes(conformance, "o", [&](std::int64_t element, double exact) {
    if (element / kColumns != kRows - 1) return exact;
    const double v = load_element(data.inputs.v, 500 * kColumns + element % kColumns);
    return exact + (exact - v) / (kRows - 1);
  }));
}

INSTANTIATE_TEST_SUITE_P(Conformance, OneRow, ::testing::Values("f32", "bf16", "f16"));

}  // namespace
}  // namespace attn::verify
