// The expressions of a problem, compiled when it is planned: what plans of the CPU backend keep in
// Plan::state.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "attn/plan.hpp"
#include "core/expr/program.hpp"
#include "core/made_for.hpp"

namespace attn::cpu {

// A load of a score's buffer, for the buffer's gradient.
struct LoadProgram {
  expr::Expr load;
  bool has_factor = false;  // the derivative is not 1
  expr::Program factor;     // derivative of the score with respect to the load
  std::vector<expr::Program> index;
};

// Immutable, so that threads may share it.
class Expressions : public core::MadeFor {
 public:
  // Compiles the expressions of plan.problem for the plan's phase, isa and compute.
  explicit Expressions(const Plan& plan);
  // The expressions in plan.state; null where problem, phase, isa or compute of the plan was
  // changed since they were made.
  static const Expressions* of(const Plan& plan);

  const expr::Program& mask() const { return mask_program_; }
  const expr::Program& score() const { return score_program_; }
  // The derivative of the score expression by the score, for the backward pass; has_derivative() is
  // false where it is 1.
  bool has_derivative() const { return !derivative_program_.instructions.empty(); }
  const expr::Program& derivative() const { return derivative_program_; }
  // Loads of the buffer, which the score reads.
  const std::vector<LoadProgram>& loads(std::string_view buffer) const;

  // Floats that any of them needs to be evaluated.
  std::size_t scratch_floats() const;
  // Instructions of the longest of them.
  std::size_t most_instructions() const;
  // Bytes that binding all of them takes from a Workspace, loads of buffers included.
  std::size_t view_bytes() const;
  // The score's buffers that may have a gradient: their number and elements.
  std::size_t gradient_buffers() const { return buffers_.size(); }
  std::int64_t gradient_elements() const { return gradient_elements_; }

 private:
  struct BufferLoads {
    std::string name;
    std::vector<LoadProgram> loads;
  };

  template <class Visit>
  void for_each_program(const Visit& visit) const;

  expr::Expr mask_, score_;  // what was compiled
  double scale_;
  DType operand_;
  expr::Program mask_program_, score_program_, derivative_program_;
  std::vector<BufferLoads> buffers_;
  std::int64_t gradient_elements_ = 0;
};

}  // namespace attn::cpu
