// How small a mistake the comparison still sees (docs/numerics.md has the table).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

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

// The exact results of each draw of one Conformance, computed once.
class Exact {
 public:
  Tensor operator()(CaseData& data, const std::string& tensor, bool forward) {
    const auto [at, is_new] = of_.try_emplace(&data);
    Results& results = at->second;
    if (is_new) {
      results.outputs = data.f64_outputs();
      reference::forward(data.problem, data.inputs, results.outputs);
    }
    if (!forward && !results.has_gradients) {
      results.gradients = data.f64_gradients();
      reference::backward(data.problem, data.inputs, results.outputs, data.d_o, results.gradients);
      results.has_gradients = true;
    }
    return named(tensor, results.outputs, results.gradients);
  }

 private:
  struct Results {
    Outputs outputs;
    Gradients gradients;
    bool has_gradients = false;
  };
  std::map<const CaseData*, Results> of_;
};

// Whether a result that is exact but for `change` in one tensor, and then rounded, passes.
bool passes(Conformance& conformance, Exact& exact, const std::string& tensor,
            const Change& change) {
  const bool forward = tensor == "o" || tensor == "lse";
  const auto tamper = [&](CaseData& data) {
    store_changed(named(tensor, data.outputs, data.gradients), exact(data, tensor, forward),
                  change);
  };
  return conformance
             .check({.phase = forward ? Phase::forward : Phase::backward,
                     .backend = Backend::cpu,
                     .tamper = tamper})
             .status == Status::passed;
}

// For each tensor a relative error of all elements that is caught; a quarter of it is not, so that
// the limit says what the comparison can do.
struct Limits {
  const char* problem;
  std::vector<std::pair<const char*, double>> caught;
};

class Slack : public ::testing::TestWithParam<Limits> {};

TEST_P(Slack, AFactorIsSeen) {
  Conformance conformance(parse_case(GetParam().problem), kSeed, true);
  Exact exact_results;
  const auto with_factor = [&](const char* tensor, double factor) {
    return passes(conformance, exact_results, tensor,
                  [&](auto, double exact) { return exact * factor; });
  };
  for (const auto& [tensor, caught] : GetParam().caught) {
    EXPECT_TRUE(with_factor(tensor, 1)) << tensor;
    EXPECT_TRUE(with_factor(tensor, 1 + caught / 4)) << tensor;
  }
  // After all that pass: a failure makes for more draws, with which later checks allow more.
  for (const auto& [tensor, caught] : GetParam().caught) {
    EXPECT_FALSE(with_factor(tensor, 1 + caught)) << tensor;
    EXPECT_FALSE(with_factor(tensor, 1 - caught)) << tensor;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Conformance, Slack,
    ::testing::Values(
        Limits{"b1_n256_h2_d64_f32",
               {{"o", 6e-07}, {"lse", 6e-07}, {"dq", 2e-06}, {"dk", 2e-06}, {"dv", 2e-06}}},
        Limits{"b1_n256_h2_d64_causal_f32",
               {{"o", 8e-07}, {"lse", 6e-07}, {"dq", 2e-06}, {"dk", 2e-06}, {"dv", 2e-06}}},
        Limits{"b1_n256_h2_d64_bf16",
               {{"o", 0.001}, {"lse", 6e-07}, {"dq", 0.0013}, {"dk", 0.0013}, {"dv", 0.001}}},
        Limits{"b1_n256_h2_d64_causal_bf16",
               {{"o", 0.002}, {"lse", 6e-07}, {"dq", 0.002}, {"dk", 0.003}, {"dv", 0.0025}}},
        Limits{"b1_n256_h2_d64_f16",
               {{"o", 0.00012}, {"lse", 6e-07}, {"dq", 0.00016}, {"dk", 0.00016}, {"dv", 0.00012}}},
        Limits{"b1_n256_h2_d64_causal_f16",
               {{"o", 0.0003}, {"lse", 6e-07}, {"dq", 0.0003}, {"dk", 0.0004}, {"dv", 0.0004}}},
        Limits{"b1_n24_h2_d16_sink_f32", {{"dsink", 3e-6}}},
        Limits{"b1_n24_h2_d16_sink_bf16", {{"dsink", 0.008}}},
        Limits{"b1_n24_h2_d16_sink_f16", {{"dsink", 0.001}}},
        Limits{"b1_n24_h2_d16_alibi_f32", {{"dslopes", 3e-6}}},
        Limits{"b1_n24_h2_d16_alibi_bf16", {{"dslopes", 0.01}}},
        Limits{"b1_n24_h2_d16_alibi_f16", {{"dslopes", 0.0012}}},
        Limits{"b1_n24_h2_d16_bias_f32", {{"dbias", 2e-6}}},
        Limits{"b1_n24_h2_d16_bias_bf16", {{"dbias", 0.003}}},
        Limits{"b1_n24_h2_d16_bias_f16", {{"dbias", 0.0004}}}),
    [](const ::testing::TestParamInfo<Limits>& info) { return test_name(info.param.problem); });

class OneRow : public ::testing::TestWithParam<const char*> {};

// The last row of a thousand, in which a key of average weight is left out.
TEST_P(OneRow, ThatLacksOneKeyOfAThousandIsSeen) {
  constexpr std::int64_t kRows = 1000;
  constexpr std::int64_t kColumns = 64;
  const Case c = with_dtype(parse_case("b1_n1000_h1_d64_causal"), parse_dtype(GetParam()));
  Conformance conformance(c, kSeed, false);
  const CaseData data(c, kSeed);
  Exact exact_results;
  EXPECT_FALSE(passes(conformance, exact_results, "o", [&](std::int64_t element, double exact) {
    if (element / kColumns != kRows - 1) return exact;
    const double v = load_element(data.inputs.v, 500 * kColumns + element % kColumns);
    return exact + (exact - v) / (kRows - 1);
  }));
}

INSTANTIATE_TEST_SUITE_P(Conformance, OneRow, ::testing::Values("f32", "bf16", "f16"));

}  // namespace
}  // namespace attn::verify
