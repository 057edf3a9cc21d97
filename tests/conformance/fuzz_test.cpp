// Random problems: any combination of features, each algorithm and instruction set in turn.
#include <gtest/gtest.h>

#include "attn/plan.hpp"
#include "conformance/support.hpp"
#include "harness/cases.hpp"
#include "harness/conformance.hpp"

namespace attn::harness {
namespace {

constexpr std::uint64_t kSeedsPerTest = 20;

class Fuzz : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Fuzz, AgreesWithTheReference) {
  const std::uint64_t first = GetParam() * kSeedsPerTest;
  const std::uint64_t count = quick() ? kSeedsPerTest / 5 : kSeedsPerTest;
  const std::vector<InstructionSet> sets = available_instruction_sets();
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Case c = random_case(seed);
    const bool paged = c.problem.layout_k == Layout::paged;
    Conformance conformance(c, seed, !paged);
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      if (paged && phase == Phase::backward) continue;
      std::uint64_t turn = seed;  // which instruction set an algorithm gets
      std::vector<Algorithm> all = algorithms(phase);
      all.push_back(Algorithm::automatic);
      for (const Algorithm algorithm : all) {
        const Report report = conformance.check({.phase = phase,
                                                 .backend = Backend::cpu,
                                                 .algorithm = algorithm,
                                                 .isa = sets[turn++ % sets.size()]});
        EXPECT_EQ(report.status, Status::passed) << to_string(report);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, Fuzz, ::testing::Range<std::uint64_t>(0, 10));

TEST(RandomCase, IsReadBackFromItsText) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const std::string text = to_string(random_case(seed));
    EXPECT_EQ(to_string(parse_case(text)), text);
  }
}

}  // namespace
}  // namespace attn::harness
