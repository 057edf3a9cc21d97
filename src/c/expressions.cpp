// Expressions and descriptions of problems.
#include <memory>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "attn/expr.hpp"
#include "c/boundary.hpp"
#include "c/convert.hpp"
#include "c/handles.hpp"

using attn::c::guarded;
using attn::c::needed;

attn_status attn_expr_parse(const char* text, const attn_named_tensor* buffers, size_t num_buffers,
                            attn_expr** expr) {
  return guarded([&] {
    attn_expr*& made = attn::c::result("expr", expr);
    static_cast<void>(needed("text", text));
    std::vector<attn::expr::Buffer> read;
    for (auto& [name, tensor] : attn::c::bindings_of("buffers", buffers, num_buffers)) {
      read.emplace_back(name, tensor);
    }
    made = new attn_expr{attn::expr::parse(text, read)};
  });
}

attn_status attn_expr_text(const attn_expr* expr, char* text, size_t capacity, size_t* length) {
  return guarded(
      [&] { attn::c::give_text(to_string(needed("expr", expr).expr), text, capacity, length); });
}

void attn_expr_free(attn_expr* expr) { delete expr; }

attn_status attn_problem_text(const attn_problem* problem, char* text, size_t capacity,
                              size_t* length) {
  return guarded(
      [&] { attn::c::give_text(to_string(attn::c::problem_of(problem)), text, capacity, length); });
}
