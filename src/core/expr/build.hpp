// How expression trees are made: the properties of each operation and the one constructor that
// checks types, folds constants and simplifies.
#pragma once

#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "attn/expr.hpp"

namespace attn::expr {

// Readers recurse over trees: 200 bytes of stack a level fit small threads (small_stack_test.cpp).
inline constexpr std::int32_t kMaxDepth = 256;
// Readers visit shared nodes each time; 65536 visits are well below a millisecond.
inline constexpr std::int32_t kMaxSize = 65536;

// How an operation reads in text: "query", "tanh", "+". Empty for constants and loads.
std::string_view spelling(Op op) noexcept;
std::string_view name(Type type) noexcept;

// How symbols().position reads; it is a sum, not an operation of its own.
inline constexpr std::string_view kPosition = "position";
bool is_position(const Expr& e) noexcept;

constexpr bool is_symbol(Op op) noexcept { return op >= Op::score && op <= Op::seqlen_k; }
constexpr bool is_unary(Op op) noexcept { return op >= Op::neg && op <= Op::to_int; }
constexpr bool is_binary(Op op) noexcept { return op >= Op::add && op <= Op::logical_or; }
// Unary operations that take float32 only (an int32 operand is converted).
constexpr bool is_transcendental(Op op) noexcept { return op >= Op::exp && op <= Op::sqrt; }
// Operations that jump where their operand reaches an integer. Every reader computes that operand
// in float32, one rounding an operation.
constexpr bool jumps(Op op) noexcept { return op == Op::floor || op == Op::to_int; }

Expr constant(Type type, std::int32_t int_value, float float_value);
inline Expr boolean(bool value) { return constant(Type::boolean, value ? 1 : 0, 0); }
inline Expr int32(std::int32_t value) { return constant(Type::int32, value, 0); }
inline Expr float32(float value) { return constant(Type::float32, 0, value); }

inline bool is_scalar(const Buffer& buffer) noexcept { return buffer.tensor().rank == 0; }
// Whether both may stand under one name: they are one tensor, or scalars of the same bits.
bool same_tensor(const Tensor& a, const Tensor& b) noexcept;

inline bool is_constant(const Expr& e) noexcept { return e.node().op == Op::constant; }
// e is the constant of numeric type that equals value.
bool is_number(const Expr& e, int value) noexcept;
// e is this boolean constant.
bool is_boolean(const Expr& e, bool value) noexcept;

// The operation (unary, binary or select) on operands, converted, folded and simplified. Throws
// Error(invalid_argument) that prints the operands when their types do not fit.
Expr make(Op op, std::span<const Expr> operands);
// buffer[indices]; throws as make.
Expr load(const std::shared_ptr<const Buffer>& buffer, const std::vector<Expr>& indices);
// The nodes of e, shared ones once and operands before what they stand in, so that e comes last.
// They belong to e. A loop over them takes no stack for the levels of a tree.
std::vector<const Expr*> operands_first(const Expr& e);
// What made(part, args) gives for e, which comes after all other nodes; args is what it gave for
// the operands of part.
template <class Made>
Expr rewrite(const Expr& e, const Made& made) {
  std::unordered_map<const Node*, Expr> of_node;
  for (const Expr* part : operands_first(e)) {
    std::vector<Expr> args;
    for (const Expr& arg : part->node().args) args.push_back(of_node.at(arg.get()));
    of_node.emplace(part->get(), made(*part, args));
  }
  return of_node.at(e.get());
}
// Appends the buffers that e reads to `found`, each name once, in order of first use; throws as
// buffers().
void collect_buffers(const Expr& e, std::pmr::vector<const Buffer*>& found);
// How the derivative of t = tanh(a) is written.
enum class TanhSlope : std::uint8_t {
  exponentials,  // 4 u / (1 + u)^2 with u = exp(-2 |a|): all its digits are right
  squares,       // 1 - t t, which loses them as t nears 1: the shortest where there is an
                 // instruction for tanh, as on a GPU
};
// These do what derivative() and load_derivatives() of expr.hpp do, which write exponentials, but
// write the slope of tanh in the form that is asked for.
Expr derivative(const Expr& e, TanhSlope form);
std::vector<LoadDerivative> load_derivatives(const Expr& e, std::string_view buffer,
                                             TanhSlope form);
// e's own operation on other operands; e itself where args are its own.
Expr rebuild(const Expr& e, const std::vector<Expr>& args);

}  // namespace attn::expr
