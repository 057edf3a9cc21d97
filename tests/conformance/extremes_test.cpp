// What is promised of scores so large that float no longer tells them apart (docs/numerics.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attn/mask.hpp"
#include "attn/run.hpp"
#include "conformance/support.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

double largest(const Tensor& tensor) {
  double found = 0;
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    const double x = std::abs(load_element(tensor, i));
    if (!(x <= found)) found = x;  // NaN stays
    if (std::isnan(found)) return found;
  }
  return found;
}

class LargeScores : public ::testing::TestWithParam<const char*> {};

// O is a mean of values, P in the backward pass is at most 1, and nothing is NaN.
TEST_P(LargeScores, GiveProbabilities) {
  CaseData data(parse_case(GetParam()), 1);
  const double largest_v = largest(data.inputs.v);
  const double sum_d_o = largest(data.d_o) * static_cast<double>(data.problem.seqlen_q);
  for (const InstructionSet isa : available_instruction_sets()) {
    const Context context{.isa = isa, .log = nullptr};
    for (const Algorithm algorithm : algorithms(Phase::forward)) {
      SCOPED_TRACE(std::string(name(algorithm)) + ", " + std::string(name(isa)));
      data.poison();
      forward(data.problem, data.inputs, data.outputs,
              {.backend = Backend::cpu, .algorithm = algorithm}, context);
      EXPECT_LE(largest(data.outputs.o), largest_v * 1.01);
      EXPECT_TRUE(std::isfinite(largest(data.outputs.lse)));
    }
    for (const Algorithm algorithm : algorithms(Phase::backward)) {
      SCOPED_TRACE(std::string(name(algorithm)) + ", " + std::string(name(isa)));
      backward(data.problem, data.inputs, data.outputs, data.d_o, data.gradients,
               {.backend = Backend::cpu, .algorithm = algorithm}, context);
      EXPECT_LE(largest(data.gradients.dv), sum_d_o * 1.01);
      EXPECT_TRUE(std::isfinite(largest(data.gradients.dq)));
      EXPECT_TRUE(std::isfinite(largest(data.gradients.dk)));
    }
  }
}

// Sums over keys stay in the range of float where values are below FLT_MAX / n; `standard`, whose P
// add up to 1, takes any.
TEST(LargeValues, UpToTheRangeOfFloatByTheKeys) {
  CaseData data(parse_case("b1_n64_h1_d16_f32"), 1);
  for (const Algorithm algorithm : algorithms(Phase::forward)) {
    const double keys = algorithm == Algorithm::standard ? 1 : 64;
    const double value = 0.99 * std::numeric_limits<float>::max() / keys;
    for (std::int64_t i = 0; i < data.inputs.v.size(); ++i) store_element(data.inputs.v, i, value);
    for (const InstructionSet isa : available_instruction_sets()) {
      SCOPED_TRACE(std::string(name(algorithm)) + ", " + std::string(name(isa)));
      data.poison();
      forward(data.problem, data.inputs, data.outputs,
              {.backend = Backend::cpu, .algorithm = algorithm}, {.isa = isa, .log = nullptr});
      for (std::int64_t i = 0; i < data.outputs.o.size(); ++i) {
        ASSERT_NEAR(load_element(data.outputs.o, i), value, 1e-5 * value);
      }
    }
  }
}

// The additive mask of a batch that is padded on the left: rows before the first token see keys of
// the mask's value alone, all of one weight, of which an LSE of that size says nothing.
TEST(AdditiveMask, RowsOfItAloneHaveTheMeanOfTheirKeysAndItsGradients) {
  constexpr std::int64_t kPadding = 11;
  for (const char* text :
       {"b1_n70_hq4_hk2_d16_bias1x4x70x70_f32/dlse", "b2_n40_hq2_hk1_d64_bias1x2x40x40bf16_bf16",
        "b1_n150_h1_d64_bias1x1x150x150_dropout0.2_seed3_bf16",
        "b1_n70_hq2_hk1_d64_causal_bias1x2x70x70_f16/padded"}) {
    for (const double low : {-1e9, -1e30, -0x1.fep127}) {
      CaseData data(parse_case(text), 1);
      const Problem& problem = data.problem;
      const Tensor& bias = data.inputs.buffers.at(0).second;
      for (std::int64_t i = 0; i < bias.size(); ++i) {
        const std::int64_t key = i % problem.seqlen_k,
                           query = i / problem.seqlen_k % problem.seqlen_q;
        store_element(bias, i, std::min(key, query) < kPadding ? low : 0);
      }
      // The reference adds in double, where -1e9 does not swallow a score.
      for (std::int64_t b = 0; b < problem.batch; ++b) {
        for (std::int64_t e = 0; e < kPadding * problem.heads_q * problem.head_dim; ++e) {
          store_element(data.inputs.q, data.inputs.q.offset({b, 0, 0, 0}) + e, 0);
        }
      }
      const auto run = [&](const PlanOptions& options, const Context& context) {
        backward(problem, data.inputs, data.outputs, data.d_outputs(), data.gradients, options,
                 context);
        std::vector<std::vector<double>> all;
        std::vector<Tensor> tensors = {data.gradients.dq, data.gradients.dk, data.gradients.dv};
        for (const auto& [name, tensor] : data.gradients.buffers) tensors.push_back(tensor);
        for (const Tensor& t : tensors) {
          std::vector<double>& x = all.emplace_back();
          for (std::int64_t i = 0; i < t.size(); ++i) x.push_back(load_element(t, i));
        }
        return all;
      };
      forward(problem, data.inputs, data.outputs, {.backend = Backend::reference}, {});
      const auto expected = run({.backend = Backend::reference}, {});
      const double tolerance = problem.dtype == DType::f32 ? 1e-5 : 0.02;
      for (const InstructionSet isa : available_instruction_sets()) {
        for (const Algorithm algorithm : algorithms(Phase::backward)) {
          SCOPED_TRACE(std::string(text) + ", " + std::string(name(algorithm)) + ", " +
                       std::string(name(isa)) + ", mask of " + std::to_string(low));
          const auto got = run({.backend = Backend::cpu, .algorithm = algorithm}, {.isa = isa});
          for (std::size_t t = 0; t < expected.size(); ++t) {
            double most = 0, error = 0;
            for (std::size_t i = 0; i < expected[t].size(); ++i) {
              most = std::max(most, std::abs(expected[t][i]));
              error = std::max(error, std::abs(got[t][i] - expected[t][i]));
            }
            EXPECT_LE(error, tolerance * most) << "gradient " << t;
          }
        }
      }
    }
  }
}

