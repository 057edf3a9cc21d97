// Every kind of bad argument is refused with a sentence that names it, before anything is written.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "core/call.hpp"

namespace attn::testing {

enum Phases { kForward = 1, kBackward = 2, kBoth = 3 };

struct Refusal {
  const char* title;
  Call (*make)();
  void (*spoil)(Call&);
  std::vector<std::string> phrases;  // all of them in the message
  Phases phases = kBoth;
  ErrorCode code = ErrorCode::invalid_argument;
};
inline void PrintTo(const Refusal& r, std::ostream* out) { *out << r.title; }

// Instantiated with a table in each file of refused arguments.
class Refusals : public ::testing::TestWithParam<Refusal> {};

inline std::string title(const ::testing::TestParamInfo<Refusal>& test) { return test.param.title; }

}  // namespace attn::testing
