// The reference against what is known without it: tiny cases by hand, finite differences, Philox by
// its formula.
#include "reference/reference.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "conformance/support.hpp"
#include "core/philox.hpp"
#include "verify/compare.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double at(const Tensor& t, std::initializer_list<std::int64_t> index) {
  return load_element(t, t.offset(index));
}

// Of one key P is 1. Fused attention multiplies O by dropout's factor, so that nothing is rounded
// to bf16; standard attention rounds P times that factor, here 1.1111.
TEST(Reference, FusedAttentionRoundsPBeforeTheFactorOfDropout) {
  CaseData data(parse_case("b1_sq64_sk1_h1_d8_dropout0.1_seed3_bf16"), 1);
  const Outputs exact = data.f64_outputs(), fused = data.f64_outputs();
  const Outputs standard = data.f64_outputs();
  reference::forward(data.problem, data.inputs, exact);
  reference::forward(data.problem, data.inputs, fused, reference::Precision::fused);
  reference::forward(data.problem, data.inputs, standard, reference::Precision::problem);
  double of_fused = 0, of_standard = 0;
  for (std::int64_t query = 0; query < 64; ++query) {
    const double want = at(exact.o, {0, query, 0, 0});
    if (want == 0) continue;
    of_fused = std::max(of_fused, std::abs(at(fused.o, {0, query, 0, 0}) / want - 1));
    of_standard = std::max(of_standard, std::abs(at(standard.o, {0, query, 0, 0}) / want - 1));
  }
  EXPECT_LT(of_fused, 0x1p-21);
  EXPECT_GT(of_standard, 0x1p-12);
}

TEST(Reference, TwoKeysByHand) {
  const double q[] = {1, 2};
  const double k[] = {1, 0, 0, 1};  // q.k = 1, 2
  const double v[] = {10, 20};
  double o = 0;
  double lse = 0;
  const Problem problem{.batch = 1,
                        .seqlen_q = 1,
                        .seqlen_k = 2,
                        .heads_q = 1,
                        .heads_k = 1,
                        .head_dim = 2,
                        .head_dim_v = 1,
                        .dtype = DType::f64,
                        .softmax_scale = 0.5};
  const Inputs inputs{
      .q = tensor(q, {1, 1, 1, 2}), .k = tensor(k, {1, 2, 1, 2}), .v = tensor(v, {1, 2, 1, 1})};
  const Outputs outputs{.o = tensor(&o, {1, 1, 1, 1}), .lse = tensor(&lse, {1, 1, 1})};
  reference::forward(problem, inputs, outputs);
  const double sum = std::exp(0.5) + std::exp(1.0);
  EXPECT_NEAR(o, (10 * std::exp(0.5) + 20 * std::exp(1.0)) / sum, 1e-14);
  EXPECT_NEAR(lse, std::log(sum), 1e-15);
}

TEST(Reference, RowsThatSeeNothing) {
  for (const bool sink : {false, true}) {
    CaseData data(parse_case(sink ? "b2_n3_h2_d4_mask(query>key+99)_sink_f64"
                                  : "b2_n3_h2_d4_mask(query>key+99)_f64"),
                  1);
    reference::forward(data.problem, data.inputs, data.outputs);
    reference::backward(data.problem, data.inputs, data.outputs, data.d_o, data.gradients);
    for (std::int64_t h = 0; h < 2; ++h) {
      const double lse = sink ? at(data.inputs.sink, {h}) : -kInfinity;
      EXPECT_EQ(at(data.outputs.lse, {1, h, 2}), lse);
      EXPECT_EQ(at(data.outputs.o, {1, 2, h, 3}), 0);
      EXPECT_EQ(at(data.gradients.dq, {1, 2, h, 3}), 0);
      EXPECT_EQ(at(data.gradients.dk, {1, 2, h, 3}), 0);
      EXPECT_EQ(at(data.gradients.dv, {1, 2, h, 3}), 0);
      if (sink) {
        EXPECT_EQ(at(data.gradients.dsink, {h}), 0);
      }
    }
  }
}

// The mask evaluated once for several calls hides what it hides when it is evaluated key by key.
TEST(Reference, VisibleKeysAreThoseOfTheMask) {
  for (const char* text :
       {"b2_n5_hq4_hk2_d4_causal_f64", "b2_n9_hq4_hk2_d4_mask(key%(head+2)!=0)_f64",
        "b2_n9_hq4_hk2_d4_mask(key%(batch+2)!=0)_f64/usedq3,9_usedk9,5",
        "b3_sq9_sk12_h2_d4_packed_window2x1_f64/cuq0,2,2,9_cuk0,5,6,12",
        "b2_sq6_sk20_h2_d4_list8_causal_f64", "b2_n5_h2_d4_f64"}) {
    SCOPED_TRACE(text);
    CaseData own(parse_case(text), 1), given(parse_case(text), 1);
    const reference::VisibleKeys visible(given.problem, given.inputs);
    EXPECT_EQ(visible.given(), !own.problem.mask.empty() && own.problem.key_list == 0);
    reference::forward(own.problem, own.inputs, own.outputs);
    reference::forward(given.problem, given.inputs, given.outputs, reference::Precision::f64, {},
                       {}, &visible);
    EXPECT_EQ(first_difference(own.outputs.o, given.outputs.o), std::vector<std::int64_t>{});
    EXPECT_EQ(first_difference(own.outputs.lse, given.outputs.lse), std::vector<std::int64_t>{});
    if (own.problem.key_list > 0) continue;  // has no backward pass
    reference::backward(own.problem, own.inputs, own.outputs, own.d_o, own.gradients);
    reference::backward(given.problem, given.inputs, given.outputs, given.d_o, given.gradients,
                        reference::Precision::f64, {}, {}, &visible);
    EXPECT_EQ(first_difference(own.gradients.dq, given.gradients.dq), std::vector<std::int64_t>{});
    EXPECT_EQ(first_difference(own.gradients.dk, given.gradients.dk), std::vector<std::int64_t>{});
    EXPECT_EQ(first_difference(own.gradients.dv, given.gradients.dv), std::vector<std::int64_t>{});
  }
}

