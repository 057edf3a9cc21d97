// A problem as numbers, for those who keep what they made for one and meet another.
#pragma once

#include <array>
#include <cstdint>

#include "attn/problem.hpp"

namespace attn::core {

// Every field of a problem that a plan depends on, but for its expressions: seed and offset of
// dropout are not among them. Problems with equal numbers and expressions have equal plans.
using ProblemNumbers = std::array<std::uint64_t, 13>;
ProblemNumbers numbers_of(const Problem& problem) noexcept;

}  // namespace attn::core
