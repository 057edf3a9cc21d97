#include "core/expr/cuda_text.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "attn/error.hpp"
#include "core/expr/build.hpp"

namespace attn::expr {
namespace {

std::string call(std::string_view function, std::span<const std::string> operands) {
  std::string text(function);
  text += '(';
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (i > 0) text += ", ";
    text += operands[i];
  }
  text += ')';
  return text;
}

// Division toward minus infinity by a power of two is a shift, its remainder a mask. A scalar
// divides as a whole, with what the host knows of its value.
std::string divide_int(Op op, const Program& program, const Instruction& divisor,
                       std::span<const std::string> operands) {
  if (!is_power_of_two(divisor)) {
    const bool is_scalar = divisor.op == Op::load && divisor.num_args == 0;
    return fmt::format("{}({}, {})", op == Op::div ? "attn_floor_div" : "attn_floor_mod",
                       operands[0], is_scalar ? scalar_name(program, divisor) : operands[1]);
  }
  const auto value = static_cast<std::uint32_t>(divisor.int_value);
  return op == Op::div ? fmt::format("({} >> {})", operands[0], std::countr_zero(value))
                       : fmt::format("({} & {})", operands[0], value - 1);
}

std::string cuda_float_text(float value) {
  if (std::isnan(value)) return "attn_bits(0x7fc00000)";
  if (std::isinf(value)) return value > 0 ? "attn_bits(0x7f800000)" : "attn_bits(0xff800000)";
  return fmt::format("{:a}f", value);
}

// A constant whose reciprocal is a normal number.
bool has_reciprocal(const Instruction& in) {
  return in.op == Op::constant && std::isnormal(in.float_value) &&
         std::isnormal(1 / in.float_value);
}

std::string divide_float(const Instruction& divisor, std::span<const std::string> operands,
                         CudaMath math) {
  if (math == CudaMath::exact || !has_reciprocal(divisor)) return call("attn_div", operands);
  return fmt::format("attn_mul({}, {})", operands[0], cuda_float_text(1 / divisor.float_value));
}

}  // namespace

bool is_power_of_two(const Instruction& in) noexcept {
  return in.op == Op::constant && in.type == Type::int32 && in.int_value > 0 &&
         std::has_single_bit(static_cast<std::uint32_t>(in.int_value));
}

std::string scalar_name(const Program& program, const Instruction& in) {
  return "scalar_" + program.buffers[static_cast<std::size_t>(in.buffer)]->name();
}

std::string_view cuda_type(Type type) noexcept {
  switch (type) {
    case Type::boolean:
      return "bool";
    case Type::int32:
      return "int";
    default:
      return "float";
  }
}

std::string_view cuda_word(Op op) noexcept {
  switch (op) {
    case Op::neg:
      return "neg";
    case Op::logical_not:
      return "not";
    case Op::add:
      return "add";
    case Op::sub:
      return "sub";
    case Op::mul:
      return "mul";
    case Op::div:
      return "div";
    case Op::mod:
      return "mod";
    case Op::bit_and:
      return "bit_and";
    case Op::bit_or:
      return "bit_or";
    case Op::bit_xor:
      return "bit_xor";
    case Op::shift_left:
      return "shift_left";
    case Op::shift_right:
      return "shift_right";
    case Op::lt:
      return "lt";
    case Op::le:
      return "le";
    case Op::eq:
      return "eq";
    case Op::ne:
      return "ne";
    case Op::logical_and:
      return "and";
    case Op::logical_or:
      return "or";
    default:
      return spelling(op);
  }
}

std::string cuda_constant(const Instruction& constant) {
  switch (constant.type) {
    case Type::boolean:
      return constant.int_value != 0 ? "true" : "false";
    case Type::int32:
      // The literal 2147483648 is no int.
      return constant.int_value == std::numeric_limits<std::int32_t>::min()
                 ? "(-2147483647 - 1)"
                 : fmt::format("{}", constant.int_value);
    default:
      return cuda_float_text(constant.float_value);
  }
}

std::string cuda_value(const Program& program, const Instruction& in,
                       std::span<const std::string> operands, CudaMath math) {
  switch (in.op) {
    case Op::constant:
      return cuda_constant(in);
    case Op::load:
      if (in.num_args == 0) return scalar_name(program, in) + ".value";
      return call("attn_load_" + program.buffers[static_cast<std::size_t>(in.buffer)]->name(),
                  operands);
    case Op::logical_not:
      return fmt::format("(!{})", operands[0]);
    // Both operands are evaluated, so no branch is needed.
    case Op::logical_and:
      return fmt::format("({} & {})", operands[0], operands[1]);
    case Op::logical_or:
      return fmt::format("({} | {})", operands[0], operands[1]);
    case Op::lt:
    case Op::le:
      if (in.operands == Type::float32)
        return call(fmt::format("attn_{}", cuda_word(in.op)), operands);
      [[fallthrough]];
    case Op::bit_and:
    case Op::bit_or:
    case Op::bit_xor:
    case Op::eq:
    case Op::ne:
      return fmt::format("({} {} {})", operands[0], spelling(in.op), operands[1]);
    case Op::select:
      return fmt::format("({} ? {} : {})", operands[0], operands[1], operands[2]);
    case Op::div:
    case Op::mod: {
      const Instruction& divisor = program.instructions[static_cast<std::size_t>(in.args[1])];
      return in.operands == Type::int32 ? divide_int(in.op, program, divisor, operands)
                                        : divide_float(divisor, operands, math);
    }
    default:
      return is_symbol(in.op) ? std::string(spelling(in.op))
                              : call(fmt::format("attn_{}", cuda_word(in.op)), operands);
  }
}

std::string to_cuda(const Expr& e) {
  if (e.empty()) {
    throw Error(ErrorCode::invalid_argument, "to_cuda: the expression is empty; one must be given");
  }
  const Program program = compile(e);
  std::vector<std::string> values;
  for (const Instruction& in : program.instructions) {
    std::vector<std::string> operands;
    for (int a = 0; a < in.num_args; ++a) {
      operands.push_back(values[static_cast<std::size_t>(in.args[a])]);
    }
    values.push_back(cuda_value(program, in, operands, CudaMath::exact));
  }
  return values.back();
}

}  // namespace attn::expr
