// Every mask sees exactly the keys that it should, on each algorithm and instruction set.
#include "conformance/visibility.hpp"

#include "attn/run.hpp"
#include "conformance/support.hpp"

namespace attn::verify {
namespace {

using Parameter = std::tuple<std::size_t, const char*>;  // index into kVisibilities, dtype

class VisibilityOfKeys : public ::testing::TestWithParam<Parameter> {};

TEST_P(VisibilityOfKeys, OneAtATimeAtEveryDifferenceOfLengths) {
  const auto [index, dtype] = GetParam();
  const Visibility& visibility = kVisibilities[index];
  for (std::int64_t difference = 0; difference <= kMaxDifference; ++difference) {
    const std::string text = visibility_case(visibility, difference, dtype);
    SCOPED_TRACE(text);
    CaseData data(parse_case(text), 1);
    const std::vector<InstructionSet> sets = available_instruction_sets();
    for (const InstructionSet isa : sets) {
      // A sanitizer looks at addresses: there each difference of lengths is on one set, in turn.
      if (quick() && isa != sets[static_cast<std::size_t>(difference) % sets.size()]) continue;
      const Context context{.isa = isa, .log = nullptr};
      for (const Algorithm algorithm : algorithms(Phase::forward)) {
        data.poison();
        forward(data.problem, data.inputs, data.outputs,
                {.backend = Backend::cpu, .algorithm = algorithm}, context);
        EXPECT_EQ(visibility_error(data, visibility, data.outputs.o, false), "")
            << "o, " << name(algorithm) << ", " << name(isa);
      }
      for (const Algorithm algorithm : algorithms(Phase::backward)) {
        backward(data.problem, data.inputs, data.outputs, data.d_o, data.gradients,
                 {.backend = Backend::cpu, .algorithm = algorithm}, context);
        EXPECT_EQ(visibility_error(data, visibility, data.gradients.dv, true), "")
            << "dv, " << name(algorithm) << ", " << name(isa);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, VisibilityOfKeys,
                         ::testing::Combine(::testing::Range<std::size_t>(0,
                                                                          std::size(kVisibilities)),
                                            ::testing::Values("f32", "bf16", "f16")),
                         [](const ::testing::TestParamInfo<Parameter>& info) {
                           return test_name(std::string("of") +
                                            kVisibilities[std::get<0>(info.param)].mask + "_" +
                                            std::get<1>(info.param));
                         });

}  // namespace
}  // namespace attn::verify
