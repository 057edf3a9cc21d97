#include "cuda/codegen/expression_factors.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>

#include "core/expr/bounds.hpp"
#include "core/expr/build.hpp"

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

// The polynomials of tanh reach to arguments of 0.385 and 0.5. Scores of random data reach 5 to 6
// (a normal distribution, 10^7 to 10^9 of them), so a larger c would often leave them.
constexpr double kSmallFactor = 1.0 / 16;

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

// What an instruction multiplies its operand of `multiples` by that is a run-time scalar.
ScoreMultiple times_scalar(const Program& program, const Instruction& in,
                           const std::vector<ScoreMultiple>& multiples) {
  if (in.type != Type::float32 || (in.op != Op::mul && in.op != Op::div)) return {};
  for (const int a : {0, 1}) {
    ScoreMultiple multiple = multiples[static_cast<std::size_t>(in.args[a])];
    const Instruction& other = program.instructions[static_cast<std::size_t>(in.args[1 - a])];
    const bool is_scalar = other.op == Op::load && other.num_args == 0;
    if (multiple.factor == 0 || !multiple.scalar.empty() || !is_scalar) continue;
    if (in.op == Op::div && a == 1) continue;  // a scalar over the score
    multiple.scalar = program.buffers[static_cast<std::size_t>(other.buffer)]->name();
    multiple.divides = in.op == Op::div;
    return multiple;
  }
  return {};
}

// The c of instructions that are c * score.
std::vector<ScoreMultiple> multiples_of_score(const Program& program) {
  std::vector<ScoreMultiple> multiples;
  for (const Instruction& in : program.instructions) {
    ScoreMultiple found = times_scalar(program, in, multiples);
    if (in.op == Op::score) found.factor = 1;
    if (const auto multiple = as_multiple(program, in)) {
      found = multiples[multiple->operand];
      found.factor *= multiple->factor;
    }
    multiples.push_back(is_moderate(found.factor) ? found : ScoreMultiple{});
  }
  return multiples;
}

std::int32_t index_of(std::vector<ScoreMultiple>& multiples, const ScoreMultiple& c) {
  const auto known = std::find(multiples.begin(), multiples.end(), c);
  const auto index = static_cast<std::int32_t>(known - multiples.begin());
  if (known == multiples.end()) multiples.push_back(c);
  return index;
}

// Takes a score's exponent apart. A sum of many terms is rounded otherwise than the score is: where
// they cancel, that is wrong for all keys of a row alike. So there are at most two, one of them
// without the score, and the other is the score, a tanh, or a product of one with a value of the
// row, unless it is alone.
class Terms {
 public:
  Terms(const Program& score, const std::vector<ScoreMultiple>& of_score, ScoreFactors& factors)
      : score_(score), of_score_(of_score), factors_(factors) {
    for (const Instruction& in : score.instructions) {
      bool has = in.op == Op::score;
      for (int a = 0; a < in.num_args; ++a) has = has || has_score_[at(in, a)];
      has_score_.push_back(has);
    }
  }

  // Collects the terms of factor times the last instruction: none where the score must be computed
  // as it is.
  void collect(double factor) {
    const std::size_t multiples = factors_.multiples.size();
    if (append(score_.instructions.size() - 1, factor)) {
      // What waits for the product comes last.
      std::stable_partition(factors_.exponent.begin(), factors_.exponent.end(),
                            [](const ExponentTerm& term) { return term.multiple < 0; });
      find_small_tanh();
    } else {
      factors_.exponent.clear();
      factors_.multiples.resize(multiples);
    }
  }

 private:
  static std::size_t at(const Instruction& in, int a) {
    return static_cast<std::size_t>(in.args[a]);
  }
  bool is_of_row(std::size_t i) const {
    const expr::Dependence on = score_.instructions[i].dependence;
    return on == expr::Dependence::uniform || on == expr::Dependence::row;
  }
  bool is_plain(std::size_t i) const {
    return of_score_[i].factor != 0 || score_.instructions[i].op == Op::tanh;
  }

