// Expressions whose symbols mean something else.
#pragma once

#include <utility>
#include <vector>

#include "core/expr/build.hpp"

namespace attn::dist {

// All symbols are replaced in one sweep, as one that stands for another must not be replaced again.
class Rewriter {
 public:
  explicit Rewriter(std::vector<std::pair<expr::Op, expr::Expr>> symbols)
      : symbols_(std::move(symbols)) {}

  expr::Expr operator()(const expr::Expr& e) const {
    if (e.empty()) return e;
    for (const auto& [op, replacement] : symbols_) {
      if (e.node().op == op) return replacement;
    }
    std::vector<expr::Expr> args = e.node().args;
    if (args.empty()) return e;
    for (expr::Expr& arg : args) arg = (*this)(arg);
    return expr::rebuild(e, args);
  }

 private:
  std::vector<std::pair<expr::Op, expr::Expr>> symbols_;
};

}  // namespace attn::dist
