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
inline constexpr std::size_t kMaxText = 1 << 20;  // bytes that parse() reads

// Binary operators from 1 (||) to 6 (* / %).
int precedence(Op op) noexcept;

}  // namespace attn::expr