TEST(Reference, RowsPastALengthAreCleared) {
  CaseData data(parse_case("b1_n4_h1_d2_f64/usedq3_usedk2"), 1);
  reference::forward(data.problem, data.inputs, data.outputs);
  reference::backward(data.problem, data.inputs, data.outputs, data.d_o, data.gradients);
  EXPECT_EQ(at(data.outputs.o, {0, 3, 0, 1}), 0);
  EXPECT_EQ(at(data.outputs.lse, {0, 0, 3}), -kInfinity);
  EXPECT_TRUE(std::isfinite(at(data.outputs.lse, {0, 0, 2})));
  EXPECT_EQ(at(data.gradients.dq, {0, 3, 0, 1}), 0);
  EXPECT_EQ(at(data.gradients.dk, {0, 2, 0, 1}), 0);
  EXPECT_EQ(at(data.gradients.dv, {0, 2, 0, 1}), 0);
  EXPECT_NE(at(data.gradients.dv, {0, 1, 0, 1}), 0);
}

// Keys in two parts, each differentiated with O and LSE of the whole, as in a ring of machines: the
// gradients are those of the whole on every backend.
TEST(Reference, BackwardTakesOAndLseThatAreGiven) {
  constexpr std::int64_t kQueries = 5, kKeys = 8, kHalf = kKeys / 2, kDim = 4;
  const auto random = [](std::int64_t n, float step) {
    std::vector<float> x(static_cast<std::size_t>(n * kDim));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(step * static_cast<float>(i + 1));
    return x;
  };
  std::vector<float> q = random(kQueries, 1.1f), k = random(kKeys, 2.3f), v = random(kKeys, 3.7f),
                     d_o = random(kQueries, 4.9f), o(q.size()), lse(kQueries);
  const auto rows = [](std::vector<float>& x, std::int64_t first, std::int64_t n) {
    return tensor(x.data() + first * kDim, {1, n, 1, kDim});
  };
  const Outputs outputs{.o = rows(o, 0, kQueries), .lse = tensor(lse.data(), {1, 1, kQueries})};
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    const PlanOptions options{.backend = backend};
    std::vector<float> dq(q.size()), dk(k.size()), dv(k.size());
    std::vector<float> dq_part(q.size()), dq_sum(q.size()), dk_parts(k.size()), dv_parts(k.size());
    const Inputs whole{.q = rows(q, 0, kQueries), .k = rows(k, 0, kKeys), .v = rows(v, 0, kKeys)};
    forward({}, whole, outputs, options);
    backward({}, whole, outputs, rows(d_o, 0, kQueries),
             {.dq = rows(dq, 0, kQueries), .dk = rows(dk, 0, kKeys), .dv = rows(dv, 0, kKeys)},
             options);
    for (const std::int64_t first : {std::int64_t{0}, kHalf}) {
      const Inputs part{
          .q = rows(q, 0, kQueries), .k = rows(k, first, kHalf), .v = rows(v, first, kHalf)};
      backward({}, part, outputs, rows(d_o, 0, kQueries),
               {.dq = rows(dq_part, 0, kQueries),
                .dk = rows(dk_parts, first, kHalf),
                .dv = rows(dv_parts, first, kHalf)},
               options);
      for (std::size_t i = 0; i < dq_sum.size(); ++i) dq_sum[i] += dq_part[i];
    }
    for (std::size_t i = 0; i < dq.size(); ++i) EXPECT_NEAR(dq_sum[i], dq[i], 1e-6) << i;
    for (std::size_t i = 0; i < dk.size(); ++i) {
      EXPECT_NEAR(dk_parts[i], dk[i], 1e-6) << i;
      EXPECT_NEAR(dv_parts[i], dv[i], 1e-6) << i;
    }
  }
}

