#include "core/problem/prefix_expressions.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "core/expr/build.hpp"

namespace attn::core {
namespace {

using expr::Expr;
using expr::Op;

Expr number(std::int64_t value) { return expr::int32(static_cast<std::int32_t>(value)); }

bool counts_keys(const Expr& e) {
  return expr::depends_on(e, Op::key) || expr::depends_on(e, Op::seqlen_k);
}

// e after `key` and `seqlen_k` have both become larger by the same number: what is the same as
// before stays as it is written. Example: key <= position stays, key < 4 becomes key + n < 4.
class Shift {
 public:
  explicit Shift(std::int64_t by) : by_(number(by)) {}

  Expr operator()(const Expr& e) const {
    if (!counts_keys(e)) return e;
    if (grows(e)) return e + by_;
    std::vector<Expr> args = e.node().args;
    const bool of_difference = e.type() == expr::Type::boolean || e.node().op == Op::sub;
    if (args.size() == 2 && of_difference && grows(args[0]) && grows(args[1])) return e;
    for (Expr& arg : args) arg = (*this)(arg);
    return expr::rebuild(e, args);
  }

 private:
  // A sum with it does not wrap around in int32, whose range keys and queries do not leave: then
  // two sums that grow alike compare as before.
  static bool is_small(const Expr& e) {
    constexpr std::int32_t kMost = 1 << 20;
    const expr::Node& node = e.node();
    if (node.op == Op::constant) return node.int_value >= -kMost && node.int_value <= kMost;
    return node.op == Op::query || node.op == Op::head || node.op == Op::batch;
  }
  // Whether e grows by just that number.
  static bool grows(const Expr& e) {
    const expr::Node& node = e.node();
    if (node.op == Op::key || node.op == Op::seqlen_k || expr::is_position(e)) return true;
    if (e.type() != expr::Type::int32) return false;
    if (node.op == Op::add) {
      return (grows(node.args[0]) && is_small(node.args[1])) ||
             (grows(node.args[1]) && is_small(node.args[0]));
    }
    return node.op == Op::sub && grows(node.args[0]) && is_small(node.args[1]);
  }

  Expr by_;
};

// The mask with `query` in the place of one number of a sequence that is at least `least` and at
// most most_query() + least: of position, or of seqlen_k - seqlen_q. Empty where the mask reads
// more than keys, heads and that number, whose values then are not known.
class Bounded {
 public:
  explicit Bounded(std::int64_t least) : place_(expr::symbols().query + number(least)) {}

  std::optional<Expr> operator()(const Expr& e) {
    if (expr::is_position(e)) return place(Kind::position);
    const expr::Node& node = e.node();
    if (node.op == Op::sub && node.args[0].node().op == Op::seqlen_k &&
        node.args[1].node().op == Op::seqlen_q) {
      return place(Kind::before);
    }
    if (node.op == Op::load || node.op == Op::query || node.op == Op::batch ||
        node.op == Op::seqlen_q || node.op == Op::seqlen_k) {
      return {};
    }
    if (node.args.empty()) return e;
    std::vector<Expr> args;
    for (const Expr& arg : node.args) {
      std::optional<Expr> mapped = (*this)(arg);
      if (!mapped) return {};
      args.push_back(std::move(*mapped));
    }
    return expr::rebuild(e, args);
  }

 private:
  enum class Kind : std::uint8_t { position, before };

  // Two numbers in one place would look as if they were equal.
  std::optional<Expr> place(Kind kind) {
    if (kind_ && *kind_ != kind) return {};
    kind_ = kind;
    return place_;
  }

  Expr place_;
  std::optional<Kind> kind_;
};

bool always_true(const Expr& mask, const Problem& p, std::int64_t keys) {
  const std::vector<Expr>& args = mask.node().args;
  const auto is = [&](const Expr& e) { return always_true(e, p, keys); };
  if (mask.node().op == Op::logical_and) return std::ranges::all_of(args, is);
  if (mask.node().op == Op::logical_or && std::ranges::any_of(args, is)) return true;
  // A sequence with a row has 1 to seqlen_q queries and may have no own keys.
  const std::optional<Expr> bounded = Bounded(p.seqlen_prefix - p.seqlen_q)(mask);
  if (!bounded) return false;
  expr::Tile tile{.query_max = static_cast<std::int32_t>(p.seqlen_k + p.seqlen_q - 1),
                  .key_max = static_cast<std::int32_t>(keys - 1),
                  .head_max = static_cast<std::int32_t>(p.heads_q - 1)};
  return expr::classify(*bounded, tile) == expr::Coverage::full;
}

}  // namespace

bool same_for_all_queries(const Expr& score) {
  return std::ranges::none_of(std::array{Op::query, Op::batch, Op::seqlen_q, Op::seqlen_k},
                              [&](Op symbol) { return expr::depends_on(score, symbol); });
}

bool sees_first_keys(const Problem& p, std::int64_t keys) {
  if (p.mask.empty() || keys == 0) return true;
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  if (p.seqlen_q == 0 || p.seqlen_k + p.seqlen_q > kMost) return false;
  return always_true(p.mask, p, keys);
}

Expr over_own_keys(const Expr& e, std::int64_t prefix) {
  return e.empty() || prefix == 0 ? e : Shift(prefix)(e);
}

Expr over_prefix_keys(const Expr& e, std::int64_t first, const Expr& own_length) {
  if (e.empty()) return e;
  const auto& s = expr::symbols();
  const Expr whole = s.seqlen_k + (own_length + number(first));
  const Expr moved = expr::substitute(e, Op::seqlen_k, whole);
  return first == 0 ? moved : expr::substitute(moved, Op::key, s.key + number(first));
}

}  // namespace attn::core
