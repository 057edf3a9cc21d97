// Light simplification of one operation, when its tree is built.
#pragma once

#include <vector>

#include "core/expr/build.hpp"

namespace attn::expr {

// A simpler expression of equal value than op on args (checked, converted, not all constant), or
// an empty Expr. Float results stay exact for every finite and infinite value and for NaN, but for
// the sign of a zero: x + 0 is x, while 0 * x and x - x remain.
Expr simplify(Op op, Type type, const std::vector<Expr>& args);

}  // namespace attn::expr
