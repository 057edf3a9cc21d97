// Constants that multiply the score, taken out of a score expression's program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/problem.hpp"
#include "core/expr/program.hpp"

namespace attn::cuda {

// A term of a score's exponent, log2(e) times the score: one FMA. It is q.k times a number, or the
// product of what there is of factor, row and value.
struct ExponentTerm {
  double factor = 1;           // of row, or of value without row
  std::int32_t multiple = -1;  // of ScoreFactors::multiples: that times q.k
  std::int32_t row = -1;       // an instruction whose value a row's scores share
  std::int32_t value = -1;     // any instruction
  // Above 0: value is tanh(c * score) with this c and factor is above 0: a polynomial of q.k whose
  // coefficients hold all constants.
  double polynomial = 0;
};

// What q.k is multiplied by: softmax_scale and factor, and a run-time scalar or its reciprocal.
struct ScoreMultiple {
  double factor = 0;     // 0: no multiple of q.k
  std::string scalar;    // its name; empty: none
  bool divides = false;  // by the scalar
  bool operator==(const ScoreMultiple&) const = default;
};

// Before: the score is softmax_scale * q.k, and instructions that only multiply it by constants and
// a run-time scalar (a product, a quotient, a negation) yield c * softmax_scale * q.k. Device code
// is given q.k and one packed number for each c in use, so that each such value is one product.
// After: a result that is a value times a constant above 0 leaves the constant to the exponential,
// which multiplies by log2(e) anyway. (Above 0, because the largest score is looked for before.)
// Exponent: with log2(e) in the numbers of q.k and in what a row's scores share, for scores of at
// most two terms that load no element each; empty for others.
struct ScoreFactors {
  std::vector<ScoreMultiple> multiples;  // the c, each once
  // Each instruction has the number here of the one of `multiples` that it is; -1: it is none of
  // them, or only others of them are made of it.
  std::vector<std::int32_t> multiple;
  std::size_t result = 0;              // the instruction that device code returns
  float after = 1;                     // what that must be multiplied by
  std::vector<ExponentTerm> exponent;  // those with `multiple`, if any, come last
  // The instruction in the exponent that is the tanh of c * score, |c| at most 1 / 16, for which it
  // may take a polynomial; -1: none.
  std::int32_t small_tanh = -1;
};

// Something is loaded for each score.
bool loads_elements(const expr::Program& score);
bool loads_elements(const expr::Expr& score);  // not empty
// The score may be -inf for some keys of a row and not for others, by a constant of it or by what a
// buffer holds for a key. (Any arithmetic can overflow; that is not meant.)
bool may_hide_keys(const expr::Expr& score);
// The score of a problem with all sizes adds something to q.k that may be as large as 2^19, as a
// constant or an element of a buffer is, so that LSE of a row of such scores is far from 0.
bool may_add_far(const Problem& problem);

// The factors of compile(score); where `score` is empty, of the score itself, with nothing taken
// out.
ScoreFactors score_factors(const expr::Expr& score);

}  // namespace attn::cuda
