#include "verify/rounded_expression.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/expr/scalar.hpp"
#include "verify/square.hpp"

namespace attn::verify {
namespace {

using expr::Op;

// Whether a float result is rounded. Symbols, loads, signs and choices are exact, and so are
// integers up to 2^24.
bool rounds(Op op, double result) {
  switch (op) {
    case Op::exp:
    case Op::exp2:
    case Op::log:
    case Op::tanh:
    case Op::erf:
    case Op::sin:
    case Op::cos:
    case Op::sqrt:
    case Op::add:
    case Op::sub:
    case Op::mul:
    case Op::div:
      return true;
    case Op::to_float:
      return std::abs(result) > 0x1p24;
    default:
      return false;
  }
}

// Derivatives by the first and the second operand; result: of the operation.
struct Partials {
  double a = 0, b = 0;
};
Partials partials(Op op, double a, double b, double result) {
  switch (op) {
    case Op::neg:
      return {.a = -1};
    case Op::abs:
      return {.a = a < 0 ? -1.0 : 1.0};
    case Op::exp:
      return {.a = result};
    case Op::exp2:
      return {.a = std::numbers::ln2 * result};
    case Op::log:
      return {.a = 1 / a};
    case Op::tanh: {
      const double u = std::exp(-2 * std::abs(a));
      return {.a = 4 * u / square(1 + u)};
    }
    case Op::erf:
      return {.a = 2 * std::numbers::inv_sqrtpi * std::exp(-a * a)};
    case Op::sin:
      return {.a = std::cos(a)};
    case Op::cos:
      return {.a = -std::sin(a)};
    case Op::sqrt:
      return {.a = 0.5 / result};
    case Op::add:
      return {.a = 1, .b = 1};
    case Op::sub:
      return {.a = 1, .b = -1};
    case Op::mul:
      return {.a = b, .b = a};
    case Op::div:
      return {.a = 1 / b, .b = -result / b};
    case Op::min:
      return a < b ? Partials{.a = 1} : Partials{.b = 1};
    case Op::max:
      return a > b ? Partials{.a = 1} : Partials{.b = 1};
    default:
      return {};
  }
}

}  // namespace

RoundedExpression::RoundedExpression(const expr::Expr& e) { add(e); }

// The step that computes e.
std::size_t RoundedExpression::add(const expr::Expr& e) {
  const auto known =
      std::ranges::find_if(steps_, [&](const Step& step) { return same(step.e, e); });
  if (known != steps_.end()) return static_cast<std::size_t>(known - steps_.begin());
  Step step{.e = e, .operands = {}};
  // What is in a floor is rounded in every evaluation alike: the result is exact.
  const bool is_exact = e.node().op == Op::floor;
  for (const expr::Expr& arg : e.node().args) {
    if (arg.type() == expr::Type::float32 && !is_exact) step.operands.push_back(add(arg));
  }
  steps_.push_back(std::move(step));
  return steps_.size() - 1;
}

RoundedExpression::Result RoundedExpression::at(const expr::Point& point,
                                                const expr::Bindings& buffers) {
  for (Step& step : steps_) evaluate(step, point, buffers);
  steps_.back().weight = 1;
  Result result{.value = steps_.back().value};
  for (std::size_t i = steps_.size(); i-- > 0;) {
    const Step& step = steps_[i];
    if (step.weight == 0) continue;
    const Op op = step.e.node().op;
    if (op == Op::score) result.slope = step.weight;
    const bool last = i + 1 == steps_.size();
    // A zero is exact, however steep what follows is.
    if (!last && step.value != 0 && rounds(op, step.value)) {
      result.square += square(step.value * step.weight);
    }
    spread(step);
  }
  return result;
}

void RoundedExpression::evaluate(Step& step, const expr::Point& point,
                                 const expr::Bindings& buffers) {
  step.weight = 0;
  const expr::Node& node = step.e.node();
  if (step.operands.empty()) {  // symbols, constants, loads, converted integers and floors
    step.value = expr::evaluate<double>(step.e, point, buffers);
    return;
  }
  const expr::Value<double> a{0, steps_[step.operands.front()].value};
  const expr::Value<double> b{0, steps_[step.operands.back()].value};
  step.condition =
      node.op == Op::select && expr::evaluate<double>(node.args[0], point, buffers) != 0;
  step.value = expr::apply_scalar(node.op, expr::Type::float32, a, b, step.condition).f;
}

// Adds what the operands of a step give to the expression through it.
void RoundedExpression::spread(const Step& step) {
  if (step.operands.empty()) return;
  Step& a = steps_[step.operands.front()];
  Step& b = steps_[step.operands.back()];
  if (step.e.node().op == Op::select) {
    (step.condition ? a : b).weight += step.weight;
    return;
  }
  const Partials d = partials(step.e.node().op, a.value, b.value, step.value);
  if (d.a != 0) a.weight += step.weight * d.a;
  if (d.b != 0) b.weight += step.weight * d.b;
}

}  // namespace attn::verify
