// Forward problems on the CPU beside the reference.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "conformance/support.hpp"
#include "verify/conformance.hpp"

namespace attn {

// Each case by every algorithm and by the choice of the library, on the instruction sets in turn.
inline void expect_agreement(std::span<const char* const> cases, std::uint64_t seed) {
  const std::vector<InstructionSet> sets = verify::available_instruction_sets();
  std::size_t turn = 0;
  for (const char* text : cases) {
    const verify::Case c = verify::parse_case(text);
    verify::Conformance conformance(c, seed + turn, false);
    std::vector<Algorithm> all = verify::algorithms_for(c.problem, Phase::forward);
    all.push_back(Algorithm::automatic);
    for (const Algorithm algorithm : all) {
      const verify::Report report = conformance.check(
          {.backend = Backend::cpu, .algorithm = algorithm, .isa = sets[turn++ % sets.size()]});
      EXPECT_EQ(report.status, verify::Status::passed) << verify::to_string(report);
    }
  }
}

}  // namespace attn
