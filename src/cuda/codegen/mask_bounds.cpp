#include "cuda/codegen/mask_bounds.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/expr/program.hpp"
#include "cuda/codegen/expression_range.hpp"

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
    // No value is below 0, and 0 - 1 does not wrap.
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

// Whether no part of e wraps in short sequences.
bool is_small(const Expr& e) {
  const std::vector<bool> small = small_in_short_sequences(expr::compile(e));
  return std::ranges::all_of(small, [](bool x) { return x; });
}

// Moves what is beside the key from the side of a comparison that has it to the other, and the key
// where it is subtracted: query - key <= 7 becomes query - 7 <= key. False where the side is no
// such sum.
bool leave_key(Expr& side, Expr& other) {
  const Op op = side.node().op;
  if (op != Op::add && op != Op::sub) return false;
  const Expr a = side.node().args[0], b = side.node().args[1];
  if (is_key(a) && !depends_on(b, Op::key)) {
    other = op == Op::add ? other - b : other + b;
    side = a;
  } else if (is_key(b) && !depends_on(a, Op::key)) {
    const Expr moved = op == Op::add ? other - a : a - other;
    (op == Op::add ? other : side) = moved;
    (op == Op::add ? side : other) = b;
  } else {
    return false;
  }
  return true;
}

// The comparison with the key alone on its side. As it is where it has no such form, or something
// could wrap.
Expr with_key_alone(const Expr& e) {
  const Op op = e.node().op;
  if (op != Op::lt && op != Op::le && op != Op::eq) return e;
  Expr left = e.node().args[0], right = e.node().args[1];
  if (left.type() != expr::Type::int32 || !is_small(left) || !is_small(right)) return e;
  const bool is_left = depends_on(left, Op::key);
  if (is_left == depends_on(right, Op::key)) return e;
  if (!(is_left ? leave_key(left, right) : leave_key(right, left))) return e;
  if (!is_small(left) || !is_small(right)) return e;
  return op == Op::lt ? left < right : op == Op::le ? left <= right : left == right;
}

void split(MaskBounds& b, const Expr& whole, bool short_sequences) {
  const Expr e = short_sequences ? with_key_alone(whole) : whole;
  if (e.node().op == Op::logical_and) {
    for (const Expr& part : e.node().args) split(b, part, short_sequences);
  } else if (!take_bound(b, e)) {
    b.rest = b.rest.empty() ? e : b.rest && e;
  }
}

}  // namespace

MaskBounds mask_bounds(const Expr& mask, bool short_sequences) {
  MaskBounds bounds;
  if (!mask.empty()) split(bounds, mask, short_sequences);
  return bounds;
}

}  // namespace attn::cuda
