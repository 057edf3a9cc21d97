#include "core/expr/simplify.hpp"

#include <algorithm>
#include <array>

namespace attn::expr {
namespace {

Op operation(const Expr& e) { return e.node().op; }
const Expr& operand(const Expr& e) { return e.node().args[0]; }

Expr simplify_not(const Expr& a) {
  const std::vector<Expr>& args = a.node().args;
  switch (operation(a)) {
    case Op::logical_not:
      return args[0];
    case Op::eq:
      return make(Op::ne, args);
    case Op::ne:
      return make(Op::eq, args);
    case Op::lt:  // not of floats: a NaN makes both a < b and b <= a false
      if (args[0].type() == Type::int32) return make(Op::le, std::array{args[1], args[0]});
      return {};
    case Op::le:
      if (args[0].type() == Type::int32) return make(Op::lt, std::array{args[1], args[0]});
      return {};
    default:
      return {};
  }
}

Expr simplify_unary(Op op, const Expr& a) {
  switch (op) {
    case Op::neg:
      return operation(a) == Op::neg ? operand(a) : Expr();
    case Op::abs:
      if (operation(a) == Op::abs) return a;
      return operation(a) == Op::neg ? make(Op::abs, std::array{operand(a)}) : Expr();
    case Op::logical_not:
      return simplify_not(a);
    case Op::floor:
      return operation(a) == Op::floor || operation(a) == Op::to_float ? a : Expr();
    default:
      return {};
  }
}

Expr simplify_mul(Type type, const Expr& a, const Expr& b) {
  if (is_number(a, 1)) return b;
  if (is_number(b, 1)) return a;
  if (type == Type::int32 && (is_number(a, 0) || is_number(b, 0))) return int32(0);
  return {};
}

Expr simplify_binary(Op op, Type type, const Expr& a, const Expr& b) {
  const bool same_operands = a.get() == b.get();
  switch (op) {
    case Op::add:
      if (is_number(a, 0)) return b;
      return is_number(b, 0) ? a : Expr();
    case Op::sub:
      if (is_number(b, 0)) return a;
      return is_number(a, 0) ? make(Op::neg, std::array{b}) : Expr();
    case Op::mul:
      return simplify_mul(type, a, b);
    case Op::div:
      return is_number(b, 1) ? a : Expr();
    case Op::mod:
      return is_number(b, 1) ? int32(0) : Expr();
    case Op::bit_and:
      if (is_number(a, 0) || is_number(b, 0)) return int32(0);
      if (is_number(a, -1)) return b;
      return is_number(b, -1) || same_operands ? a : Expr();
    case Op::bit_or:
      if (is_number(a, 0) || same_operands) return b;
      return is_number(b, 0) ? a : Expr();
    case Op::bit_xor:
      if (is_number(a, 0)) return b;
      return is_number(b, 0) ? a : Expr();
    case Op::shift_left:
    case Op::shift_right:
      return is_number(b, 0) ? a : Expr();
    case Op::min:
    case Op::max:
      return same_operands ? a : Expr();
    case Op::logical_and:
      if (is_boolean(a, false) || is_boolean(b, true) || same_operands) return a;
      return is_boolean(a, true) || is_boolean(b, false) ? b : Expr();
    case Op::logical_or:
      if (is_boolean(a, true) || is_boolean(b, false) || same_operands) return a;
      return is_boolean(a, false) || is_boolean(b, true) ? b : Expr();
    default:
      return {};
  }
}

Expr simplify_select(const Expr& condition, const Expr& if_true, const Expr& if_false) {
  if (is_constant(condition)) return is_boolean(condition, true) ? if_true : if_false;
  if (if_true.get() == if_false.get()) return if_true;
  if (operation(condition) == Op::logical_not) {
    return make(Op::select, std::array{operand(condition), if_false, if_true});
  }
  return {};
}

Expr simplify_any(Op op, Type type, const std::vector<Expr>& args) {
  if (is_unary(op)) return simplify_unary(op, args[0]);
  if (is_binary(op)) return simplify_binary(op, type, args[0], args[1]);
  return simplify_select(args[0], args[1], args[2]);
}

}  // namespace

Expr simplify(Op op, Type type, const std::vector<Expr>& args) {
  Expr simpler = simplify_any(op, type, args);
  // What became one of the operands, or a constant, has dropped the others. Who names a buffer in
  // one of those binds it, and is not told that nothing has that name.
  const bool is_operand =
      std::ranges::any_of(args, [&](const Expr& arg) { return arg.get() == simpler.get(); });
  if (simpler.empty() || !(is_operand || is_constant(simpler))) return simpler;
  const bool drops = std::ranges::any_of(
      args, [&](const Expr& arg) { return arg.get() != simpler.get() && arg.node().reads; });
  return drops ? Expr() : simpler;
}

}  // namespace attn::expr
