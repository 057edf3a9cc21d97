// What the conformance tests share.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <string>
#include <vector>

#include "attn/context.hpp"
#include "attn/plan.hpp"
#include "verify/case.hpp"
#include "verify/cases.hpp"

namespace attn::verify {

// ATTN_TEST_QUICK=1 leaves out what takes long under a sanitizer.
inline bool quick() { return std::getenv("ATTN_TEST_QUICK") != nullptr; }

inline std::vector<InstructionSet> available_instruction_sets() {
  std::vector<InstructionSet> sets;
  for (const InstructionSetInfo& info : instruction_sets()) {
    if (info.available) sets.push_back(info.isa);
  }
  return sets;
}

// The algorithms that take a problem of this dtype.
inline std::vector<Algorithm> algorithms_for(DType dtype, Phase phase) {
  if (dtype == DType::f64) return {Algorithm::flash_attention_2};
  return algorithms(phase);
}

// The algorithms that take the problem.
inline std::vector<Algorithm> algorithms_for(const Problem& problem, Phase phase) {
  if (problem.key_list > 0) return {Algorithm::flash_attention_2};
  return algorithms_for(problem.dtype, phase);
}

// A descriptor as a GoogleTest name: letters, digits and '_'.
inline std::string test_name(std::string text) {
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return text;
}

}  // namespace attn::verify
