#include "core/expr/build.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "attn/error.hpp"
#include "core/expr/scalar.hpp"
#include "core/expr/simplify.hpp"
#include "core/text/echo.hpp"

namespace attn::expr {
namespace {

// Indexed by Op.
constexpr std::array<std::string_view, 42> kSpelling = {
    "",    "score", "query",    "key",   "batch",  "head",  "seqlen_q", "seqlen_k", "",
    "-",   "!",     "abs",      "exp",   "exp2",   "log",   "tanh",     "erf",      "sin",
    "cos", "sqrt",  "to_float", "floor", "to_int", "+",     "-",        "*",        "/",
    "%",   "&",     "|",        "^",     "<<",     ">>",    "min",      "max",      "<",
    "<=",  "==",    "!=",       "&&",    "||",     "select"};
static_assert(kSpelling.size() == static_cast<std::size_t>(Op::select) + 1);

Expr finish(Node node) {
  node.reads = node.op == Op::load;
  for (const Expr& arg : node.args) {
    node.depth = std::max(node.depth, arg.node().depth + 1);
    node.size += arg.node().size;  // at most 4 args of at most kMaxSize each
    node.reads = node.reads || arg.node().reads;
  }
  if (node.depth > kMaxDepth || node.size > kMaxSize) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("expression of {} levels and {} nodes: at most {} levels and {} nodes "
                            "are accepted",
                            node.depth, node.size, kMaxDepth, kMaxSize));
  }
  return Expr(std::make_shared<const Node>(std::move(node)));
}

std::string quoted(const Expr& e) {
  return fmt::format("'{}' ({})", core::echo(to_string(e)), name(e.type()));
}

[[noreturn]] void refuse(Op op, std::span<const Expr> args, std::string_view accepted) {
  std::string operands;
  for (const Expr& arg : args) {
    if (!operands.empty()) operands += &arg == &args.back() ? " and " : ", ";
    operands += quoted(arg);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("expression '{}' of {}: accepts {}", spelling(op), operands, accepted));
}

Expr as_float(const Expr& e) {
  if (e.type() == Type::float32) return e;
  return make(Op::to_float, std::array{e});
}

// Converts the int32 one of a mixed pair.
void promote(Expr& a, Expr& b) {
  if (a.type() == b.type()) return;
  a = as_float(a);
  b = as_float(b);
}

bool any_is(std::span<const Expr> args, Type type) {
  return std::any_of(args.begin(), args.end(), [&](const Expr& e) { return e.type() == type; });
}
bool all_are(std::span<const Expr> args, Type type) {
  return std::all_of(args.begin(), args.end(), [&](const Expr& e) { return e.type() == type; });
}

// Checks and converts the operands; returns the type of the result.
Type fit(Op op, std::vector<Expr>& args) {
  switch (op) {
    case Op::logical_not:
    case Op::logical_and:
    case Op::logical_or:
      if (!all_are(args, Type::boolean)) refuse(op, args, "boolean");
      return Type::boolean;
    case Op::mod:
    case Op::bit_and:
    case Op::bit_or:
    case Op::bit_xor:
    case Op::shift_left:
    case Op::shift_right:
      if (!all_are(args, Type::int32)) refuse(op, args, "int32");
      return Type::int32;
    case Op::eq:
    case Op::ne:
      if (all_are(args, Type::boolean)) return Type::boolean;
      if (any_is(args, Type::boolean)) refuse(op, args, "two numbers or two booleans");
      promote(args[0], args[1]);
      return Type::boolean;
    case Op::select:
      if (args[0].type() != Type::boolean ||
          (args[1].type() == Type::boolean) != (args[2].type() == Type::boolean)) {
        refuse(op, args, "a boolean condition, then two numbers or two booleans");
      }
      promote(args[1], args[2]);
      return args[1].type();
    default:
      break;
  }
  if (any_is(args, Type::boolean)) refuse(op, args, "int32 and float32");
  if (jumps(op) && args[0].type() == Type::float32 && depends_on(args[0], Op::score)) {
    refuse(op, args,
           "what does not depend on score, which each kernel rounds in its own way: one next to an "
           "integer would become either of its neighbours");
  }
  if (is_transcendental(op) || op == Op::floor) args[0] = as_float(args[0]);
  if (is_binary(op)) promote(args[0], args[1]);
  if (op == Op::lt || op == Op::le) return Type::boolean;
  if (op == Op::to_int) return Type::int32;
  return op == Op::to_float ? Type::float32 : args[0].type();
}