// A sink as far from 0 as the keys' scores has the weight of one of them.
TEST(AdditiveMask, ASinkOfTheSameSizeHasTheWeightOfAKey) {
  CaseData data(parse_case("b1_n29_h2_d16_score(score-1e30)_sink_f32"), 1);
  for (std::int64_t h = 0; h < 2; ++h) store_element(data.inputs.sink, h, -1e30);
  double expected[2] = {};
  forward(data.problem, data.inputs, data.outputs, {.backend = Backend::reference}, {});
  for (std::int64_t i = 0; i < 29; ++i) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t c = 0; c < 16; ++c) {
        expected[h] -= load_element(data.d_o, (i * 2 + h) * 16 + c) *
                       load_element(data.outputs.o, (i * 2 + h) * 16 + c) / 30;
      }
    }
  }
  const auto expect_right = [&] {
    for (std::int64_t h = 0; h < 2; ++h) {
      EXPECT_NEAR(load_element(data.gradients.dsink, h), expected[h], 1e-5);
    }
  };
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    data.poison();
    forward(data.problem, data.inputs, data.outputs, {.backend = backend}, {});
    backward(data.problem, data.inputs, data.outputs, data.d_outputs(), data.gradients,
             {.backend = backend}, {});
    expect_right();
  }
}

// Two keys whose scores a softcap of 4 has nearly flattened: 4 tanh(9) and 4 tanh(10). Its slope
// there is 6e-8, of which 1 - tanh^2 leaves nothing in float.
TEST(SaturatedSoftcap, GradientsKeepTheirDigits) {
  float q[8] = {1}, k[16] = {36}, v[16] = {1}, o[8], lse[1], d_o[8] = {1}, dq[8], dk[16];
  k[8] = 40;
  const auto view = [](float* x, std::int64_t n) { return tensor(x, {1, n, 1, 8}); };
  const Problem problem{.softmax_scale = 1.0, .score = softcap(4)};
  const Inputs inputs{.q = view(q, 1), .k = view(k, 2), .v = view(v, 2)};
  const Outputs outputs{.o = view(o, 1), .lse = tensor(lse, {1, 1, 1})};
  const auto slope = [](double x) { return 1 / (std::cosh(x) * std::cosh(x)); };
  // P is 1/2 of both, as far as float tells; dP is 1 and 0, D is 1/2.
  const double ds[2] = {0.25 * slope(9), -0.25 * slope(10)};
  const double expected = 36 * ds[0] + 40 * ds[1];
  for (const InstructionSet isa : available_instruction_sets()) {
    const Context context{.isa = isa, .log = nullptr};
    forward(problem, inputs, outputs, {}, context);
    for (const Algorithm algorithm : algorithms(Phase::backward)) {
      SCOPED_TRACE(std::string(name(algorithm)) + ", " + std::string(name(isa)));
      backward(problem, inputs, outputs, view(d_o, 1), {.dq = view(dq, 1), .dk = view(dk, 2)},
               {.algorithm = algorithm}, context);
      EXPECT_NEAR(dq[0], expected, 1e-4 * expected);
      EXPECT_NEAR(dk[0], ds[0], 1e-4 * ds[0]);
      EXPECT_NEAR(dk[8], ds[1], -1e-4 * ds[1]);
    }
  }
}