// O of dropped attention with V = 1 is the sum of kept probabilities, each 1 / 64 here, times the
// scale.
TEST(Reference, DropoutKeepsWhatPhiloxSays) {
  CaseData data(parse_case("b2_sq3_sk64_h2_d2_dv1_scale0_dropout0.3_seed99_offset4294967301_f64"),
                1);
  for (std::int64_t j = 0; j < 64; ++j) {
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 2; ++h) {
        store_element(data.inputs.v, data.inputs.v.offset({b, j, h, 0}), 1);
      }
    }
  }
  reference::forward(data.problem, data.inputs, data.outputs);
  const std::uint32_t threshold = 9830;  // round(0.3 * 32768)
  for (std::uint32_t b = 0; b < 2; ++b) {
    for (std::uint32_t h = 0; h < 2; ++h) {
      for (std::uint32_t i = 0; i < 3; ++i) {
        int kept = 0;
        for (std::uint32_t j = 0; j < 64; ++j) {
          const core::PhiloxBlock block =
              core::philox4x32({{(j / 64) * 4 + (j % 8) / 2, i, b * 2 + h, 5}}, 99, 1);
          kept += core::dropout_number(block, j) >= threshold ? 1 : 0;
        }
        EXPECT_NEAR(at(data.outputs.o, {b, i, h, 0}), kept / 64.0 / (1 - threshold / 32768.0),
                    1e-14);
      }
    }
  }
}

class FiniteDifferences : public ::testing::TestWithParam<const char*> {
 protected:
  FiniteDifferences() : data_(parse_case(GetParam()), 5), o_(data_.f64_outputs()) {}

  // sum dO * O + sum dLSE * LSE over the rows in use.
  double loss() {
    reference::forward(data_.problem, data_.inputs, o_);
    double sum = 0;
    const auto add = [&](const Tensor& gradient, const Tensor& output) {
      for (std::int64_t i = 0; gradient.given() && i < output.size(); ++i) {
        const double grad = load_element(gradient, i);
        const double value = load_element(output, i);
        if (!std::isnan(grad) && std::isfinite(value)) sum += grad * value;
      }
    };
    add(data_.d_o, o_.o);
    add(data_.d_lse, o_.lse);
    return sum;
  }

  void expect_gradient(const char* name, const Tensor& input, const Tensor& gradient) {
    for (std::int64_t i = 0; i < input.size(); ++i) {
      const double x = load_element(input, i);
      if (std::isnan(x)) continue;
      const double step = input.dtype == DType::f64 ? 0x1p-17 : 0x1p-12;
      store_element(input, i, x + step);
      const double high = load_element(input, i);
      const double loss_high = loss();
      store_element(input, i, x - step);
      const double low = load_element(input, i);
      const double loss_low = loss();
      store_element(input, i, x);
      // Central differences: the error is step^2 / 6 times a third derivative of order 10.
      EXPECT_NEAR(load_element(gradient, i), (loss_high - loss_low) / (high - low),
                  100 * step * step + 1e-9)
          << name << "[" << i << "]";
    }
  }

  CaseData data_;
  Outputs o_;
};

TEST_P(FiniteDifferences, AgreeWithBackward) {
  const Gradients gradients = data_.f64_gradients();
  reference::forward(data_.problem, data_.inputs, o_);
  reference::backward(data_.problem, data_.inputs, o_, data_.d_outputs(), gradients);
  expect_gradient("q", data_.inputs.q, gradients.dq);
  expect_gradient("k", data_.inputs.k, gradients.dk);
  expect_gradient("v", data_.inputs.v, gradients.dv);
  if (data_.problem.sink) expect_gradient("sink", data_.inputs.sink, gradients.dsink);
  for (const auto& [name, gradient] : gradients.buffers) {
    for (const auto& [input_name, input] : data_.inputs.buffers) {
      if (input_name == name) expect_gradient(name.c_str(), input, gradient);
    }
  }
}

// Constants are powers of two where a derivative folds them: expressions hold float32, and 1 / 3
// would be off by 3e-8.
INSTANTIATE_TEST_SUITE_P(
    Reference, FiniteDifferences,
    ::testing::Values(
        "b2_sq4_sk6_hq4_hk2_d3_dv2_causal_sink_f64",
        "b2_sq4_sk6_hq2_hk1_d3_dropout0.3_seed9_f64/padded", "b2_sq5_sk7_h2_d3_packed_causal_f64",
        "b1_sq4_sk6_h2_d3_softcap2_alibi_f64", "b2_sq4_sk5_h2_d3_bias_softcap4_sink_f64",
        "b2_sq6_sk4_hq4_hk2_d3_causal_softcap2_sink_dropout0.3_seed9_f64/dlse",
        "b2_sq5_sk7_h2_d3_packed_causal_alibi_f64/dlse_padded",
        "b2_sq4_sk5_h2_d3_bias2x1x1x5_window2x1_f64",
        "b2_sq4_sk6_hq4_hk2_d3_packed_causal_score(score-a[query]+b[key]*score-c[head]*"
        "b[query]+e[batch,key])_buffer(a:f32:4)_buffer(b:f32:6)_buffer(c:f32:4)_buffer("
        "e:f32:2x6)_f64",
        "b1_sq4_sk5_h2_d3_score(score+0.3*tanh(w[key%4]*score))_buffer(w:f32:4)_f64"),
    [](const ::testing::TestParamInfo<const char*>& info) { return test_name(info.param); });

}  // namespace
}  // namespace attn::verify
