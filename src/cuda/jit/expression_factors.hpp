// Constants that multiply the score, taken out of a score expression's program.
#pragma once

#include <cstdint>
#include <vector>

#include "core/expr/program.hpp"

namespace attn::cuda {

// Before: the score is softmax_scale * q.k, and instructions that only multiply it by constants (a
// product, a quotient, a negation) yield c * softmax_scale * q.k. Device code is given q.k and one
// packed number for each c in use, so that each such value is one product.
// After: a result that is a value times a constant above 0 leaves the constant to the exponential,
// which multiplies by log2(e) anyway. (Above 0, because the largest score is looked for before.)
struct ScoreFactors {
  std::vector<double> multiples;  // the c, each once
  // For each instruction: which of `multiples` it is; -1: none, or only others are made of it.
  std::vector<std::int32_t> multiple;
  std::size_t result = 0;  // the instruction that device code returns
  float after = 1;         // what that must be multiplied by
  // For each instruction: it is the tanh of c * score, |c| at most 1 / 16, in use.
  std::vector<bool> small_tanh;
  bool has_small_tanh = false;
  // Which of `multiples` the result is such a tanh of; -1: it is none, or c is below 0.
  std::int32_t small_result = -1;
};

// Of compile(score); of the score itself, with nothing taken out, where `score` is empty.
ScoreFactors score_factors(const expr::Expr& score);

}  // namespace attn::cuda
