// What the tests of matrix products share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "verify/matmul.hpp"

namespace attn::matmul_checks {

// ATTN_TEST_QUICK=1 leaves out what takes long under a sanitizer.
inline bool quick() { return std::getenv("ATTN_TEST_QUICK") != nullptr; }

inline std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

inline std::vector<InstructionSet> available() {
  std::vector<InstructionSet> result;
  for (const InstructionSetInfo& info : instruction_sets()) {
    if (info.available) result.push_back(info.isa);
  }
  return result;
}

// A call of the rung, or of the fastest of an empty name, with random data.
inline void expect_right(const MatmulProblem& problem, const std::string& rung, InstructionSet isa,
                         std::uint64_t seed) {
  verify::MatmulData data(problem, seed, 3);
  MatmulOptions options;
  options.rung = rung;
  Context context;
  context.isa = isa;
  matmul(make_plan(problem, options, context), data.inputs, data.c, context);
  const verify::MatmulCheck check = verify::check_matmul(data);
  EXPECT_TRUE(check.passed()) << to_string(problem) << " " << rung << " " << name(isa) << ": "
                              << check.worst << " of the allowed error at " << check.where;
  EXPECT_EQ(data.damage(), "") << to_string(problem) << " " << rung;
}

class Sizes {
 public:
  explicit Sizes(std::uint64_t seed) : random_(seed) {}
  std::int64_t operator()(std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most));
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace attn::matmul_checks
