// What the text form's writer and reader agree on:
//
//   expression = unary { operator unary }        operators bind as in C++
//   unary      = ("-" | "!") unary | primary
//   primary    = number | true | false | inf | nan | symbol | "(" expression ")"
//              | function "(" expression { "," expression } ")"
//              | buffer "[" expression { "," expression } "]" | scalar
#pragma once

#include <cstddef>

#include "attn/expr.hpp"

namespace attn::expr {

inline constexpr int kUnaryPrecedence = 11;
inline constexpr int kPrimaryPrecedence = 12;
// Bytes that parse() reads: more than any tree prints, 65536 nodes of a name of 64 characters each.
inline constexpr std::size_t kMaxText = 8 << 20;

// Binary operators from 1 (||) to 10 (* / %), as in C++: `query & 1 == 0` is of query and a
// boolean, which is refused.
int precedence(Op op) noexcept;

}  // namespace attn::expr
