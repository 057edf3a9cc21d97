// A gradient of LSE beside that of O: D becomes D - dLSE (attn/run.hpp).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "attn/run.hpp"
#include "conformance/support.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

void each_backward(const std::function<void(const PlanOptions&, const Context&)>& run) {
  run({.backend = Backend::reference}, {});
  for (const InstructionSet isa : available_instruction_sets()) {
    for (const Algorithm algorithm : algorithms(Phase::backward)) {
      SCOPED_TRACE(std::string(name(algorithm)) + ", " + std::string(name(isa)));
      run({.backend = Backend::cpu, .algorithm = algorithm}, {.isa = isa, .log = nullptr});
    }
  }
}

// With one key LSE is its score: dQ = dLSE scale k, whatever dO is.
TEST(LseGradient, OfOneKeyIsThatOfItsScore) {
  CaseData data(parse_case("b1_sq5_sk1_h1_d8_scale0.5_f32/dlse"), 7);
  forward(data.problem, data.inputs, data.outputs);
  each_backward([&](const PlanOptions& options, const Context& context) {
    data.poison();
    forward(data.problem, data.inputs, data.outputs);
    backward(data.problem, data.inputs, data.outputs, data.d_outputs(), data.gradients, options,
             context);
    for (std::int64_t i = 0; i < 5; ++i) {
      for (std::int64_t c = 0; c < 8; ++c) {
        const double expected = load_element(data.d_lse, i) * 0.5 * load_element(data.inputs.k, c);
        EXPECT_NEAR(load_element(data.gradients.dq, i * 8 + c), expected, 1e-5) << i << ", " << c;
      }
    }
  });
}

// Rows 0 to 3 see no key: LSE is -inf there, and what lies in dLSE reaches nothing.
TEST(LseGradient, OfRowsWithoutKeysIsNotUsed) {
  CaseData data(parse_case("b1_sq9_sk5_h1_d8_causal_f32/dlse"), 7);
  for (std::int64_t i = 0; i < 4; ++i) {
    store_element(data.d_lse, i, std::numeric_limits<double>::quiet_NaN());
  }
  each_backward([&](const PlanOptions& options, const Context& context) {
    data.poison();
    forward(data.problem, data.inputs, data.outputs);
    backward(data.problem, data.inputs, data.outputs, data.d_outputs(), data.gradients, options,
             context);
    for (const Tensor* t : {&data.gradients.dq, &data.gradients.dk, &data.gradients.dv}) {
      for (std::int64_t i = 0; i < t->size(); ++i) {
        EXPECT_TRUE(std::isfinite(load_element(*t, i))) << i;
      }
    }
    for (std::int64_t i = 0; i < 4 * 8; ++i) {
      EXPECT_EQ(load_element(data.gradients.dq, i), 0) << i;
    }
  });
}

}  // namespace
}  // namespace attn::verify