Value<float> value(const Expr& e) { return {e.node().int_value, e.node().float_value}; }

Expr fold(Op op, Type type, const std::vector<Expr>& args) {
  const bool chooses = op == Op::select;
  const Expr& a = chooses ? args[1] : args[0];
  const Expr& b = args.back();
  const Value<float> result = apply_scalar<float>(op, a.type(), value(a), value(b),
                                                  chooses && args[0].node().int_value != 0);
  return constant(type, result.i, result.f);
}

}  // namespace

std::string_view spelling(Op op) noexcept { return kSpelling[static_cast<std::size_t>(op)]; }

std::string_view name(Type type) noexcept {
  switch (type) {
    case Type::boolean:
      return "boolean";
    case Type::int32:
      return "int32";
    default:
      return "float32";
  }
}

Expr constant(Type type, std::int32_t int_value, float float_value) {
  Node node;
  node.type = type;
  if (type == Type::float32) {
    node.float_value = float_value;
  } else {
    node.int_value = int_value;
  }
  return finish(std::move(node));
}

bool is_position(const Expr& e) noexcept {
  const auto is = [](const Expr& part, Op op) { return part.node().op == op; };
  if (!is(e, Op::add)) return false;
  const std::vector<Expr>& sum = e.node().args;
  if (!is(sum[0], Op::query) || !is(sum[1], Op::sub)) return false;
  const std::vector<Expr>& difference = sum[1].node().args;
  return is(difference[0], Op::seqlen_k) && is(difference[1], Op::seqlen_q);
}

bool is_number(const Expr& e, int value) noexcept {
  const Node& node = e.node();
  if (node.op != Op::constant || node.type == Type::boolean) return false;
  return node.type == Type::int32 ? node.int_value == value
                                  : node.float_value == static_cast<float>(value);
}

bool is_boolean(const Expr& e, bool value) noexcept {
  const Node& node = e.node();
  return node.op == Op::constant && node.type == Type::boolean && (node.int_value != 0) == value;
}

Expr make(Op op, std::span<const Expr> operands) {
  std::vector<Expr> args(operands.begin(), operands.end());
  for (const Expr& arg : args) {
    if (arg.empty()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("expression '{}': an operand is an empty Expr; every operand must be "
                              "given",
                              spelling(op)));
    }
  }
  const Type type = fit(op, args);
  if ((op == Op::to_float || op == Op::to_int) && args[0].type() == type) return args[0];
  if (std::all_of(args.begin(), args.end(), is_constant)) return fold(op, type, args);
  if (Expr simpler = simplify(op, type, args); !simpler.empty()) return simpler;
  Node node;
  node.op = op;
  node.type = type;
  node.args = std::move(args);
  return finish(std::move(node));
}

Expr load(const std::shared_ptr<const Buffer>& buffer, const std::vector<Expr>& indices) {
  const Tensor& tensor = buffer->tensor();
  if (indices.size() != static_cast<std::size_t>(tensor.rank)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("expression buffer '{}': {} indices given, its rank is {}",
                            buffer->name(), indices.size(), tensor.rank));
  }
  for (const Expr& index : indices) {
    if (index.empty() || index.type() != Type::int32) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("expression buffer '{}': index {} given, indices must be int32",
                              buffer->name(), index.empty() ? "(empty)" : quoted(index)));
    }
  }
  Node node;
  node.op = Op::load;
  node.type = is_floating(tensor.dtype) ? Type::float32 : Type::int32;
  node.args = indices;
  node.buffer = buffer;
  return finish(std::move(node));
}

Expr rebuild(const Expr& e, const std::vector<Expr>& args) {
  const Node& node = e.node();
  if (std::equal(args.begin(), args.end(), node.args.begin(),
                 [](const Expr& a, const Expr& b) { return a.get() == b.get(); })) {
    return e;
  }
  return node.op == Op::load ? load(node.buffer, args) : make(node.op, args);
}

}  // namespace attn::expr
