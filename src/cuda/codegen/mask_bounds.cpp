#include "cuda/codegen/mask_bounds.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/expr/build.hpp"
#include "core/expr/program.hpp"
#include "cuda/codegen/expression_range.hpp"

namespace attn::cuda {
namespace {

using expr::Expr;
using expr::Op;

bool is_key(const Expr& e) { return e.node().op == Op::key; }

// Where keys of a part stand in a whole, as ranks write it: from key `begin` on, key + shift.
struct KeyRun {
  std::int32_t begin, shift;
};

// The runs of key + 5 or select(key < 64, key, key + 128), ascending, the first one from 0 on;
// empty where e has no such form or does not rise with the key.
std::vector<KeyRun> runs_of(const Expr& e) {
  const expr::Node& n = e.node();
  if (is_key(e)) return {{0, 0}};
  if (n.op == Op::add) {
    const int constant = is_key(n.args[0]) ? 1 : 0;
    const Expr& shift = n.args[static_cast<std::size_t>(constant)];
    if (!is_key(n.args[static_cast<std::size_t>(1 - constant)]) || !expr::is_constant(shift)) {
      return {};
    }
    return {{0, shift.node().int_value}};
  }
  if (n.op != Op::select) return {};
  const expr::Node& condition = n.args[0].node();
  if (condition.op != Op::lt || !is_key(condition.args[0]) ||
      !expr::is_constant(condition.args[1])) {
    return {};
  }
  std::vector<KeyRun> runs = runs_of(n.args[1]), later = runs_of(n.args[2]);
  if (runs.empty() || later.empty()) return {};
  later[0].begin = condition.args[1].node().int_value;
  runs.insert(runs.end(), later.begin(), later.end());
  for (std::size_t i = 0; i + 1 < runs.size(); ++i) {
    if (runs[i].begin >= runs[i + 1].begin || runs[i].shift > runs[i + 1].shift) return {};
  }
  return runs;
}

// The last key of the part at or before row `at` of the whole: -1 or less where there is none.
Expr last_key(const std::vector<KeyRun>& runs, const Expr& at) {
  Expr last = at - Expr(runs[0].shift);
  for (std::size_t i = 1; i < runs.size(); ++i) {
    last = select(at < Expr(runs[i].begin + runs[i].shift), min(last, Expr(runs[i].begin - 1)),
                  at - Expr(runs[i].shift));
  }
  return last;
}
// The first key at or behind it.
Expr first_key(const std::vector<KeyRun>& runs, const Expr& at) {
  Expr first = at - Expr(runs[0].shift);
  for (std::size_t i = 1; i < runs.size(); ++i) {
    first = select(at < Expr(runs[i].begin + runs[i - 1].shift), first,
                   max(at - Expr(runs[i].shift), Expr(runs[i].begin)));
  }
  return first;
}

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
  const expr::Program program = expr::compile(e);
  const std::vector<bool> small = small_in_short_sequences(program);
  for (std::size_t i = 0; i < small.size(); ++i) {
    if (!small[i] && program.instructions[i].type != expr::Type::boolean) return false;
  }
  return true;
}

// Whether e is the key, or where it stands in a whole of which the part has several runs.
bool is_place(const Expr& e) { return is_key(e) || runs_of(e).size() > 1; }

// Moves what is beside the key from the side of a comparison that has it to the other, and the key
// where it is subtracted: query - key <= 7 becomes query - 7 <= key. False where the side is no
// such sum.
bool leave_key(Expr& side, Expr& other) {
  const Op op = side.node().op;
  if (op != Op::add && op != Op::sub) return false;
  const Expr a = side.node().args[0], b = side.node().args[1];
  if (is_place(a) && !depends_on(b, Op::key)) {
    other = op == Op::add ? other - b : other + b;
    side = a;
  } else if (is_place(b) && !depends_on(a, Op::key)) {
    const Expr moved = op == Op::add ? other - a : a - other;
    (op == Op::add ? other : side) = moved;
    (op == Op::add ? side : other) = b;
  } else {
    return false;
  }
  return true;
}

// The same comparison of the key with what does not read it, where `side` has its place and
// `other` the row of the whole that it is compared with. Of integers, below is at most one less.
Expr of_key(Op op, const Expr& side, const Expr& other, bool is_left) {
  const std::vector<KeyRun> runs = runs_of(side);
  const Expr key = expr::symbols().key;
  if (op == Op::eq) {
    return first_key(runs, other) <= key && key <= last_key(runs, other);
  }
  const Expr at = op == Op::le ? other : is_left ? other - Expr(1) : other + Expr(1);
  return is_left ? key <= last_key(runs, at) : first_key(runs, at) <= key;
}

// The comparison with the key alone on its side. As it is where it has no such form, or something
// could wrap.
Expr with_key_alone(const Expr& e) {
  const Op op = e.node().op;
  if (op != Op::lt && op != Op::le && op != Op::eq) return e;
  Expr left = e.node().args[0], right = e.node().args[1];
  if (left.type() != expr::Type::int32 || !is_small(left) || !is_small(right)) return e;
  bool is_left = depends_on(left, Op::key);
  if (is_left == depends_on(right, Op::key) || is_key(is_left ? left : right)) return e;
  if (!is_place(is_left ? left : right) &&
      !(is_left ? leave_key(left, right) : leave_key(right, left))) {
    return e;
  }
  if (!is_small(left) || !is_small(right)) return e;
  is_left = depends_on(left, Op::key);  // what is subtracted changes sides
  const Expr &side = is_left ? left : right, &other = is_left ? right : left;
  if (!is_key(side)) {
    const Expr alone = of_key(op, side, other, is_left);
    return is_small(alone) ? alone : e;
  }
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
