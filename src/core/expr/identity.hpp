// What a plan depends on of an expression: all but what its tensors hold.
#pragma once

#include <cstdint>

#include "attn/expr.hpp"

namespace attn::expr {

// Whether a plan made for one serves the other: they are the same tree, and buffers of one name
// have the same dtype, shape, strides and device. Empty expressions are alike.
bool plans_alike(const Expr& a, const Expr& b) noexcept;
// A hash that is the same for expressions that are alike; it takes some nanoseconds a node.
std::uint64_t plan_hash(const Expr& e) noexcept;

// e without the memory that its buffers point to and own: a plan made from it can neither read
// what tensors held when it was made nor keep it. Every tensor must then be bound by name.
Expr without_data(const Expr& e);

}  // namespace attn::expr
