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

// Below the range of a type all of a number is lost, and what it is multiplied by makes it large
// again: P of a key far from its query times (dP - D) and a distance of 11; O of f16 in D of a
// sink.
TEST(RandomCase, NumbersBelowTheRangeOfATypeAreNoError) {
  const auto check = [](const char* text, std::uint64_t seed, InstructionSet isa) {
    Conformance conformance(parse_case(text), seed, true);
    const Report report = conformance.check({.phase = Phase::backward,
                                             .backend = Backend::cpu,
                                             .algorithm = Algorithm::standard,
                                             .isa = isa});
    EXPECT_EQ(report.status, Status::passed) << to_string(report);
  };
  check("b1_n20_hq8_hk2_d32_documents_window0x11_alibi_bf16/padded_negative_q10_k10", 20200259,
        InstructionSet::portable);
  check("b2_sq22_sk1_h3_d64_causal_bias2x1x22x1bf16_packedq_sink_scale1_f16/padded", 20300461,
        InstructionSet::portable);
}

// dP - D of a row with one key and a sink is a small difference, and D has the rounding of O.
// Standard attention, which rounds P as well, made half the error of that by luck.
TEST(RandomCase, DHasTheRoundingOfO) {
  Conformance conformance(random_case(7800468), 7800468, true);
  const Report report = conformance.check(
      {.phase = Phase::backward, .backend = Backend::cpu, .isa = InstructionSet::portable});
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
