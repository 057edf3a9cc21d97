// Numbers in expressions that may be others in each call, as offsets and windows are that change
// from step to step:
//
//   Expr offset = attn::expr::scalar("offset", 17);
//   Problem p = complete({.mask = s.key <= s.query + offset}, inputs);
//   Plan plan = make_plan(p, Phase::forward);
//   std::int32_t now = 18;
//   inputs.buffers = {{"offset", tensor(&now, {})}};  // this call's; without it 17
//
// A literal is compiled into a GPU's kernel, 1.3 s for each new one; a scalar is among the kernel's
// parameters. Tiles are classified with the value of the call.
#pragma once

#include <string>

#include "attn/export.hpp"
#include "attn/expr.hpp"

namespace ATTN_API attn {  // NOLINT(modernize-concat-nested-namespaces): not with an attribute
namespace expr {

// A scalar is a Buffer of rank 0 and dtype i32 or f32, and this reads it. Its tensor, or the one
// that a call binds to its name, lies in memory of the CPU whatever the backend, and is read while
// the call is made. It has no gradient. In text it is its bare name, which parse() takes from its
// list of buffers.
//
// value: an int32 or float32 literal, which calls take that bind no other. Throws
// Error(invalid_argument) unless it is a number, and for names as Buffer's constructor. Within an
// expression, and in mask and score of a problem, a name stands for one value.
Expr scalar(std::string name, const Expr& value);

}  // namespace expr
}  // namespace attn