// Rows whose first three keys have all of the weight, before many blocks of keys that weigh
// nothing.
TEST(KeysOfNoWeight, LeaveOAsItIs) {
  constexpr std::int64_t kRows = 20, kSeen = 3, kKeys = 100 * 64 + kSeen, kDim = 8;
  std::vector<float> q(kRows), k(kKeys, -1000), v(kKeys * kDim), o(kRows * kDim);
  const float first[kSeen] = {0, -0.3f, -0.7f};
  std::copy_n(first, kSeen, k.begin());
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = 1 + static_cast<float>(i % 97) * 0.013f;
  std::vector<double> expected(o.size());
  for (std::size_t r = 0; r < kRows; ++r) {
    q[r] = 1 + static_cast<float>(r) * 0.03f;
    double sum = 0;
    for (const float x : first) sum += std::exp(double{q[r]} * x);
    for (std::size_t i = 0; i < kSeen * kDim; ++i) {
      expected[r * kDim + i % kDim] += std::exp(double{q[r]} * first[i / kDim]) / sum * v[i];
    }
  }
  const Problem problem{.softmax_scale = 1};
  const Inputs inputs{.q = tensor(q.data(), {1, kRows, 1, 1}),
                      .k = tensor(k.data(), {1, kKeys, 1, 1}),
                      .v = tensor(v.data(), {1, kKeys, 1, kDim})};
  const Outputs outputs{.o = tensor(o.data(), {1, kRows, 1, kDim})};
  for (const InstructionSet isa : available_instruction_sets()) {
    for (const Algorithm algorithm : algorithms(Phase::forward)) {
      SCOPED_TRACE(std::string(name(algorithm)) + ", " + std::string(name(isa)));
      std::fill(o.begin(), o.end(), std::numeric_limits<float>::quiet_NaN());
      forward(problem, inputs, outputs, {.algorithm = algorithm}, {.isa = isa, .log = nullptr});
      for (std::size_t i = 0; i < o.size(); ++i) {
        ASSERT_NEAR(o[i], expected[i], 5 * 0x1p-24 * expected[i]) << "element " << i;
      }
    }
  }
}

// Scores that float has are what they are, also where q.k before softmax_scale is past its range.
// One query of eight heads, and many rows.
TEST(SoftmaxScale, KeepsScoresWhoseProductsLeaveTheRangeOfFloat) {
  for (const char* text : {"b1_sq1_sk70_hq8_hk1_d64_bf16", "b1_sq40_sk70_h1_d64_bf16"}) {
    for (const double size : {0x1p62, 0x1p-62}) {
      Case c = parse_case(text);
      c.problem.softmax_scale = 0.125 / size / size;
      CaseData data(c, 1);
      for (const Tensor& t : {data.inputs.q, data.inputs.k}) {
        for (std::int64_t i = 0; i < t.size(); ++i) {
          store_element(t, i, load_element(t, i) * size);
        }
      }
      const auto run = [&](const PlanOptions& options, InstructionSet isa) {
        data.poison();
        forward(data.problem, data.inputs, data.outputs, options, {.isa = isa, .log = nullptr});
        std::vector<double> all;
        for (const Tensor& t : {data.outputs.o, data.outputs.lse}) {
          for (std::int64_t i = 0; i < t.size(); ++i) all.push_back(load_element(t, i));
        }
        return all;
      };
      const auto expected = run({.backend = Backend::reference}, InstructionSet::automatic);
      for (const InstructionSet isa : available_instruction_sets()) {
        for (const Algorithm algorithm : algorithms(Phase::forward)) {
          SCOPED_TRACE(std::string(text) + ", " + std::string(name(algorithm)) + ", " +
                       std::string(name(isa)) + ", size " + std::to_string(size));
          const auto got = run({.backend = Backend::cpu, .algorithm = algorithm}, isa);
          for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 0.02) << i;
        }
      }
    }
  }
}

// bf16 operands count numbers below 2^-126 as 0, f32 operands do not.
TEST(SubnormalValues, AreKeptOrCountAsZero) {
  for (const char* text : {"b1_sq1_sk70_hq8_hk1_d64_bf16", "b1_sq40_sk70_h1_d64_bf16"}) {
    CaseData data(parse_case(text), 1);
    constexpr double kValue = 0x1p-128;
    for (std::int64_t i = 0; i < data.inputs.v.size(); ++i) store_element(data.inputs.v, i, kValue);
    for (const InstructionSet isa : available_instruction_sets()) {
      const Context context{.isa = isa, .log = nullptr};
      SCOPED_TRACE(std::string(text) + ", " + std::string(name(isa)));
      data.poison();
      const Plan plan = make_plan(data.problem, Phase::forward, {.backend = Backend::cpu}, context);
      forward(plan, data.inputs, data.outputs, context);
      for (std::int64_t i = 0; i < data.outputs.o.size(); ++i) {
        ASSERT_NEAR(load_element(data.outputs.o, i), plan.compute == DType::bf16 ? 0 : kValue,
                    0.02 * kValue);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, LargeScores,
                         ::testing::Values("b1_n64_h1_d64_bf16/q1e8", "b1_n64_h1_d64_bf16/q1e10",
                                           "b1_n64_h1_d64_f32/q1e10", "b1_n64_h1_d64_f32/q1e20",
                                           "b1_n90_h2_d64_causal_bf16/q1e12_k1e3"),
                         [](const ::testing::TestParamInfo<const char*>& info) {
                           return test_name(info.param);
                         });

}  // namespace
}  // namespace attn::verify
