#include "cuda/codegen/expression_values.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "cuda/codegen/divisor.hpp"
#include "cuda/codegen/expression_range.hpp"

namespace attn::cuda {
namespace {

using expr::CudaMath;
using expr::Instruction;
using expr::Op;

// A value longer than this gets a name, as one that is used twice: the text stays readable, and
// its nesting far from what a compiler takes.
constexpr std::size_t kLongestValue = 120;

// The namespace of src/cuda/device/expr whose functions compute so.
std::string_view space_of(CudaMath math) {
  switch (math) {
    case CudaMath::exact:
      return "exact";
    case CudaMath::fast:
      return "fast";
    case CudaMath::slope:
      return "slope";
  }
  throw Error(ErrorCode::internal, "there is no such arithmetic of expressions");
}

// Instructions that operands of floor and to_int are made of.
std::vector<bool> operands_of_jumps(const expr::Program& program) {
  std::vector<bool> found(program.instructions.size());
  for (std::size_t i = found.size(); i-- > 0;) {
    const Instruction& in = program.instructions[i];
    if (!found[i] && !expr::jumps(in.op)) continue;
    for (int a = 0; a < in.num_args; ++a) found[static_cast<std::size_t>(in.args[a])] = true;
  }
  return found;
}

// Whether the function that computes it differs between the namespaces.
bool has_forms(const Instruction& in) {
  return in.operands == expr::Type::float32 &&
         (expr::is_transcendental(in.op) || in.op == Op::add || in.op == Op::sub ||
          in.op == Op::mul || in.op == Op::div);
}

std::string name_of(std::size_t i) { return fmt::format("v{}", i); }

std::string position_text(Op op, std::string_view a, std::string_view b) {
  return fmt::format("attn_position_{}({}, {})", expr::cuda_word(op), a, b);
}

// Of a literal that is not 0, as attn_divides takes them.
std::string multiples_text(std::int32_t value) {
  const Multiples m = multiples_of(magnitude_of(value));
  return fmt::format("Multiples{{{:#x}u, {:#x}u, {}u, {:#x}u}}", m.inverse, m.offset, m.twos,
                     m.most);
}

}  // namespace

std::vector<std::string> operands_of(const Instruction& in,
                                     const std::vector<std::string>& values) {
  std::vector<std::string> operands;
  for (int a = 0; a < in.num_args; ++a) {
    operands.push_back(values[static_cast<std::size_t>(in.args[a])]);
  }
  return operands;
}

ExpressionValues::ExpressionValues(const expr::Program& program, CudaMath math,
                                   const ScoreFactors* factors,
                                   const std::vector<std::size_t>& results, bool is_small,
                                   std::vector<std::string> given)
    : program_(program),
      factors_(factors),
      is_small_(is_small),
      math_(math),
      given_(std::move(given)),
      small_(small_in_short_sequences(program)),
      in_jump_(operands_of_jumps(program)),
      users_(program.instructions.size()),
      named_(program.instructions.size()) {
  for (std::size_t i = 0; i < users_.size(); ++i) linear_.push_back(linear(i));
  for (const std::size_t i : results) users_[i] = 1;
  for (std::size_t i = users_.size(); i-- > 0;) {
    if (users_[i] == 0) continue;
    for (const std::size_t a : read_by(i)) ++users_[a];
    if (const Linear* const x = stepped(i); x != nullptr) {
      for (const std::size_t a : x->named) named_[a] = true;
    }
  }
}

std::string ExpressionValues::statements() {
  std::string text = fmt::format("    using namespace {};\n", space_of(math_));
  for (std::size_t i = 0; i < users_.size(); ++i) {
    const Instruction& in = program_.instructions[i];
    std::string value = users_[i] > 0 ? value_text(i) : std::string();
    const bool steps = factors_ != nullptr && in.op == Op::key && users_[i] > 0;
    if (steps || (!is_leaf(in) && (users_[i] > 1 || named_[i] || value.size() > kLongestValue))) {
      const std::string name = steps ? "key" : name_of(i);
      text += fmt::format("    const {} {} = {};\n", expr::cuda_type(in.type), name, value);
      value = name;
    }
    values_.push_back(std::move(value));
  }
  return text;
}

const Instruction& ExpressionValues::operand(std::size_t i) const {
  return program_.instructions[static_cast<std::size_t>(program_.instructions[i].args[0])];
}

// Instructions whose values the text of this one contains.
std::vector<std::size_t> ExpressionValues::read_by(std::size_t i) const {
  const Instruction& in = program_.instructions[i];
  if (is_given(i) || multiple(i) >= 0) return {};
  if (const Linear* const x = stepped(i); x != nullptr) return x->named;
  if (const Instruction* remainder = compared_remainder(i); remainder != nullptr) {
    return {static_cast<std::size_t>(remainder->args[0])};
  }
  return {in.args, in.args + in.num_args};
}

// Sums and differences of positions, lengths and what all keys of a row share, as a `select` by
// the query, where they are small. The range of the key holds key_first too, so `text` is as small.
ExpressionValues::Linear ExpressionValues::linear(std::size_t i) const {
  const Instruction& in = program_.instructions[i];
  if (factors_ == nullptr || !small_[i]) return {};
  if (in.op == Op::key) return {"key_first", 1};
  if (is_leaf(in)) return {expr::cuda_value(program_, in, {}, math_), 0};
  if (in.op == Op::add || in.op == Op::sub) {
    const Linear& a = linear_[static_cast<std::size_t>(in.args[0])];
    const Linear& b = linear_[static_cast<std::size_t>(in.args[1])];
    if (a.text.empty() || b.text.empty()) return {};
    Linear sum{position_text(in.op, a.text, b.text),
               in.op == Op::add ? a.coefficient + b.coefficient : a.coefficient - b.coefficient,
               a.named};
    sum.named.insert(sum.named.end(), b.named.begin(), b.named.end());
    return sum.text.size() > kLongestValue ? Linear{} : sum;
  }
  const bool of_row =
      in.dependence == expr::Dependence::uniform || in.dependence == expr::Dependence::row;
  return of_row ? Linear{name_of(i), 0, {i}} : Linear{};
}

// The conversion of a linear int32, or of its absolute value, that the step is in: integers of
// 22 bits are exact as float32, so the step is added there. For the scores of a row that are
// steps apart that is one addition of a constant each. Null: i is no such conversion.
const ExpressionValues::Linear* ExpressionValues::stepped(std::size_t i) const {
  if (program_.instructions[i].op != Op::to_float) return nullptr;
  const auto converted = static_cast<std::size_t>(program_.instructions[i].args[0]);
  const bool is_abs = operand(i).op == Op::abs && small_[converted];
  const Linear& x = linear_[is_abs ? static_cast<std::size_t>(operand(i).args[0]) : converted];
  return x.coefficient == 0 ? nullptr : &x;
}

std::string ExpressionValues::stepped_text(std::size_t i) const {
  const Linear* const x = stepped(i);
  if (x == nullptr) return {};
  const std::string value =
      fmt::format("attn_position_to_float({}, {} * step)", x->text, x->coefficient);
  return operand(i).op == Op::abs ? fmt::format("attn_abs({})", value) : value;
}

// The remainder of an int32 by a scalar or a literal that i compares with 0, which takes no
// division; else null. One by a power of two is printed as `&`, and 0 has no inverse.
const Instruction* ExpressionValues::compared_remainder(std::size_t i) const {
  const Instruction& in = program_.instructions[i];
  if ((in.op != Op::eq && in.op != Op::ne) || in.operands != expr::Type::int32) return nullptr;
  const auto argument = [&](const Instruction& of, int a) -> const Instruction& {
    return program_.instructions[static_cast<std::size_t>(of.args[a])];
  };
  for (const int a : {0, 1}) {
    const Instruction &remainder = argument(in, a), &zero = argument(in, 1 - a);
    if (zero.op != Op::constant || zero.int_value != 0 || remainder.op != Op::mod) continue;
    const Instruction& divisor = argument(remainder, 1);
    const bool is_scalar = divisor.op == Op::load && divisor.num_args == 0;
    if (is_scalar ||
        (divisor.op == Op::constant && divisor.int_value != 0 && !expr::is_power_of_two(divisor))) {
      return &remainder;
    }
  }
  return nullptr;
}

// What instruction i computes, as cuda_value writes it, with the names of the struct.
std::string ExpressionValues::value_text(std::size_t i) const {
  const Instruction& in = program_.instructions[i];
  if (is_given(i)) return given_[i];
  if (multiple(i) >= 0) return fmt::format("attn_mul(dot, multiple_{})", multiple(i));
  if (in.op == Op::score) return "dot";
  if (factors_ != nullptr && in.op == Op::key) return "key_first + step";
  if (std::string value = stepped_text(i); !value.empty()) return value;
  const std::vector<std::string> operands = operands_of(in, values_);
  if (const Instruction* remainder = compared_remainder(i); remainder != nullptr) {
    const Instruction& divisor =
        program_.instructions[static_cast<std::size_t>(remainder->args[1])];
    return fmt::format("({}attn_divides({}, {}))", in.op == Op::eq ? "" : "!",
                       divisor.op == Op::load ? expr::scalar_name(program_, divisor) + ".multiples"
                                              : multiples_text(divisor.int_value),
                       values_[static_cast<std::size_t>(remainder->args[0])]);
  }
  if ((in.op == Op::add || in.op == Op::sub) && small_[i]) {
    return position_text(in.op, operands[0], operands[1]);
  }
  if (in.op == Op::to_float && small_[static_cast<std::size_t>(in.args[0])]) {
    return fmt::format("attn_position_to_float({})", operands[0]);
  }
  if (is_shared(in)) {
    return fmt::format("attn_share_{}({})",
                       program_.buffers[static_cast<std::size_t>(in.buffer)]->name(),
                       fmt::join(operands, ", "));
  }
  if (is_small_ && factors_->small_tanh == static_cast<std::int32_t>(i)) {
    return fmt::format("attn_small_tanh({}, room)", operands[0]);
  }
  if (in_jump_[i] && math_ != CudaMath::exact && has_forms(in)) {
    return "exact::" + expr::cuda_value(program_, in, operands, CudaMath::exact);
  }
  return expr::cuda_value(program_, in, operands, math_);
}

}  // namespace attn::cuda
