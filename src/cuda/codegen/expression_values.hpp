// Values of a mask's or score's program as device code: what the functions of `struct Expressions`
// (expression_text.hpp) are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/expr/cuda_text.hpp"
#include "cuda/codegen/expression_factors.hpp"

namespace attn::cuda {

inline bool is_leaf(const expr::Instruction& in) { return in.num_args == 0; }
// A load that many scores share.
inline bool is_shared(const expr::Instruction& in) {
  return in.op == expr::Op::load && !is_leaf(in) && in.dependence != expr::Dependence::full;
}
// The operands of an instruction, from the texts of all instructions.
std::vector<std::string> operands_of(const expr::Instruction& in,
                                     const std::vector<std::string>& values);

// Prints what `results`, instructions of a program, are made of. Both references must outlive it.
class ExpressionValues {
 public:
  // factors: of a score's program, null for others. is_small: with a polynomial for
  // factors->small_tanh. given: texts of instructions whose values are there already, empty for
  // others; no text at all where none is.
  ExpressionValues(const expr::Program& program, expr::CudaMath math, const ScoreFactors* factors,
                   const std::vector<std::size_t>& results, bool is_small = false,
                   std::vector<std::string> given = {});

  // Statements that name what value() refers to; they are asked for once.
  std::string statements();
  // The text of instruction i; statements() must have been called.
  const std::string& value(std::size_t i) const { return values_[i]; }

 private:
  // The int32 `text` + coefficient * step, where a score's key is key_first + step.
  struct Linear {
    std::string text;  // empty: not of this form
    int coefficient = 0;
    std::vector<std::size_t> named = {};  // instructions whose names the text has
  };

  bool is_given(std::size_t i) const { return !given_.empty() && !given_[i].empty(); }
  int multiple(std::size_t i) const { return factors_ != nullptr ? factors_->multiple[i] : -1; }
  const expr::Instruction& operand(std::size_t i) const;
  std::vector<std::size_t> read_by(std::size_t i) const;
  const Linear* stepped(std::size_t i) const;
  Linear linear(std::size_t i) const;
  std::string stepped_text(std::size_t i) const;
  const expr::Instruction* compared_remainder(std::size_t i) const;
  std::string value_text(std::size_t i) const;

  const expr::Program& program_;
  const ScoreFactors* factors_;
  bool is_small_;
  expr::CudaMath math_;
  std::vector<std::string> given_;
  std::vector<bool> small_;
  std::vector<bool> in_jump_;  // stands in the operand of floor or to_int
  std::vector<int> users_;     // 0: its value is not needed
  std::vector<bool> named_;    // has a name, whoever uses it
  std::vector<Linear> linear_;
  std::vector<std::string> values_;
};

}  // namespace attn::cuda
