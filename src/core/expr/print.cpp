// Expressions as readable text; parse.cpp reads it back.
#include <fmt/format.h>

#include <cmath>

#include "core/expr/build.hpp"
#include "core/expr/grammar.hpp"

namespace attn::expr {

int precedence(Op op) noexcept {
  switch (op) {
    case Op::logical_or:
      return 1;
    case Op::logical_and:
      return 2;
    case Op::bit_or:
      return 3;
    case Op::bit_xor:
      return 4;
    case Op::bit_and:
      return 5;
    case Op::eq:
    case Op::ne:
      return 6;
    case Op::lt:
    case Op::le:
      return 7;
    case Op::shift_left:
    case Op::shift_right:
      return 8;
    case Op::add:
    case Op::sub:
      return 9;
    case Op::mul:
    case Op::div:
    case Op::mod:
      return 10;
    case Op::neg:
    case Op::logical_not:
      return kUnaryPrecedence;
    default:
      return kPrimaryPrecedence;
  }
}

namespace {

// The shortest text that reads back as the same float, always with a '.' or an exponent.
std::string float_text(float value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// Not inlined, as the functions below that call each other should take little stack.
[[gnu::noinline]] void print_constant(const Node& node, std::string& text) {
  switch (node.type) {
    case Type::boolean:
      text += node.int_value != 0 ? "true" : "false";
      return;
    case Type::int32:
      text += fmt::format("{}", node.int_value);
      return;
    default:
      text += float_text(node.float_value);
  }
}

// Whether its text begins with a minus.
bool is_negative(const Node& node) {
  if (node.op != Op::constant) return false;
  return node.type == Type::float32
             ? std::signbit(node.float_value) && !std::isnan(node.float_value)
             : node.int_value < 0;
}

// Operand i without the to_float that reading the text puts back: its function converts, or its
// partner is float32 by itself.
const Expr& written_operand(const Node& node, std::size_t i) {
  const Expr& arg = node.args[i];
  if (arg.node().op != Op::to_float) return arg;
  const Expr& inner = arg.node().args[0];
  if (is_transcendental(node.op)) return inner;
  const std::size_t first = node.op == Op::select ? 1 : 0;
  if (!(is_binary(node.op) || node.op == Op::select) || i < first) return arg;
  const std::size_t partner = i == first ? first + 1 : first;
  const bool partner_stays = node.args[partner].node().op != Op::to_float || i > partner;
  return partner_stays ? inner : arg;
}

int precedence_of(const Expr& e) {
  if (is_position(e)) return kPrimaryPrecedence;
  return is_negative(e.node()) ? kUnaryPrecedence : precedence(e.node().op);
}

void print(const Expr& e, std::string& text);

// Prints an operand, in parentheses where it binds less than `least`.
void print_operand(const Expr& e, int least, std::string& text) {
  const bool enclosed = precedence_of(e) < least;
  if (enclosed) text += '(';
  print(e, text);
  if (enclosed) text += ')';
}

void print_list(const Node& node, std::string& text) {
  for (std::size_t i = 0; i < node.args.size(); ++i) {
    if (i > 0) text += ", ";
    print(written_operand(node, i), text);
  }
}

void print(const Expr& e, std::string& text) {
  const Node& node = e.node();
  if (node.op == Op::constant) {
    print_constant(node, text);
  } else if (is_position(e)) {
    text += kPosition;
  } else if (is_symbol(node.op)) {
    text += spelling(node.op);
  } else if (node.op == Op::load) {
    text += node.buffer->name();
    if (is_scalar(*node.buffer)) return;
    text += '[';
    print_list(node, text);
    text += ']';
  } else if (precedence(node.op) == kPrimaryPrecedence) {
    text += spelling(node.op);
    text += '(';
    print_list(node, text);
    text += ')';
  } else if (is_unary(node.op)) {
    text += spelling(node.op);
    print_operand(node.args[0], kUnaryPrecedence, text);
  } else {
    print_operand(written_operand(node, 0), precedence(node.op), text);
    text += ' ';
    text += spelling(node.op);
    text += ' ';
    print_operand(written_operand(node, 1), precedence(node.op) + 1, text);
  }
}

}  // namespace

std::string to_string(const Expr& e) {
  std::string text;
  if (!e.empty()) print(e, text);
  return text;
}

}  // namespace attn::expr