  bool append(std::size_t i, double factor) {
    const Instruction& in = score_.instructions[i];
    const auto index = static_cast<std::int32_t>(i);
    if (of_score_[i].factor != 0) {
      ScoreMultiple multiple = of_score_[i];
      multiple.factor *= factor;
      if (!is_moderate(multiple.factor)) return add({.factor = factor, .value = index}, i);
      return add({.multiple = index_of(factors_.multiples, multiple)}, i);
    }
    if (is_of_row(i)) return add({.factor = factor, .row = index}, i);
    if (const auto multiple = as_multiple(score_, in);
        multiple && is_moderate(factor * multiple->factor)) {
      return append(multiple->operand, factor * multiple->factor);
    }
    if ((in.op == Op::add || in.op == Op::sub) && has_score_[i]) {
      return append(at(in, 0), factor) && append(at(in, 1), in.op == Op::add ? factor : -factor);
    }
    if (in.op == Op::mul && (is_of_row(at(in, 0)) || is_of_row(at(in, 1)))) {
      const int row = is_of_row(at(in, 0)) ? 0 : 1;
      return add({.factor = factor, .row = in.args[row], .value = in.args[1 - row]},
                 at(in, 1 - row));
    }
    return add({.factor = factor, .value = index}, i);
  }
  // main: the instruction that says what kind of term it is.
  bool add(const ExponentTerm& term, std::size_t main) {
    int& count = has_score_[main] ? with_score_ : without_score_;
    all_plain_ = all_plain_ && (is_plain(main) || !has_score_[main]);
    factors_.exponent.push_back(term);
    return ++count == 1 && (all_plain_ || factors_.exponent.size() == 1);
  }

  // The tanh of a small argument that the exponent is made of.
  void find_small_tanh() {
    for (ExponentTerm& term : factors_.exponent) {
      if (term.value < 0) continue;
      const Instruction& in = score_.instructions[static_cast<std::size_t>(term.value)];
      if (in.op != Op::tanh) continue;
      const double c = of_score_[at(in, 0)].factor;
      if (c == 0 || !of_score_[at(in, 0)].scalar.empty() || std::abs(c) > kSmallFactor) continue;
      factors_.small_tanh = term.value;
      if (c > 0 && term.factor > 0 && term.row < 0) term.polynomial = c;
    }
  }

  const Program& score_;
  const std::vector<ScoreMultiple>& of_score_;
  ScoreFactors& factors_;
  std::vector<bool> has_score_;
  int with_score_ = 0, without_score_ = 0;
  bool all_plain_ = true;
};

}  // namespace

bool loads_elements(const Program& score) {
  return std::ranges::any_of(score.instructions, [](const Instruction& in) {
    return in.op == Op::load && in.dependence == expr::Dependence::full;
  });
}
bool loads_elements(const expr::Expr& score) { return loads_elements(compile(score)); }

bool may_hide_keys(const expr::Expr& score) {
  if (score.empty()) return false;
  return std::ranges::any_of(compile(score).instructions, [](const Instruction& in) {
    const bool by_key =
        in.dependence == expr::Dependence::key || in.dependence == expr::Dependence::full;
    return (in.op == Op::load && by_key) || (in.op == Op::constant && std::isinf(in.float_value));
  });
}

bool may_add_far(const Problem& p) {
  const expr::Expr& score = p.score;
  if (score.empty()) return false;
  const ScoreFactors factors = score_factors(score);
  if (factors.multiple[factors.result] >= 0) return false;  // of q.k
  const expr::Expr added = expr::substitute(score, Op::score, expr::float32(0));
  for (const Op varies : {Op::load, Op::batch, Op::seqlen_q, Op::seqlen_k}) {
    if (expr::depends_on(added, varies)) return true;
  }
  const auto last = [](std::int64_t size) {
    return static_cast<std::int32_t>(std::max<std::int64_t>(size - 1, 0));
  };
  const expr::Bounds bounds = expr::bounds_of(
      added,
      {.query_max = last(p.seqlen_q), .key_max = last(p.seqlen_k), .head_max = last(p.heads_q)});
  return bounds.nan || !(std::max(-bounds.flo, bounds.fhi) < 0x1p19F);
}

ScoreFactors score_factors(const expr::Expr& e) {
  ScoreFactors factors;
  if (e.empty()) {
    factors.multiple = {-1};
    return factors;
  }
  const Program score = compile(e);
  const std::size_t count = score.instructions.size();
  const std::vector<ScoreMultiple> of_score = multiples_of_score(score);
  factors.multiple.assign(count, -1);
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
    if (of_score[i].factor != 0) {
      factors.multiple[i] = index_of(factors.multiples, of_score[i]);
      continue;
    }
    const Instruction& in = score.instructions[i];
    for (int a = 0; a < in.num_args; ++a) {
      needed[static_cast<std::size_t>(in.args[a])] = true;
    }
  }

  if (!loads_elements(score)) {
    Terms(score, of_score, factors).collect(std::numbers::log2e);
  }
  return factors;
}

}  // namespace attn::cuda
