// Ordinary inputs raise no floating-point exception that a program may trap: simulators run with
// feenableexcept(FE_INVALID | FE_OVERFLOW | FE_DIVBYZERO). The flags tell what would have trapped.
#include <gtest/gtest.h>

#include <cfenv>
#include <string>
#include <vector>

#include "attn/context.hpp"
#include "attn/run.hpp"
#include "conformance/support.hpp"
#include "verify/cases.hpp"
#include "verify/data.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kSeed = 3;
constexpr int kTrapped = FE_INVALID | FE_OVERFLOW | FE_DIVBYZERO;

std::string raised() {
  std::string names;
  if (std::fetestexcept(FE_INVALID) != 0) names += " invalid";
  if (std::fetestexcept(FE_OVERFLOW) != 0) names += " overflow";
  if (std::fetestexcept(FE_DIVBYZERO) != 0) names += " division by zero";
  return names;
}

class FloatingExceptions : public ::testing::TestWithParam<const char*> {
 protected:
  // On the calling thread alone, whose flags are looked at.
  static void run(CaseData& data, Phase phase, const PlanOptions& options, InstructionSet isa) {
    const Context context{.executor = make_thread_pool(1), .isa = isa, .log = nullptr};
    std::feclearexcept(FE_ALL_EXCEPT);
    if (phase == Phase::forward) {
      forward(data.problem, data.inputs, data.outputs, options, context);
    } else {
      backward(data.problem, data.inputs, data.outputs, data.d_o, data.gradients, options, context);
    }
    EXPECT_EQ(std::fetestexcept(kTrapped), 0)
        << name(phase) << ", " << name(options.backend) << ", " << name(options.algorithm) << ", "
        << name(isa) << ":" << raised();
  }
};

TEST_P(FloatingExceptions, AreNotRaised) {
  CaseData data(parse_case(GetParam()), kSeed);
  const bool with_backward = has_backward(data.problem);
  for (const InstructionSet isa : available_instruction_sets()) {
    for (const Algorithm algorithm : algorithms(Phase::forward)) {
      data.poison();
      run(data, Phase::forward, {.backend = Backend::cpu, .algorithm = algorithm}, isa);
    }
    for (const Algorithm algorithm : algorithms(Phase::backward)) {
      if (!with_backward) continue;
      run(data, Phase::backward, {.backend = Backend::cpu, .algorithm = algorithm}, isa);
    }
  }
  data.poison();
  run(data, Phase::forward, {.backend = Backend::reference}, InstructionSet::automatic);
  if (with_backward) {
    run(data, Phase::backward, {.backend = Backend::reference}, InstructionSet::automatic);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Conformance, FloatingExceptions,
    ::testing::Values(
        "b1_n150_h2_d40_f32", "b1_n300_h2_d64_causal_bf16", "b1_n70_h1_d32_causal_f16",
        "b3_sq2_sk40_sp300_hq8_hk2_d64_causal_sink_bf16/usedk0,40,7",
        // rows that see nothing: some, and all of a task
        "b1_sq300_sk100_hq4_hk2_d64_causal_f32", "b1_sq300_sk100_hq4_hk2_d64_causal_bf16",
        "b2_sq200_sk130_hq4_hk2_d64_window10x0_sink_bf16/padded", "b1_sq1_sk2000_hq8_hk2_d64_bf16",
        "b1_sq3_sk1500_h2_d64_window100x0_f32", "b2_sq5_sk700_h1_d40_causal_paged16_f16",
        "b3_sq90_sk100_hq6_hk2_d72_causal_packed_bf16",
        "b2_n130_h4_d64_softcap10_alibi_bias_causal_sink_dropout0.2_seed3_f32",
        "b2_n130_h4_d64_softcap10_alibi_bias_causal_sink_dropout0.2_seed3_bf16",
        "b1_n200_h2_d64_butterfly4_f32", "b1_n1_h1_d1_f32", "b2_n33_h2_d17_f16"),
    [](const ::testing::TestParamInfo<const char*>& info) { return test_name(info.param); });

}  // namespace
}  // namespace attn::verify
