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
    return expr::rewrite(e, [&](const expr::Expr& part, const std::vector<expr::Expr>& args) {
      for (const auto& [op, replacement] : symbols_) {
        if (part.node().op == op) return replacement;
      }
      return expr::rebuild(part, args);
    });
  }

 private:
  std::vector<std::pair<expr::Op, expr::Expr>> symbols_;
};

}  // namespace attn::dist
