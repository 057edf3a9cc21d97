// What the text form's writer and reader agree on:
//
//   expression = unary { operator unary }        operators bind as in C++
//   unary      = ("-" | "!") unary | primary
//   primary    = number | true | false | inf | nan | symbol | "(" expression ")"
//              | function "(" expression { "," expression } ")"
//              | buffer "[" expression { "," expression } "]"
#pragma once

#include <cstddef>

#include "attn/expr.hpp"

namespace attn::expr {

inline constexpr int kUnaryPrecedence = 7;
inline constexpr int kPrimaryPrecedence = 8;
// Bytes that parse() reads: more than any tree prints, 65536 nodes of a name of 64 characters each.
inline constexpr std::size_t kMaxText = 8 << 20;

// Binary operators from 1 (||) to 6 (* / %).
int precedence(Op op) noexcept;

}  // namespace attn::expr
