#include "cuda/jit/expression_factors.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

namespace attn::cuda {
namespace {

using expr::Instruction;
using expr::Op;
using expr::Program;
using expr::Type;

// Products of constants within these bounds, and those by a softmax_scale, stay far from both ends
// of float32.
constexpr double kLargest = 0x1p60;
bool is_moderate(double factor) {
  return std::abs(factor) <= kLargest && std::abs(factor) >= 1 / kLargest;
}

// The polynomials of tanh reach to arguments of 0.42 and 0.5. Scores of random data reach 5 to 6
// (a normal distribution, 10^7 to 10^9 of them), so a larger c would often leave them.
constexpr double kSmall = 1.0 / 16;

// A float instruction that is one of its operands times a constant.
struct Multiple {
  std::size_t operand;
  double factor;
};
std::optional<Multiple> as_multiple(const Program& program, const Instruction& in) {
  if (in.type != Type::float32) return std::nullopt;
  const auto at = [&](int a) { return static_cast<std::size_t>(in.args[a]); };
  const auto constant = [&](int a) -> std::optional<double> {
    const Instruction& operand = program.instructions[at(a)];
    if (operand.op != Op::constant || !is_moderate(operand.float_value)) return std::nullopt;
    return operand.float_value;
  };
  switch (in.op) {
    case Op::neg:
      return Multiple{at(0), -1};
    case Op::mul:
      if (const auto c = constant(0)) return Multiple{at(1), *c};
      if (const auto c = constant(1)) return Multiple{at(0), *c};
      return std::nullopt;
    case Op::div:
      if (const auto c = constant(1)) return Multiple{at(0), 1 / *c};
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

// The c of instructions that are c * score; 0 for all else.
std::vector<double> multiples_of_score(const Program& program) {
  std::vector<double> factors;
  for (const Instruction& in : program.instructions) {
    double factor = in.op == Op::score ? 1 : 0;
    if (const auto multiple = as_multiple(program, in)) {
      factor = factors[multiple->operand] * multiple->factor;
    }
    factors.push_back(is_moderate(factor) ? factor : 0);
  }
  return factors;
}

}  // namespace

ScoreFactors score_factors(const expr::Expr& e) {
  ScoreFactors factors;
  if (e.empty()) {
    factors.multiple = {-1};
    factors.small_tanh = {false};
    return factors;
  }
  const Program score = compile(e);
  const std::size_t count = score.instructions.size();
  const std::vector<double> of_score = multiples_of_score(score);
  factors.multiple.assign(count, -1);
  factors.small_tanh.assign(count, false);
  std::vector<bool> needed(count, false);

  factors.result = count - 1;
  double after = 1;
  while (const auto multiple = as_multiple(score, score.instructions[factors.result])) {
    if (multiple->factor < 0 || !is_moderate(after * multiple->factor)) break;
    after *= multiple->factor;
    factors.result = multiple->operand;
  }
  factors.after = static_cast<float>(after);

  needed[factors.result] = true;
  for (std::size_t i = factors.result + 1; i-- > 0;) {
    if (!needed[i]) continue;
    if (of_score[i] != 0) {
      const auto known = std::find(factors.multiples.begin(), factors.multiples.end(), of_score[i]);
      factors.multiple[i] = static_cast<std::int32_t>(known - factors.multiples.begin());
      if (known == factors.multiples.end()) factors.multiples.push_back(of_score[i]);
      continue;
    }
    const Instruction& in = score.instructions[i];
    if (in.op == Op::tanh) {
      const double c = std::abs(of_score[static_cast<std::size_t>(in.args[0])]);
      factors.small_tanh[i] = c > 0 && c <= kSmall;
      factors.has_small_tanh = factors.has_small_tanh || factors.small_tanh[i];
    }
    for (int a = 0; a < in.num_args; ++a) {
      needed[static_cast<std::size_t>(in.args[a])] = true;
    }
  }
  if (factors.small_tanh[factors.result]) {
    const auto argument = static_cast<std::size_t>(score.instructions[factors.result].args[0]);
    if (of_score[argument] > 0) factors.small_result = factors.multiple[argument];
  }
  return factors;
}

}  // namespace attn::cuda
