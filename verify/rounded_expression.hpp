// How far the roundings of its operations move the value of an expression.
#pragma once

#include <cstddef>
#include <vector>

#include "attn/expr.hpp"

namespace attn::verify {

// A float32 expression that is evaluated in double, and differentiated by the results of all its
// operations in a sweep back. Not thread-safe: both sweeps write to its memory.
class RoundedExpression {
 public:
  explicit RoundedExpression(const expr::Expr& e);

  struct Result {
    double value = 0;
    double slope = 0;  // by the score
    // The sum of (result of an operation times derivative of the value by it)^2 over all operations
    // that round but the last: what they may move the value by, in units of a rounding. Example:
    // x - 0.01 * x * x with x = score + bias is 9 at score 8 and bias 2, and x = 10 enters with
    // 1 - 0.02 * x = 0.8, 0.01 * x = 0.1 with -x and 0.01 * x * x = 1 with -1: 64 + 1 + 1.
    double square = 0;
  };
  Result at(const expr::Point& point, const expr::Bindings& buffers);

 private:
  // A distinct float value.
  struct Step {
    expr::Expr e;
    std::vector<std::size_t> operands;  // steps before this one: those of e that are float
    double value = 0;
    double weight = 0;       // derivative of the expression by it
    bool condition = false;  // of select
  };

  std::size_t add(const expr::Expr& e);
  void evaluate(Step& step, const expr::Point& point, const expr::Bindings& buffers);
  void spread(const Step& step);

  std::vector<Step> steps_;  // the expression itself is the last
};

}  // namespace attn::verify
