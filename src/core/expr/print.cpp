// Expressions as readable text (parse.cpp reads it back) and as CUDA C++.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "core/expr/grammar.hpp"

namespace attn::expr {

int precedence(Op op) noexcept {
  switch (op) {
    case Op::logical_or:
      return 1;
    case Op::logical_and:
      return 2;
    case Op::eq:
    case Op::ne:
      return 3;
    case Op::lt:
    case Op::le:
      return 4;
    case Op::add:
    case Op::sub:
      return 5;
    case Op::mul:
    case Op::div:
    case Op::mod:
      return 6;
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

std::string constant_text(const Node& node) {
  switch (node.type) {
    case Type::boolean:
      return node.int_value != 0 ? "true" : "false";
    case Type::int32:
      return fmt::format("{}", node.int_value);
    default:
      return float_text(node.float_value);
  }
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
  const Node& node = e.node();
  const bool negative = node.op == Op::constant && constant_text(node)[0] == '-';
  return negative ? kUnaryPrecedence : precedence(node.op);
}

void print(const Expr& e, std::string& text);

// In parentheses where it binds less than `least`.
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
    text += constant_text(node);
  } else if (is_symbol(node.op)) {
    text += spelling(node.op);
  } else if (node.op == Op::load) {
    text += node.buffer->name();
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

// CUDA C++. Functions named attn_ are the kernel's: integer arithmetic that wraps, division toward
// minus infinity, min and max that treat NaN as evaluate() does, loads that give 0 outside.
std::string cuda_constant(const Node& node) {
  switch (node.type) {
    case Type::boolean:
      return node.int_value != 0 ? "true" : "false";
    case Type::int32:
      // The literal 2147483648 is no int.
      return node.int_value == std::numeric_limits<std::int32_t>::min()
                 ? "(-2147483647 - 1)"
                 : fmt::format("{}", node.int_value);
    default:
      if (std::isnan(node.float_value)) return "__int_as_float(0x7fc00000)";
      if (std::isinf(node.float_value)) {
        return node.float_value > 0 ? "__int_as_float(0x7f800000)" : "__int_as_float(0xff800000)";
      }
      return fmt::format("{:a}f", node.float_value);
  }
}

std::string_view cuda_function(Op op, bool is_float) {
  switch (op) {
    case Op::neg:
      return is_float ? "" : "attn_neg";
    case Op::abs:
      return is_float ? "fabsf" : "attn_abs";
    case Op::exp:
      return "expf";
    case Op::log:
      return "logf";
    case Op::tanh:
      return "tanhf";
    case Op::sqrt:
      return "sqrtf";
    case Op::to_float:
      return "static_cast<float>";
    case Op::add:
      return is_float ? "" : "attn_add";
    case Op::sub:
      return is_float ? "" : "attn_sub";
    case Op::mul:
      return is_float ? "" : "attn_mul";
    case Op::div:
      return is_float ? "" : "attn_floor_div";
    case Op::mod:
      return "attn_floor_mod";
    case Op::min:
      return "attn_min";
    case Op::max:
      return "attn_max";
    default:
      return "";
  }
}

void print_cuda(const Expr& e, std::string& text) {
  const Node& node = e.node();
  if (node.op == Op::constant) {
    text += cuda_constant(node);
    return;
  }
  if (is_symbol(node.op)) {
    text += spelling(node.op);
    return;
  }
  const bool is_float = node.args[0].type() == Type::float32;
  const std::string function = node.op == Op::load ? "attn_load_" + node.buffer->name()
                                                   : std::string(cuda_function(node.op, is_float));
  text += function;
  text += '(';
  if (!function.empty()) {
    for (std::size_t i = 0; i < node.args.size(); ++i) {
      if (i > 0) text += ", ";
      print_cuda(node.args[i], text);
    }
  } else if (is_unary(node.op)) {
    text += spelling(node.op);
    print_cuda(node.args[0], text);
  } else {
    print_cuda(node.args[0], text);
    text += node.op == Op::select ? " ? " : fmt::format(" {} ", spelling(node.op));
    print_cuda(node.args[1], text);
    if (node.op == Op::select) {
      text += " : ";
      print_cuda(node.args[2], text);
    }
  }
  text += ')';
}

}  // namespace
std::string to_string(const Expr& e) {
  std::string text;
  if (!e.empty()) print(e, text);
  return text;
}

std::string to_cuda(const Expr& e) {
  if (e.empty()) {
    throw Error(ErrorCode::invalid_argument, "to_cuda: the expression is empty; one must be given");
  }
  std::string text;
  print_cuda(e, text);
  return text;
}

}  // namespace attn::expr
