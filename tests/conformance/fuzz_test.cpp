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

// P of a key far from its query is flushed to 0 in float, and with it P (dP - D) times a distance
// of 11, which is above what float can hold.
TEST(RandomCase, FlushedProbabilitiesAreNoError) {
  const std::uint64_t seed = 20200259;
  Conformance conformance(
      parse_case("b1_n20_hq8_hk2_d32_documents_window0x11_alibi_bf16/padded_negative_q10_k10"),
      seed, true);
  const Report report = conformance.check({.phase = Phase::backward,
                                           .backend = Backend::cpu,
                                           .algorithm = Algorithm::standard,
                                           .isa = InstructionSet::portable});
  EXPECT_EQ(report.status, Status::passed) << to_string(report);
}

TEST(RandomCase, IsReadBackFromItsText) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const std::string text = to_string(random_case(seed));
    EXPECT_EQ(to_string(parse_case(text)), text);
  }
}

}  // namespace
}  // namespace attn::harness
