#include "cuda/codegen/mask_bounds.hpp"

#include <cstdint>
#include <limits>

namespace attn::cuda {
namespace {

using expr::Expr;
using expr::Op;

bool is_key(const Expr& e) { return e.node().op == Op::key; }

// The other side of a comparison where `side` is the key; empty where that is no bound.
Expr bound(const Expr& side, const Expr& other) {
  return is_key(side) && !depends_on(other, Op::key) ? other : Expr();
}

void at_least(MaskBounds& b, const Expr& first) {
  b.first = b.first.empty() ? first : max(b.first, first);
}
void at_most(MaskBounds& b, const Expr& last) {
  b.last = b.last.empty() ? last : min(b.last, last);
}

// Takes what `e` bounds; false where it is none.
bool take_bound(MaskBounds& b, const Expr& e) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const Op op = e.node().op;
  if (op != Op::lt && op != Op::le && op != Op::eq) return false;
  const Expr &left = e.node().args[0], &right = e.node().args[1];
  if (const Expr above = bound(left, right); !above.empty()) {
    if (op == Op::eq) at_least(b, above);
    // Nothing is below 0, and 0 - 1 does not wrap.
    at_most(b, op == Op::lt ? max(above, Expr(0)) - Expr(1) : above);
    return true;
  }
  if (const Expr below = bound(right, left); !below.empty()) {
    if (op == Op::eq) at_most(b, below);
    at_least(b, op == Op::lt ? min(below, Expr(kMost - 1)) + Expr(1) : below);
    return true;
  }
  return false;
}

void split(MaskBounds& b, const Expr& e) {
  if (e.node().op == Op::logical_and) {
    for (const Expr& part : e.node().args) split(b, part);
  } else if (!take_bound(b, e)) {
    b.rest = b.rest.empty() ? e : b.rest && e;
  }
}

}  // namespace

MaskBounds mask_bounds(const Expr& mask) {
  MaskBounds bounds;
  if (!mask.empty()) split(bounds, mask);
  return bounds;
}

}  // namespace attn::cuda
