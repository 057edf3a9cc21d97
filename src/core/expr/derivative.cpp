// Symbolic derivatives. An empty Expr stands for a derivative that is zero everywhere, so that no
// 0 * x is ever built.
#include <fmt/format.h>

#include <functional>
#include <numbers>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "core/text/echo.hpp"

namespace attn::expr {
namespace {

Expr sum(const Expr& a, const Expr& b) {
  if (a.empty()) return b;
  return b.empty() ? a : a + b;
}
Expr negated(const Expr& a) { return a.empty() ? a : -a; }
Expr difference(const Expr& a, const Expr& b) {
  if (a.empty()) return negated(b);
  return b.empty() ? a : a - b;
}
// Constant factors are gathered at the right: c * tanh(score / c) then has no multiplication left.
Expr product(const Expr& factor, const Expr& a) {
  if (a.empty()) return a;
  if (!is_constant(factor)) return factor * a;
  const Node& node = a.node();
  if (node.op == Op::mul && is_constant(node.args[1]))
    return node.args[0] * (factor * node.args[1]);
  return a * factor;
}
Expr quotient(const Expr& a, const Expr& divisor) { return a.empty() ? a : a / divisor; }
Expr or_zero(const Expr& a) { return a.empty() ? Expr(0.0f) : a; }
[[gnu::noinline]] Expr choice(const Expr& condition, const Expr& a, const Expr& b) {
  if (a.empty() && b.empty()) return {};
  if (!a.empty() && !b.empty() && same(a, b)) return a;  // whatever the condition reads
  return select(condition, or_zero(a), or_zero(b));
}

// The derivative of t = tanh(a) by a.
Expr tanh_slope(TanhSlope form, const Expr& t, const Expr& a) {
  if (form == TanhSlope::squares) return 1 - t * t;
  const Expr u = exp(-2 * abs(a));
  const Expr sum = 1 + u;
  return 4 * u / (sum * sum);
}

class Differentiation {
 public:
  // is_variable: the nodes with derivative 1. above: those and all that depend on them, where that
  // is known; null: any may.
  Differentiation(TanhSlope form, std::function<bool(const Expr&)> is_variable,
                  const std::unordered_set<const Node*>* above = nullptr)
      : form_(form), is_variable_(std::move(is_variable)), above_(above) {}

  Expr operator()(const Expr& e) {
    // int32 and boolean values never depend on a float32 variable.
    if (e.type() != Type::float32) return {};
    if (above_ != nullptr && !above_->contains(e.get())) return {};
    if (is_variable_(e)) return 1.0f;
    if (const auto done = done_.find(e.get()); done != done_.end()) return done->second;
    Expr result = of_operation(e);
    done_.emplace(e.get(), result);
    return result;
  }

 private:
  Expr of_operation(const Expr& e) {
    const Node& node = e.node();
    if (is_unary(node.op)) return of_unary(e, (*this)(node.args[0]));
    const bool chooses = node.op == Op::select;
    if (!chooses && !is_binary(node.op)) return {};
    const Expr da = (*this)(node.args[chooses ? 1 : 0]);
    const Expr db = (*this)(node.args.back());
    return chooses ? choice(node.args[0], da, db) : of_binary(e, da, db);
  }

  // Of e, given the derivatives of its operands. Not inlined, so that only what they are called by
  // takes stack at each level of a tree.
  [[gnu::noinline]] Expr of_unary(const Expr& e, const Expr& da) const {
    const Expr& a = e.node().args[0];
    switch (e.node().op) {
      case Op::neg:
        return negated(da);
      case Op::abs:
        return choice(a < 0, negated(da), da);
      case Op::exp:
        return product(e, da);
      case Op::exp2:
        return product(std::numbers::ln2 * e, da);
      case Op::log:
        return quotient(da, a);
      case Op::tanh:
        return da.empty() ? da : product(tanh_slope(form_, e, a), da);
      case Op::erf:
        return product(2 * std::numbers::inv_sqrtpi * exp(-(a * a)), da);
      case Op::sin:
        return product(cos(a), da);
      case Op::cos:
        return negated(product(sin(a), da));
      case Op::sqrt:
        return quotient(da, 2 * e);
      default:
        return {};
    }
  }

