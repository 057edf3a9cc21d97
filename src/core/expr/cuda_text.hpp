// Operations of expressions as CUDA C++.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/expr/program.hpp"

namespace attn::expr {

// How floats are computed: by one rounding an operation (masks), as is fastest (scores), or as is
// fastest with a tanh near 1 that 1 - tanh^2 can be taken of (derivatives of scores).
enum class CudaMath : std::uint8_t { exact, fast, slope };

// "bool", "int" or "float".
std::string_view cuda_type(Type type) noexcept;
// What the functions for op are named after: attn_<word>, range_<word>. Not for leaves.
std::string_view cuda_word(Op op) noexcept;
std::string cuda_constant(const Instruction& constant);
// Whether it is a constant of int32 by which a division is a shift.
bool is_power_of_two(const Instruction& in) noexcept;
// What holds the scalar that `in`, a load without indices, reads.
std::string scalar_name(const Program& program, const Instruction& in);
// The value of `in`, an instruction of `program`, given the text of its operands. Each is one
// primary expression.
std::string cuda_value(const Program& program, const Instruction& in,
                       std::span<const std::string> operands, CudaMath math);

}  // namespace attn::expr