  [[gnu::noinline]] static Expr of_binary(const Expr& e, const Expr& da, const Expr& db) {
    const Expr& a = e.node().args[0];
    const Expr& b = e.node().args[1];
    switch (e.node().op) {
      case Op::add:
        return sum(da, db);
      case Op::sub:
        return difference(da, db);
      case Op::mul:
        return sum(product(b, da), product(a, db));
      case Op::div:  // with e = a / b
        return quotient(difference(da, product(e, db)), b);
      case Op::min:
        return choice(a < b, da, db);
      case Op::max:
        return choice(a > b, da, db);
      default:
        return {};
    }
  }

  TanhSlope form_;
  std::function<bool(const Expr&)> is_variable_;
  const std::unordered_set<const Node*>* above_;
  std::unordered_map<const Node*, Expr> done_;
};

void require_float(const Expr& e, std::string_view function) {
  if (e.type() != Type::float32) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: '{}' is {}; a float32 expression is accepted", function,
                            core::echo(to_string(e)), name(e.type())));
  }
}

// The loads of a buffer, equal ones together, and the parents of every node. With many loads a walk
// of the whole tree for each would take minutes.
class Loads {
 public:
  Loads(const Expr& e, std::string_view buffer) {
    for (const Expr* part : operands_first(e)) {
      for (const Expr& arg : part->node().args) parents_[arg.get()].push_back(part->get());
      const Node& node = part->node();
      if (node.op == Op::load && node.type == Type::float32 && node.buffer->name() == buffer) {
        add(*part);
      }
    }
  }

  // One of each, in the order in which they stand.
  const std::vector<Expr>& distinct() const { return distinct_; }
  // The nodes of loads equal to distinct()[i], and all that depend on them.
  std::unordered_set<const Node*> above(std::size_t i) const {
    std::unordered_set<const Node*> found;
    std::vector<const Node*> open = equal_[i];
    while (!open.empty()) {
      const Node* node = open.back();
      open.pop_back();
      if (!found.insert(node).second) continue;
      const auto parents = parents_.find(node);
      if (parents == parents_.end()) continue;
      open.insert(open.end(), parents->second.begin(), parents->second.end());
    }
    return found;
  }

 private:
  void add(const Expr& load) {
    for (std::size_t i = 0; i < distinct_.size(); ++i) {
      if (same(distinct_[i], load)) return equal_[i].push_back(load.get());
    }
    distinct_.push_back(load);
    equal_.push_back({load.get()});
  }

  std::vector<Expr> distinct_;
  std::vector<std::vector<const Node*>> equal_;
  std::unordered_map<const Node*, std::vector<const Node*>> parents_;
};

}  // namespace

Expr derivative(const Expr& e, TanhSlope form) {
  require_float(e, "derivative");
  return or_zero(Differentiation(form, [](const Expr& x) { return x.node().op == Op::score; })(e));
}
Expr derivative(const Expr& e) { return derivative(e, TanhSlope::exponentials); }

std::vector<LoadDerivative> load_derivatives(const Expr& e, std::string_view buffer,
                                             TanhSlope form) {
  require_float(e, "load_derivatives");
  const Loads loads(e, buffer);
  std::vector<LoadDerivative> derivatives;
  for (std::size_t i = 0; i < loads.distinct().size(); ++i) {
    const Expr& load = loads.distinct()[i];
    const std::unordered_set<const Node*> above = loads.above(i);
    Differentiation differentiate(
        form, [&](const Expr& x) { return same(x, load); }, &above);
    if (const Expr d = differentiate(e); !d.empty()) derivatives.push_back({load, d});
  }
  return derivatives;
}
std::vector<LoadDerivative> load_derivatives(const Expr& e, std::string_view buffer) {
  return load_derivatives(e, buffer, TanhSlope::exponentials);
}

}  // namespace attn::expr
